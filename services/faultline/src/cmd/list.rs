//! `faultline list`: many tasks, newest first.

use std::io::{IsTerminal, stdout};

use faultline_client::{Client, Error};
use faultline_proto::{
    a2a::{ListTasksRequest, ListTasksResponse, TaskState},
    failure::state_word,
};

use crate::{cmd::connect::Connect, exit::Exit, output::task};

const PAGE_MAX: usize = 100;

const EXAMPLES: &str = "\
Examples:
  faultline list
  faultline list --state failed --agent script --limit 10
  faultline list --json | jq '.tasks[].id'";

/// List tasks, the latest change first.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only tasks of this agent.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only tasks of this context.
    #[arg(long, value_name = "ID")]
    context: Option<String>,
    /// Only tasks in this state: submitted, working, completed, failed, canceled,
    /// input-required, rejected or auth-required.
    #[arg(long, value_parser = state)]
    state: Option<TaskState>,
    /// At most so many tasks.
    #[arg(long, value_name = "N", default_value_t = 50,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    limit: u32,
    #[command(flatten)]
    connect: Connect,
}

fn state(word: &str) -> Result<TaskState, String> {
    let mut all = (1..=8).filter_map(|number| TaskState::try_from(number).ok());
    let wanted = word.to_ascii_lowercase().replace('_', "-");
    all.find(|state| state_word(*state) == wanted).ok_or_else(|| {
        "say submitted, working, completed, failed, canceled, input-required, rejected or \
         auth-required"
            .to_owned()
    })
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let connect = self.connect.clone();
        connect.run(async |client| {
            let list = match self.pages(&client).await {
                Ok(list) => list,
                Err(error) => return connect.refuse(error, "list failed"),
            };
            let for_people = stdout().is_terminal();
            connect.print(&list, |paint| match list.tasks.is_empty() {
                true => String::new(),
                false => task::table(&list, for_people, paint),
            })?;
            if for_people && !connect.json {
                eprintln!("{} of {} tasks", list.tasks.len(), list.total_size);
            }
            Ok(Exit::OK)
        })
    }

    /// As many pages as the limit needs, as one.
    async fn pages(&self, client: &Client) -> Result<ListTasksResponse, Error> {
        let limit = self.limit as usize;
        let mut request = ListTasksRequest {
            context_id: self.context.clone().unwrap_or_default(),
            status: self.state.unwrap_or_default() as i32,
            page_size: Some(limit.min(PAGE_MAX) as i32),
            history_length: Some(0),
            ..ListTasksRequest::default()
        };
        let endpoint = match &self.agent {
            Some(agent) => client.agent(agent),
            None => client.clone(),
        };
        let mut all: ListTasksResponse = endpoint.list_tasks(request.clone()).await?;
        while !all.next_page_token.is_empty() && all.tasks.len() < limit {
            request.page_token = std::mem::take(&mut all.next_page_token);
            let page = endpoint.list_tasks(request.clone()).await?;
            all.tasks.extend(page.tasks);
            all.next_page_token = page.next_page_token;
        }
        all.tasks.truncate(limit);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_named_as_it_is_printed() {
        assert_eq!(state("input-required"), Ok(TaskState::InputRequired));
        assert_eq!(state("FAILED"), Ok(TaskState::Failed));
        assert_eq!(state("auth_required"), Ok(TaskState::AuthRequired));
        assert!(state("broken").is_err());
    }
}
