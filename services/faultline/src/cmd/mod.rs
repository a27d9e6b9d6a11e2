//! The commands of the command line, one file each. A command parses its flags, runs, and returns
//! its exit code.
//!
//! May use: every other folder but testing.

mod since;
mod terminal;

mod agents;
mod answer;
mod bench;
mod cancel;
mod config;
mod coordinator;
mod explain;
mod failures;
mod gateway;
mod get;
mod list;
mod send;
mod top;
mod up;
mod watch;
mod worker;

use faultline_chassis::config::Environment;

use crate::exit::Exit;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Up(up::Args),
    Send(send::Args),
    Answer(answer::Args),
    Watch(watch::Args),
    Get(get::Args),
    List(list::Args),
    Cancel(cancel::Args),
    Explain(explain::Args),
    Failures(failures::Args),
    Top(top::Args),
    Agents(agents::Args),
    Coordinator(coordinator::Args),
    Gateway(gateway::Args),
    Worker(worker::Args),
    Config(config::Args),
    Bench(bench::Args),
    #[command(hide = true)]
    BenchRole(bench::RoleArgs),
}

impl Command {
    pub(crate) fn run(self, env: &Environment) -> anyhow::Result<Exit> {
        match self {
            Command::Up(args) => args.run(env),
            Command::Send(args) => args.run(),
            Command::Answer(args) => args.run(),
            Command::Watch(args) => args.run(),
            Command::Get(args) => args.run(),
            Command::List(args) => args.run(),
            Command::Cancel(args) => args.run(),
            Command::Explain(args) => args.run(),
            Command::Failures(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Agents(args) => args.run(),
            Command::Coordinator(args) => args.run(env),
            Command::Gateway(args) => args.run(env),
            Command::Worker(args) => args.run(env),
            Command::Config(args) => args.run(env),
            Command::Bench(args) => args.run(),
            Command::BenchRole(args) => args.run(),
        }
    }
}
