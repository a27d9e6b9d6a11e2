//! `faultline failures`: the most frequent failures by root reason and origin.

use std::{
    io::{IsTerminal, stdout},
    time::{Duration, SystemTime},
};

use faultline_proto::v1::{FailuresRequest, FailuresResponse};

use crate::{
    client::connect::Connect,
    cmd::{since, terminal},
    exit::Exit,
    output::failures,
};

/// Buckets of the sparkline.
const BUCKETS: u64 = 60;

const EXAMPLES: &str = "\
Examples:
  faultline failures
  faultline failures --since 2d
  faultline failures --json | jq '.failures[0].lastTaskId'

A failure counts once in FAILURES, although it may end several tasks on its path to the caller;
TASKS counts those.
`faultline list --all --reason REASON --origin AGENT` lists the tasks of a row.";

/// Show failures by root reason and originating agent, the most frequent first.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The time window, such as 90s, 15m, 6h or 2d.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = since::parse)]
    since: Duration,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let connect = self.connect;
        connect.run(async |client| {
            let from = Some(since::ago(self.since));
            let request =
                FailuresRequest { from, bucket_ms: since::bucket_ms(self.since, BUCKETS) };
            let found: FailuresResponse = match client.mesh("Failures", &request).await {
                Ok(found) => found,
                Err(error) => return connect.report_error(error, "failures cannot be read"),
            };
            let for_people = stdout().is_terminal();
            let columns = terminal::size().0;
            let now = SystemTime::now().into();
            connect.print(&found, |style| {
                if found.failures.is_empty() {
                    String::new()
                } else {
                    failures::table(&found, for_people, columns, &now, style)
                }
            })?;
            if found.failures.is_empty() && !connect.json {
                eprintln!("nothing failed");
            }
            Ok(Exit::OK)
        })
    }
}
