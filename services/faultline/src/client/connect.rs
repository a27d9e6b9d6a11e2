//! The flags of commands that call a gateway, the client that they build, and the output of
//! responses and failures.

use std::{
    io::{self, Read, Write},
    path::PathBuf,
    time::Duration,
};

use anyhow::Context;
use faultline_chassis::TraceContext;
use faultline_client::{Client, Error, Reconnect, Retry};
use faultline_proto::{
    Failure,
    advice::{Reader, advise},
    json::{self, ProtoJson},
    v1::Plane,
};

use crate::{
    exit::Exit,
    output::{failure_card, style::Style},
    service,
};

/// The flags of every command that calls a gateway.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Connect {
    /// The gateway to call; HOST:PORT alone is http.
    #[arg(
        long,
        value_name = "URL",
        env = "FAULTLINE_GATEWAY_URL",
        default_value = "http://127.0.0.1:8080"
    )]
    gateway: String,
    /// The bearer token of the caller. The variable is safer: other users can see flags.
    #[arg(long, value_name = "TOKEN", env = "FAULTLINE_TOKEN", hide_env_values = true)]
    token: Option<Token>,
    /// The CA to trust in place of those that the system trusts, a PEM file.
    #[arg(long, value_name = "FILE", env = "FAULTLINE_CA")]
    ca: Option<PathBuf>,
    /// Print ProtoJSON: one object, or one a line where there are several. Failures are one
    /// object on stderr.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A bearer token; its `Debug` output is redacted.
#[derive(Clone)]
struct Token(String);

impl std::str::FromStr for Token {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("<secret>")
    }
}

/// A lost stream is reopened for up to 30 s, which outlasts a restart of the mesh…
const RECONNECT: Reconnect = Reconnect {
    max: 8,
    backoff: Duration::from_millis(250),
    backoff_max: Duration::from_secs(3),
    poll: Some(Duration::from_secs(1)),
    patience: Duration::from_secs(30),
};
/// …but a first call that cannot connect is repeated twice only, so that a missing mesh is
/// reported at once.
const RETRY: Retry = Retry {
    max: 2,
    backoff: Duration::from_millis(100),
    backoff_max: Duration::from_secs(1),
    patience: Duration::from_secs(30),
};

/// The hint of a call that did not reach a gateway.
const UNREACHED_HINT: &str =
    "start a mesh with `faultline up`, or name its gateway with --gateway URL";

impl Connect {
    /// Runs `work` with a client whose calls belong to one trace.
    pub(crate) fn run<W>(&self, work: impl FnOnce(Client) -> W) -> anyhow::Result<Exit>
    where
        W: Future<Output = anyhow::Result<Exit>>,
    {
        service::runtime(1).context("no runtime")?.block_on(async {
            match self.client() {
                Ok(client) => work(client).await,
                Err(error) => self.report_error(error, "the call cannot be made"),
            }
        })
    }

    /// The gateway as the user named it.
    pub(crate) fn gateway(&self) -> &str {
        &self.gateway
    }

    fn client(&self) -> Result<Client, Error> {
        let builder = Client::builder(&self.gateway).trace(TraceContext::root());
        let mut builder = builder.retry(RETRY).reconnect(RECONNECT);
        if let Some(token) = &self.token {
            builder = builder.bearer(&token.0);
        }
        if let Some(ca) = &self.ca {
            builder = builder.ca(ca);
        }
        builder.direct()
    }

    /// Prints the failure of a call on stderr and returns its exit code.
    pub(crate) fn report_error(&self, error: Error, headline: &str) -> anyhow::Result<Exit> {
        let failure = Failure::from(error);
        // Without any response, only the user can act.
        let unreached = failure.plane() == Plane::Transport && failure.origin.is_none();
        self.report_failure(&failure, headline, unreached.then_some(UNREACHED_HINT))
    }

    /// Prints a failure on stderr, with a hint about commands beside the advice.
    pub(crate) fn report_failure(
        &self,
        failure: &Failure,
        headline: &str,
        hint: Option<&str>,
    ) -> anyhow::Result<Exit> {
        let mut text = if self.json {
            let advice = advise(failure, Reader::Caller).to_record();
            let failure = json::to_string(failure.record());
            let advice = json::to_string(&advice);
            let hint = hint.map(|hint| format!(",\"hint\":{}", serde_json::Value::from(hint)));
            let hint = hint.unwrap_or_default();
            format!("{{\"failure\":{failure},\"advice\":{advice}{hint}}}\n")
        } else {
            failure_card::render(failure, headline, Reader::Caller, Style::stderr())
        };
        if let Some(hint) = hint.filter(|_| !self.json) {
            text.push_str(&format!("  {}  {hint}\n", Style::stderr().dim("hint ")));
        }
        if failure.plane() == Plane::Transport && !self.json {
            let detail = failure.private().map_or("", |private| private.for_log());
            let label = Style::stderr().dim("at   ");
            text.push_str(&format!("  {label}  {} {detail}\n", self.gateway));
        }
        io::stderr().write_all(text.as_bytes())?;
        Ok(Exit::of_failure(failure))
    }

    /// Prints a response on stdout: ProtoJSON with `--json`, otherwise the text of `for_people`.
    pub(crate) fn print<M: ProtoJson>(
        &self,
        message: &M,
        for_people: impl FnOnce(Style) -> String,
    ) -> io::Result<()> {
        let mut text =
            if self.json { json::to_string(message) } else { for_people(Style::stdout()) };
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// The text itself, or the contents of stdin if the text is `-`.
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
