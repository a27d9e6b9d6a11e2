//! Outbox of the worker: messages that wait to be written to the coordinator. The stream of a
//! connection reads the outbox directly, without a writer task or a channel, and takes all waiting
//! reports in one message (batching) whenever the connection can write.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use faultline_chassis::limits;
use faultline_proto::v1;
use futures::Stream;
use parking_lot::Mutex;

/// Size limit of one message of reports, in bytes: a message with all reports of the largest size
/// would exceed the limit of the coordinator.
const MESSAGE_BYTES: usize = limits::MESSAGE_BYTES_MAX;

/// `FromWorker` as it is written. A report is encoded once; the same bytes are kept, sent and,
/// after a reconnect, sent again. The encoding on the wire is that of `FromWorker`.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OutgoingMessage {
    #[prost(message, optional, tag = "1")]
    hello: Option<v1::Hello>,
    #[prost(message, optional, tag = "2")]
    reports: Option<EncodedReports>,
    #[prost(message, optional, tag = "3")]
    heartbeat: Option<v1::Heartbeat>,
    #[prost(message, optional, tag = "4")]
    drain: Option<v1::Drain>,
    #[prost(message, optional, tag = "5")]
    slot: Option<v1::Slot>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EncodedReports {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    reports: Vec<Bytes>,
}

/// Shared by the attempts and the connection. While no connection is open, pushed reports are
/// dropped: each attempt keeps its unacknowledged reports and sends them again when the coordinator
/// resumes it.
#[derive(Default)]
pub(crate) struct Outbox(Mutex<State>);

/// The queues of the current connection, under the lock of the [`Outbox`].
#[derive(Default)]
struct State {
    /// Number of the current connection (epoch): a report pushed for one connection is never
    /// written to another.
    epoch: u64,
    open: bool,
    leaving: bool,
    finished: bool,
    hello: Option<v1::Hello>,
    drain: bool,
    heartbeat: bool,
    /// The latest slot update of each attempt.
    slots: VecDeque<v1::Slot>,
    /// Bounded by the flow control of each attempt (`REPORTS_AHEAD_MAX`, `BYTES_AHEAD_MAX`).
    reports: VecDeque<Bytes>,
    waker: Option<Waker>,
}

impl Outbox {
    /// Starts a new connection and ends the one before. The first message is `hello`.
    pub(crate) fn open(self: &Arc<Self>, hello: v1::Hello) -> OutgoingStream {
        let mut state = self.0.lock();
        state.epoch += 1;
        state.open = true;
        state.hello = Some(hello);
        state.drain = state.leaving;
        state.heartbeat = false;
        state.slots.clear();
        state.reports.clear();
        state.waker = None;
        OutgoingStream { outbox: Arc::clone(self), epoch: state.epoch }
    }

    /// Ends the stream of this epoch and drops the messages that it did not write.
    pub(crate) fn close(&self) {
        self.change(|state| {
            state.open = false;
            state.slots.clear();
            state.reports.clear();
            true
        });
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.0.lock().epoch
    }

    /// Adds reports for the connection of `epoch`; `false` if another connection or none is open.
    pub(crate) fn push(&self, epoch: u64, reports: impl Iterator<Item = Bytes>) -> bool {
        let mut current = false;
        self.change(|state| {
            current = state.open && state.epoch == epoch;
            if current {
                state.reports.extend(reports);
            }
            current
        });
        current
    }

    /// Queues a slot update of an attempt in place of an earlier one.
    pub(crate) fn push_slot(&self, epoch: u64, slot: v1::Slot) {
        self.change(|state| {
            let current = state.open && state.epoch == epoch;
            if current {
                let other = |s: &v1::Slot| s.task_id != slot.task_id || s.attempt != slot.attempt;
                state.slots.retain(other);
                state.slots.push_back(slot);
            }
            current
        });
    }

    pub(crate) fn heartbeat(&self) {
        self.change(|state| {
            state.heartbeat = true;
            true
        });
    }

    /// Asks the coordinator of this connection for no new work.
    pub(crate) fn refuse_work(&self) {
        self.change(|state| {
            state.drain = true;
            true
        });
    }

    /// Asks for no new work on this connection and on all later ones.
    pub(crate) fn leave(&self) {
        self.0.lock().leaving = true;
        self.refuse_work();
    }

    /// Closes the outbox for good: no further connection is needed.
    pub(crate) fn finish(&self) {
        self.0.lock().finished = true;
        self.close();
    }

    pub(crate) fn finished(&self) -> bool {
        self.0.lock().finished
    }

