//! `faultline bench-role`: the processes that the bench starts, as a hidden command. The processes
//! of the bare chain use the same kind of runtime as the services that they replace. All of them
//! end with the bench.
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

Prints `ready ADDRESS` on stdout and exits at the end of its stdin.";

/// One process of `faultline bench`: a service, or its replacement in the bare chain.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// A service of the mesh, started by its own command.
    Service {
        /// The command and its arguments.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// HTTP and JSON, in place of the gateway.
    Front {
        /// The address of the middle.
        #[arg(long, value_name = "ADDRESS")]
        to: String,
        /// The transport of requests to the middle.
        #[arg(long, value_enum, default_value_t = Hop::Unary)]
        hop: Hop,
    },
    /// gRPC on both sides, in place of the coordinator.
    Middle {
        /// Answer at once instead of calling the back.
        #[arg(long)]
        at_once: bool,
    },
    /// Takes spans by OTLP and counts them.
    Collector,
    /// Attached by a stream, in place of a worker.
    Back {
        /// The address of the middle.
        #[arg(long, value_name = "ADDRESS")]
        to: String,
    },
}

/// The transport between front and middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Hop {
    /// A unary call per request.
    Unary,
    /// All requests on one stream.
    Link,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        exit_with_the_bench();
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

/// Exits at the end of stdin, which the bench holds open: no process outlives the bench.
fn exit_with_the_bench() {
    thread::spawn(|| {
        let _ = stdin().read(&mut [0]);
        process::exit(0);
    });
}
