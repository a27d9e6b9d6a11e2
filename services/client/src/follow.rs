//! A stream that outlives its connection. When one breaks, the next subscribes after the last
//! event that was seen, so a gateway or coordinator may restart and every event still comes once.

use std::time::Duration;

use faultline_proto::Failure;
use tokio::time::{Instant, sleep_until};
use tonic::Code;

use crate::{
    Client, error,
    events::{Event, Events},
    outcome::is_waiting,
};

/// Connections in a row that brought nothing before the follower gives up: about 15 s.
const TRIES_MAX: u32 = 9;
const BACKOFF: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(3);

/// The events of one task, whatever happens to the connection.
#[derive(Debug)]
pub struct Follow {
    client: Client,
    task_id: String,
    events: Option<Events>,
    progress: Progress,
    resume_at: Option<Instant>,
}

/// What was seen, and so where to go on and when to stop. Without a connection, to be tested.
#[derive(Debug, Default)]
struct Progress {
    /// The number of the last event, zero when it had none.
    last: u64,
    /// There was a connection: a server that never answered is no break to wait out.
    connected: bool,
    seen: bool,
    ended: bool,
    waiting: bool,
    tries: u32,
}

impl Progress {
    /// Whether the event is new.
    fn note(&mut self, event: &Event) -> bool {
        if event.seq != 0 && event.seq <= self.last {
            return false;
        }
        self.seen = true;
        self.tries = 0;
        self.last = event.seq.max(self.last);
        self.ended = event.is_last();
        self.waiting = event.state().map_or(self.waiting, is_waiting);
        true
    }

    /// How long to wait before going on, or the failure when there is no going on.
    fn broke(&mut self, failure: Failure) -> Result<Duration, Failure> {
        self.tries += 1;
        // Without numbers a second subscription would tell again what was told already.
        let resumable = self.last > 0 || !self.seen;
        let passing = failure.code() == Code::Unavailable || failure.may_retry();
        if !self.connected || !resumable || !passing || self.tries > TRIES_MAX {
            return Err(failure);
        }
        let backoff = BACKOFF.saturating_mul(1 << (self.tries - 1).min(16)).min(BACKOFF_MAX);
        let jittered = backoff.mul_f64(rand::random_range(0.5..1.0));
        let told = failure.retry_after().unwrap_or_default().min(BACKOFF_MAX * 10);
        Ok(jittered.max(told))
    }
}

impl Follow {
    pub(crate) fn sent(client: Client, events: Events) -> Self {
        let progress = Progress { connected: true, ..Progress::default() };
        Self { client, task_id: String::new(), events: Some(events), progress, resume_at: None }
    }

    pub(crate) fn task(client: Client, id: &str, after: Option<u64>) -> Self {
        // Zero stands for the beginning, which is what a subscription without a number gives.
        let progress = Progress { last: after.unwrap_or(0), ..Progress::default() };
        Self { client, task_id: id.to_owned(), events: None, progress, resume_at: None }
    }

    /// Of the task that is followed; empty until its first event, and for a bare message.
    pub fn task_id(&self) -> &str {
        &self.task_id
    }

    /// The number of the last event: where another follower would go on.
    pub fn last_seq(&self) -> u64 {
        self.progress.last
    }

    /// The next event; none after the last. A failure ends it: either the server refuses, or it
    /// stayed away too long. May be dropped and called again without losing anything.
    pub async fn next(&mut self) -> Option<Result<Event, Failure>> {
        loop {
            let failure = match &mut self.events {
                None if self.progress.ended => return None,
                None => {
                    if let Some(at) = self.resume_at {
                        sleep_until(at).await;
                    }
                    let after = Some(self.progress.last).filter(|seq| *seq > 0);
                    match self.client.subscribe(&self.task_id, after).await {
                        Ok(events) => {
                            self.progress.connected = true;
                            self.events = Some(events);
                            continue;
                        }
                        Err(failure) => failure,
                    }
                }
                Some(events) => match events.next().await {
                    Some(Ok(event)) if !self.progress.note(&event) => continue,
                    Some(Ok(event)) => {
                        if let Some(id) = event.task_id().filter(|_| self.task_id.is_empty()) {
                            self.task_id = id.to_owned();
                        }
                        return Some(Ok(event));
                    }
                    // After the last event nothing is missed, however the connection ends.
                    _ if self.progress.ended => return self.end(),
                    Some(Err(failure)) => failure,
                    // The server may end a stream where the task waits for its caller.
                    None if self.progress.waiting => return self.end(),
                    None => error::lost("the stream ended before its task did"),
                },
            };
            self.events = None;
            if self.task_id.is_empty() {
                self.progress.ended = true;
                return Some(Err(failure));
            }
            match self.progress.broke(failure) {
                Ok(pause) => self.resume_at = Some(Instant::now() + pause),
                Err(failure) => {
                    self.progress.ended = true;
                    return Some(Err(failure));
                }
            }
        }
    }

    fn end(&mut self) -> Option<Result<Event, Failure>> {
        self.events = None;
        self.progress.ended = true;
        None
    }
}

#[cfg(test)]
mod tests {
    use faultline_proto::{
        a2a::{StreamResponse, TaskState, TaskStatus, TaskStatusUpdateEvent, stream_response},
        reason,
    };

    use super::*;

    fn status(seq: u64, state: TaskState) -> Event {
        let status = Some(TaskStatus { state: state as i32, ..TaskStatus::default() });
        let update = TaskStatusUpdateEvent { status, ..TaskStatusUpdateEvent::default() };
        let payload = Some(stream_response::Payload::StatusUpdate(update));
        Event { seq, response: StreamResponse { payload } }
    }

    #[test]
    fn an_event_counts_once_and_the_final_one_ends_it() {
        let mut progress = Progress::default();
        assert!(progress.note(&status(1, TaskState::Working)));
        assert!(progress.note(&status(2, TaskState::InputRequired)));
        assert!(progress.waiting);
        assert!(!progress.note(&status(2, TaskState::InputRequired)));
        assert!(progress.note(&status(3, TaskState::Completed)));
        assert!(progress.ended && !progress.waiting);
    }

    #[test]
    fn a_break_is_waited_out_longer_each_time_but_not_for_ever() {
        let mut progress = Progress { last: 1, connected: true, ..Progress::default() };
        let pauses: Vec<_> =
            std::iter::from_fn(|| progress.broke(error::lost("x")).ok()).take(50).collect();
        assert_eq!(pauses.len(), TRIES_MAX as usize);
        assert!(pauses[0] <= BACKOFF && pauses[8] > BACKOFF_MAX / 3 && pauses[8] <= BACKOFF_MAX);
        progress.note(&status(2, TaskState::Working));
        assert!(progress.broke(error::lost("x")).is_ok());
    }

    #[test]
    fn a_refusal_is_final_and_a_delay_is_kept() {
        let mut progress = Progress { last: 1, connected: true, ..Progress::default() };
        assert!(progress.broke(Failure::new(&reason::TASK_NOT_FOUND)).is_err());
        let told = Failure::new(&reason::OVERLOADED).with_retry_after(Duration::from_secs(7));
        assert_eq!(progress.broke(told).unwrap(), Duration::from_secs(7));
    }

    #[test]
    fn a_server_that_never_was_or_gives_no_numbers_is_not_waited_for() {
        let mut progress = Progress::default();
        assert!(progress.broke(error::lost("x")).is_err());
        progress.connected = true;
        assert!(progress.broke(error::lost("x")).is_ok());
        progress.note(&status(0, TaskState::Working));
        assert!(progress.broke(error::lost("x")).is_err());
    }
}