    fn change(&self, change: impl FnOnce(&mut State) -> bool) {
        let mut state = self.0.lock();
        let waker = if change(&mut state) { state.waker.take() } else { None };
        // The waker runs without the lock, because the connection takes the lock at once.
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The messages of one connection.
pub(crate) struct OutgoingStream {
    outbox: Arc<Outbox>,
    epoch: u64,
}

impl OutgoingStream {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Stream for OutgoingStream {
    type Item = OutgoingMessage;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<OutgoingMessage>> {
        let mut state = self.outbox.0.lock();
        if state.epoch != self.epoch || !state.open {
            return Poll::Ready(None);
        }
        if let Some(next) = next(&mut state) {
            return Poll::Ready(Some(next));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn next(state: &mut State) -> Option<OutgoingMessage> {
    if let Some(hello) = state.hello.take() {
        return Some(OutgoingMessage { hello: Some(hello), ..OutgoingMessage::default() });
    }
    if std::mem::take(&mut state.drain) {
        return Some(OutgoingMessage { drain: Some(v1::Drain {}), ..OutgoingMessage::default() });
    }
    // A heartbeat precedes the reports, so that a long queue does not delay it.
    if std::mem::take(&mut state.heartbeat) {
        return Some(OutgoingMessage {
            heartbeat: Some(v1::Heartbeat {}),
            ..OutgoingMessage::default()
        });
    }
    if let Some(slot) = state.slots.pop_front() {
        return Some(OutgoingMessage { slot: Some(slot), ..OutgoingMessage::default() });
    }
    let mut bytes = 0;
    let fit = state.reports.iter().take(limits::REPORTS_PER_MESSAGE_MAX).take_while(|report| {
        let first = bytes == 0;
        bytes += report.len();
        first || bytes <= MESSAGE_BYTES
    });
    let count = fit.count();
    (count > 0).then(|| {
        let reports = state.reports.drain(..count).collect();
        OutgoingMessage { reports: Some(EncodedReports { reports }), ..OutgoingMessage::default() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, StreamExt};
    use prost::Message;

    fn report(number: u32) -> v1::Report {
        v1::Report { task_id: "t".into(), attempt: 1, number, body: None }
    }

    fn encoded(numbers: std::ops::Range<u32>) -> impl Iterator<Item = Bytes> {
        numbers.map(|n| report(n).encode_to_vec().into())
    }

    fn take(stream: &mut OutgoingStream) -> Option<v1::FromWorker> {
        let next = stream.next().now_or_never()??;
        Some(v1::FromWorker::decode(next.encode_to_vec().as_slice()).unwrap())
    }

    #[test]
    fn written_messages_decode_as_from_worker() {
        let outbox = Arc::new(Outbox::default());
        let hello = v1::Hello { name: "w".into(), slots: 3, ..v1::Hello::default() };
        let mut stream = outbox.open(hello.clone());
        outbox.push(1, encoded(1..4));
        outbox.heartbeat();
        outbox.leave();
        let reports = v1::Reports { reports: (1..4).map(report).collect() };
        let expected = [
            v1::from_worker::Body::Hello(hello),
            v1::from_worker::Body::Drain(v1::Drain {}),
            v1::from_worker::Body::Heartbeat(v1::Heartbeat {}),
            v1::from_worker::Body::Reports(reports),
        ];
        for body in expected {
            assert_eq!(take(&mut stream), Some(v1::FromWorker { body: Some(body) }));
        }
        assert_eq!(take(&mut stream), None);
    }

    #[test]
    fn message_is_bounded_in_reports_and_in_bytes() {
        let outbox = Arc::new(Outbox::default());
        let mut stream = outbox.open(v1::Hello::default());
        take(&mut stream);
        let count = |message: Option<v1::FromWorker>| match message.and_then(|m| m.body) {
            Some(v1::from_worker::Body::Reports(r)) => r.reports.len(),
            other => panic!("no reports: {other:?}"),
        };
        outbox.push(1, encoded(1..limits::REPORTS_PER_MESSAGE_MAX as u32 + 2));
        assert_eq!(count(take(&mut stream)), limits::REPORTS_PER_MESSAGE_MAX);
        assert_eq!(count(take(&mut stream)), 1);

        let large = v1::Report {
            body: Some(v1::report::Body::Checkpoint(vec![0; MESSAGE_BYTES].into())),
            ..report(1)
        };
        let large = Bytes::from(large.encode_to_vec());
        outbox.push(1, [large.clone(), large].into_iter());
        assert_eq!(count(take(&mut stream)), 1);
        assert_eq!(count(take(&mut stream)), 1);
    }

    #[test]
    fn reports_of_one_connection_are_not_written_to_another() {
        let outbox = Arc::new(Outbox::default());
        let mut old = outbox.open(v1::Hello::default());
        outbox.push(1, encoded(1..2));
        let mut new = outbox.open(v1::Hello::default());
        assert!(!outbox.push(1, encoded(2..3)));
        assert!(take(&mut new).is_some_and(|m| m.body.is_some()), "hello");
        assert_eq!(take(&mut new), None);
        assert_eq!(old.next().now_or_never(), Some(None), "the old stream has ended");
    }
}
