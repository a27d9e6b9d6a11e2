//! `faultline bench-role`: the processes that the bench starts. Hidden, because nobody but the
//! bench has a use for them. Those of the bare chain run on the same kind of runtime as the
//! services they stand for, and all of them end with the bench.
//!
//! May use: nothing of the other folders of the bench.

mod back;
mod collector;
mod front;
mod middle;

use std::{
    ffi::OsString,
    io::{Read, stdin},
    process, thread,
};

use anyhow::Context;
use clap::{Subcommand, ValueEnum};

use crate::{config, exit::Exit, service};

const EXAMPLES: &str = "\
Examples:
  faultline bench-role middle
  faultline bench-role back --to 127.0.0.1:PORT
  faultline bench-role front --to 127.0.0.1:PORT

Prints `ready ADDRESS` on stdout and ends when its stdin does.";

/// One process of `faultline bench`: a service, or what stands for it in the bare chain.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A service of the mesh, as its own command starts it.
    Service {
        /// That command.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// HTTP and JSON, as the gateway.
    Front {
        /// The middle.
        #[arg(long, value_name = "ADDRESS")]
        to: String,
        /// How a request gets there.
        #[arg(long, value_enum, default_value_t = Hop::Unary)]
        hop: Hop,
    },
    /// gRPC to both sides, as the coordinator.
    Middle {
        /// Answer at once instead of asking the back.
        #[arg(long)]
        at_once: bool,
    },
    /// Takes spans by OTLP and counts them.
    Collector,
    /// Attached by a stream, as a worker.
    Back {
        /// The middle.
        #[arg(long, value_name = "ADDRESS")]
        to: String,
    },
}

/// The way from front to middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hop {
    /// A unary call per request.
    Unary,
    /// All requests on one stream.
    Link,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        end_with_the_bench();
        let runtime = service::runtime(1).context("no runtime")?;
        let served = match self.role {
            Role::Service { command } => {
                drop(runtime);
                let args = [OsString::from("faultline")].into_iter().chain(command);
                return Ok(crate::run(args, &config::environment()));
            }
            Role::Front { to, hop } => runtime.block_on(front::serve(&to, hop)),
            Role::Middle { at_once } => runtime.block_on(middle::serve(at_once)),
            Role::Collector => runtime.block_on(collector::serve()),
            Role::Back { to } => runtime.block_on(back::serve(&to)),
        };
        served.map(|()| Exit::OK)
    }
}

/// The other end of stdin is the bench; however it dies, nothing of it stays behind.
fn end_with_the_bench() {
    thread::spawn(|| {
        let _ = stdin().read(&mut [0]);
        process::exit(0);
    });
}
