//! `faultline top`: a live view of the mesh in the terminal, refreshed every second.

use std::{
    io::{self, IsTerminal, Write, stdin, stdout},
    time::{Duration, SystemTime},
};

use anyhow::Context;
use faultline_client::{Client, Error};
use faultline_proto::{
    Failure, json, reason,
    v1::{ActivityRequest, AgentsRequest, FailuresRequest, WorkersRequest},
};
use futures::{FutureExt, future::LocalBoxFuture};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, MissedTickBehavior, interval, timeout},
};

use crate::{
    client::connect::Connect,
    cmd::{
        explain::render_explanation,
        since,
        terminal::{self, Key, Terminal},
    },
    exit::Exit,
    output::{
        failures,
        grid::cut,
        style::Style,
        text::{folded, line, span},
        top::{Screen, ScreenContext, Snapshot, frame},
    },
    task_tree,
};

const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for one refresh; after it the view reports that the mesh does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The window of agent activity, in buckets of a second; the current second is one more bucket.
const ACTIVITY_WINDOW: Duration = Duration::from_secs(60);
/// Buckets of the sparkline of each failure.
const BUCKETS: u64 = 60;
const SCREEN_KEYS: &str = "q quit   j/k select   enter explain the last task of a failure";
const PAGER_KEYS: &str = "q back   j/k scroll";

const EXAMPLES: &str = "\
Examples:
  faultline top
  faultline top --since 6h              failures of the last six hours
  faultline top --once                  one frame as text; the default for a pipe
  faultline top --json | jq '.agents.agents[].queued'

Keys: q quits, j and k or the arrows choose a failure, enter explains its last task.";

/// Show agents, workers, queues, rates and failures, live.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The time window of failures, such as 90s, 15m, 6h or 2d.
    #[arg(long, value_name = "TIME", default_value = "15m", value_parser = since::parse)]
    since: Duration,
    /// Print one frame and exit.
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    connect: Connect,
}

impl Args {
    pub(crate) fn run(self) -> anyhow::Result<Exit> {
        let live = stdout().is_terminal() && stdin().is_terminal() && !self.once;
        let connect = self.connect.clone();
        connect.run(async |client| {
            let first = match fetch_snapshot(&client, self.since).await {
                Ok(first) => first,
                Err(error) => return connect.report_error(error, "the mesh cannot be read"),
            };
            if connect.json {
                return print(&format!("{}\n", to_json(&first)));
            }
            if !live {
                let screen =
                    Screen { columns: terminal::size().0, rows: None, style: Style::stdout() };
                let lines =
                    frame(&first, &self.around("", &failures::round(self.since), None, ""), screen);
                let text = lines.iter().map(|line| format!("{}\n", line.trim_end()));
                return print(&text.collect::<String>());
            }
            self.live(client, first).await
        })
    }

    fn around<'a>(
        &'a self,
        foot: &'a str,
        since: &'a str,
        selected: Option<usize>,
        trouble: &'a str,
    ) -> ScreenContext<'a> {
        ScreenContext { gateway: self.connect.gateway(), since, selected, foot, trouble }
    }

    async fn live(&self, client: Client, first: Snapshot) -> anyhow::Result<Exit> {
        let mut ended = signal(SignalKind::terminate()).context("no signals")?;
        let mut resized = signal(SignalKind::window_change()).context("no signals")?;
        let mut tick = interval(REFRESH_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let terminal = Terminal::take().context("no terminal")?;
        let mut keys = terminal::keys();
        let mut view = TopView { seen: first, selected: 0, text: None, unanswered: None };
        let mut pending = None;
        let since = failures::round(self.since);
        loop {
            terminal.show(&self.lines(&view, &since))?;
            tokio::select! {
                _ = tick.tick(), if pending.is_none() => {
                    pending = Some(fetch_snapshot(&client, self.since).boxed_local());
                }
                seen = next_snapshot(&mut pending) => {
                    pending = None;
                    view.update(seen);
                }
                key = keys.recv() => match key {
                    None | Some(Key::Quit | Key::Back) if view.text.is_none() => break,
                    None => break,
                    Some(key) => view.press(key, &client).await,
                },
                _ = resized.recv() => {}
                _ = ended.recv() => break,
            }
        }
        Ok(Exit::OK)
    }

    fn lines(&self, view: &TopView, since: &str) -> Vec<String> {
        let (columns, rows) = terminal::size();
        let screen = Screen { columns, rows: Some(rows), style: Style::stdout() };
        let trouble = match &view.unanswered {
            Some((at, why)) => format!("no response for {}: {why}", span(at.elapsed())),
            None => String::new(),
        };
        if let Some(text) = &view.text {
            return text.lines(screen);
        }
        let selected = Some(view.selected);
        frame(&view.seen, &self.around(SCREEN_KEYS, since, selected, &trouble), screen)
    }
}

