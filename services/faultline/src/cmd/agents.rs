//! `faultline agents`: operations on the list of agents that a mesh knows.

use faultline_proto::v1::{RemoveAgentRequest, RemoveAgentResponse};

use crate::{client::connect::Connect, exit::Exit};

const EXAMPLES: &str = "\
Examples:
  faultline agents remove refunds

It needs the scope `operate`, and `operators_act = true` in [gateway]. Agents that no worker offers
are forgotten by themselves after `forget_agents_after_hours` of [coordinator]; `faultline top`
lists those that are known.";

/// Manage the agents that the mesh knows.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    Remove(Remove),
}

/// Remove an agent that no worker offers any more and that has no live task.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
struct Remove {
    /// The agent to remove.
    name: String,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let Action::Remove(Remove { name, connect }) = self.action;
        connect.run(async |client| {
            let request = RemoveAgentRequest { name: name.clone() };
            let removed: RemoveAgentResponse = match client.mesh("RemoveAgent", &request).await {
                Ok(removed) => removed,
                Err(error) => {
                    return connect.report_error(error, &format!("agent {name} was not removed"));
                }
            };
            connect.print(&removed, |_| format!("agent {name} removed"))?;
            Ok(Exit::OK)
        })
    }
}
