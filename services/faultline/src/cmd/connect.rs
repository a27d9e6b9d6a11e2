//! What the commands that call a gateway share: where it is, how to print, how a failure is told.

use std::io::{self, Read, Write};

use anyhow::Context;
use faultline_chassis::TraceContext;
use faultline_client::Client;
use faultline_proto::{
    Failure,
    json::{self, ProtoJson},
    v1::Plane,
};

use crate::{
    exit::Exit,
    output::{chain, paint::Paint},
    role,
};

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Connect {
    /// The gateway to call.
    #[arg(
        long,
        value_name = "URL",
        env = "FAULTLINE_GATEWAY_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    gateway: String,
    /// Print ProtoJSON: one object, or one a line where there are several. Failures are one
    /// object on stderr.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Connect {
    /// Runs `work` with a client whose calls are one trace.
    pub(crate) fn run<W>(&self, work: impl FnOnce(Client) -> W) -> anyhow::Result<Exit>
    where
        W: Future<Output = anyhow::Result<Exit>>,
    {
        role::runtime(1).context("no runtime")?.block_on(async {
            match Client::new(&self.gateway) {
                Ok(client) => work(client.with_trace(TraceContext::root())).await,
                Err(failure) => self.refuse(&failure, "the call cannot be made"),
            }
        })
    }

    /// Tells a failure on stderr; its exit code.
    pub(crate) fn refuse(&self, failure: &Failure, headline: &str) -> anyhow::Result<Exit> {
        // Nobody answered at all, so nobody but the user can do something.
        let unreached = failure.plane() == Plane::Transport && failure.origin.is_none();
        let advice = match unreached {
            true => {
                "start a mesh with `faultline up`, or name its gateway with --gateway URL".into()
            }
            false => chain::advice(failure),
        };
        self.refuse_doing(failure, headline, &advice)
    }

    /// The same with advice of one's own.
    pub(crate) fn refuse_doing(
        &self,
        failure: &Failure,
        headline: &str,
        advice: &str,
    ) -> anyhow::Result<Exit> {
        let mut text = match self.json {
            true => format!("{{\"failure\":{}}}\n", json::to_string(failure.record())),
            false => chain::render_doing(failure, headline, advice, Paint::stderr()),
        };
        if failure.plane() == Plane::Transport && !self.json {
            let detail = failure.private().map_or("", |private| private.for_log());
            let label = Paint::stderr().dim("at   ");
            text.push_str(&format!("  {label}  {} {detail}\n", self.gateway));
        }
        io::stderr().write_all(text.as_bytes())?;
        Ok(Exit::of_failure(failure))
    }

    /// Prints an answer: the message itself, or what people read instead.
    pub(crate) fn print<M: ProtoJson>(
        &self,
        message: &M,
        for_people: impl FnOnce(Paint) -> String,
    ) -> io::Result<()> {
        let mut text = match self.json {
            true => json::to_string(message),
            false => for_people(Paint::stdout()),
        };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The text itself, or what stdin has when it is `-`.
pub(crate) fn text_or_stdin(text: String) -> anyhow::Result<String> {
    if text != "-" {
        return Ok(text);
    }
    let limit = faultline_chassis::limits::MESSAGE_BYTES_MAX as u64;
    let mut all = String::new();
    let read = io::stdin().lock().take(limit + 1).read_to_string(&mut all);
    read.context("cannot read stdin")?;
    Ok(all)
}