/// The state of the live view: the last snapshot, the selection and the text in front of it.
struct TopView {
    seen: Snapshot,
    selected: usize,
    /// The explanation in front of the tables.
    text: Option<TextPager>,
    /// The time since which refreshes fail, and the last error.
    unanswered: Option<(Instant, String)>,
}

impl TopView {
    fn update(&mut self, seen: Result<Snapshot, Error>) {
        match seen {
            Ok(seen) => {
                // The selection stays on the same failure when its row moves.
                let kind = |seen: &Snapshot, at: usize| {
                    let count = seen.failures.failures.get(at)?;
                    Some((count.reason.clone(), count.origin.clone()))
                };
                let chosen = kind(&self.seen, self.selected);
                let all = 0..seen.failures.failures.len();
                let moved = all.clone().find(|at| chosen.is_some() && kind(&seen, *at) == chosen);
                self.selected = moved.unwrap_or(self.selected.min(all.end.saturating_sub(1)));
                (self.seen, self.unanswered) = (seen, None);
            }
            Err(error) => {
                let since = self.unanswered.take().map_or_else(Instant::now, |(since, _)| since);
                self.unanswered = Some((since, line(&Failure::from(error).public_message)));
            }
        }
    }

    async fn press(&mut self, key: Key, client: &Client) {
        let last = self.seen.failures.failures.len().saturating_sub(1);
        match (&mut self.text, key) {
            (Some(_), Key::Quit | Key::Back | Key::Enter) => self.text = None,
            (Some(text), Key::Up) => text.from = text.from.saturating_sub(1),
            (Some(text), Key::Down) => text.from = (text.from + 1).min(text.lines.len()),
            (None, Key::Up) => self.selected = self.selected.saturating_sub(1),
            (None, Key::Down) => self.selected = (self.selected + 1).min(last),
            (None, Key::Enter) => {
                if let Some(count) = self.seen.failures.failures.get(self.selected) {
                    self.text = Some(TextPager::explaining(&count.last_task_id, client).await);
                }
            }
            (None, Key::Quit | Key::Back) => {}
        }
    }
}

/// Scrollable text.
struct TextPager {
    lines: Vec<String>,
    from: usize,
}

impl TextPager {
    async fn explaining(task_id: &str, client: &Client) -> Self {
        let text = match timeout(ANSWER_TIMEOUT, task_tree::load(client, task_id)).await {
            Ok(Ok(found)) => render_explanation(&found, Style::stdout()),
            Ok(Err(error)) => format!("{}\n", Failure::from(error)),
            Err(_) => "the mesh does not answer\n".to_owned(),
        };
        Self { lines: text.lines().map(str::to_owned).collect(), from: 0 }
    }

    fn lines(&self, screen: Screen) -> Vec<String> {
        let all: Vec<_> = self.lines.iter().flat_map(|line| folded(line, screen.columns)).collect();
        let rows = screen.rows.unwrap_or(all.len() + 1).max(1);
        let from = self.from.min(all.len().saturating_sub(rows - 1));
        let mut lines: Vec<_> = all.into_iter().skip(from).take(rows - 1).collect();
        lines.resize(rows - 1, String::new());
        lines.push(screen.style.dim(cut(PAGER_KEYS, screen.columns)));
        lines
    }
}

/// The result of the pending refresh; never returns if none is pending.
async fn next_snapshot<T>(pending: &mut Option<LocalBoxFuture<'_, T>>) -> T {
    match pending {
        Some(pending) => pending.await,
        None => std::future::pending().await,
    }
}

/// Fetches agents, workers, activity and failures concurrently.
async fn fetch_snapshot(client: &Client, since: Duration) -> Result<Snapshot, Error> {
    let activity = ActivityRequest { from: Some(since::ago(ACTIVITY_WINDOW)), bucket_ms: 1000 };
    let from = Some(since::ago(since));
    let failed = FailuresRequest { from, bucket_ms: since::bucket_ms(since, BUCKETS) };
    let agents = AgentsRequest::default();
    let workers = WorkersRequest::default();
    let all = async {
        tokio::try_join!(
            client.mesh("Agents", &agents),
            client.mesh("Workers", &workers),
            client.mesh("Activity", &activity),
            client.mesh("Failures", &failed),
        )
    };
    let (agents, workers, activity, failures) =
        timeout(ANSWER_TIMEOUT, all).await.map_err(|_| {
            let seconds = ANSWER_TIMEOUT.as_secs();
            Failure::new(&reason::DEADLINE_EXCEEDED)
                .because(format!("no answer within {seconds} s"))
        })??;
    Ok(Snapshot { agents, workers, activity, failures, at: SystemTime::now().into() })
}

/// The four responses under the names of their methods.
fn to_json(seen: &Snapshot) -> String {
    format!(
        r#"{{"agents":{},"workers":{},"activity":{},"failures":{}}}"#,
        json::to_string(&seen.agents),
        json::to_string(&seen.workers),
        json::to_string(&seen.activity),
        json::to_string(&seen.failures)
    )
}

fn print(text: &str) -> anyhow::Result<Exit> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(Exit::OK)
}
