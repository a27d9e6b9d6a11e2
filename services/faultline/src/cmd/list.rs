//! `faultline list`: many tasks, newest first.

use std::{
    io::{IsTerminal, stdout},
    time::Duration,
};

use faultline_client::{Client, Error};
use faultline_proto::{
    a2a::{ListTasksRequest, ListTasksResponse, TaskState},
    failure::state_word,
    v1::{TaskFilter, TasksRequest, TasksResponse},
};

use crate::{client::connect::Connect, cmd::since, exit::Exit, output::task};

const PAGE_MAX: usize = 100;
/// Page size for the tasks of all callers.
const VIEW_PAGE_MAX: usize = faultline_chassis::limits::VIEW_PAGE_MAX;

const EXAMPLES: &str = "\
Examples:
  faultline list
  faultline list --state failed --agent script --limit 10
  faultline list --all --reason RATE_LIMITED --since 1h
  faultline list --json | jq '.tasks[].id'";

/// List tasks, the latest change first: those of the caller, or with --all those of all callers.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only tasks of this agent.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only tasks of this context.
    #[arg(long, value_name = "ID", conflicts_with = "all")]
    context: Option<String>,
    /// Only tasks in this state: submitted, working, completed, failed, canceled,
    /// input-required, rejected or auth-required.
    #[arg(long, value_parser = state)]
    state: Option<TaskState>,
    /// The tasks of all callers; requires the scope `operate`.
    #[arg(long)]
    all: bool,
    /// Only tasks that ended with a failure of this root reason.
    #[arg(long, value_name = "REASON", requires = "all")]
    reason: Option<String>,
    /// Only tasks that ended with a failure that originated in this agent.
    #[arg(long, value_name = "NAME", requires = "all")]
    origin: Option<String>,
    /// Only tasks of this principal.
    #[arg(long, value_name = "NAME", requires = "all")]
    principal: Option<String>,
    /// Only tasks that no other task delegated.
    #[arg(long, requires = "all")]
    roots: bool,
    /// Only tasks that changed within this time, such as 90s, 15m, 6h or 2d.
    #[arg(long, value_name = "TIME", requires = "all", value_parser = since::parse)]
    since: Option<Duration>,
    /// The maximum number of tasks.
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
            if self.all {
                return self.run_for_all_callers(&client).await;
            }
            let list = match self.pages(&client).await {
                Ok(list) => list,
                Err(error) => return connect.report_error(error, "list failed"),
            };
            let for_people = stdout().is_terminal();
            connect.print(&list, |style| {
                if list.tasks.is_empty() {
                    String::new()
                } else {
                    task::table(&list, for_people, style)
                }
            })?;
            if for_people && !connect.json {
                eprintln!("{} of {} tasks", list.tasks.len(), list.total_size);
            }
            Ok(Exit::OK)
        })
    }

    async fn run_for_all_callers(&self, client: &Client) -> anyhow::Result<Exit> {
        let list = match self.view_pages(client).await {
            Ok(list) => list,
            Err(error) => return self.connect.report_error(error, "list failed"),
        };
        let for_people = stdout().is_terminal();
        self.connect.print(&list, |style| {
            if list.tasks.is_empty() {
                String::new()
            } else {
                task::summaries(&list, for_people, style)
            }
        })?;
        Ok(Exit::OK)
    }

    async fn view_pages(&self, client: &Client) -> Result<TasksResponse, Error> {
        let text = |given: &Option<String>| given.clone().unwrap_or_default();
        let filter = TaskFilter {
            agent: text(&self.agent),
            states: self.state.map(|state| state as i32).into_iter().collect(),
            reason: text(&self.reason),
            origin: text(&self.origin),
            principal: text(&self.principal),
            from: self.since.map(since::ago),
            to: None,
            roots: self.roots,
        };
        let limit = self.limit as usize;
        let mut all = TasksResponse::default();
        loop {
            let page_size = (limit - all.tasks.len()).min(VIEW_PAGE_MAX) as i32;
            let page_token = std::mem::take(&mut all.next_page_token);
            let request = TasksRequest { filter: Some(filter.clone()), page_size, page_token };
            let page: TasksResponse = client.mesh("Tasks", &request).await?;
            all.tasks.extend(page.tasks);
            all.next_page_token = page.next_page_token;
            if all.next_page_token.is_empty() || all.tasks.len() >= limit {
                return Ok(all);
            }
        }
    }

    /// Reads pages up to the limit and joins them.
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
    fn state_is_parsed_from_its_printed_name() {
        assert_eq!(state("input-required"), Ok(TaskState::InputRequired));
        assert_eq!(state("FAILED"), Ok(TaskState::Failed));
        assert_eq!(state("auth_required"), Ok(TaskState::AuthRequired));
        assert!(state("broken").is_err());
    }
}
