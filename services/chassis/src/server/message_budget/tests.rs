//! Bodies that a test feeds frame by frame, behind the budget.

use std::{future::poll_fn, time::Duration};

use futures::{SinkExt, channel::mpsc};
use http_body_util::StreamBody;
use tokio::time::{Instant, timeout};

use super::{
    super::{
        connection::Connection,
        quota::{QuotaTable, Quotas},
        streams,
    },
    *,
};
use crate::error_chain::causes;

const WAITING: usize = limits::WAITING_REQUEST_BYTES;

/// A client that may have so many bytes on each connection, and its table of quotas.
fn client_with(connection_bytes: usize, total: usize) -> Client {
    let quotas = Quotas::default().with(Resource::MessageBytes, total, total);
    let address = QuotaTable::new(quotas).address([127, 0, 0, 1].into(), false);
    let connection = Connection::new(address, connection_bytes);
    let mut known = None;
    streams::within(&connection, || known = client());
    known.expect("it is within a connection")
}

struct Fed {
    feed: mpsc::UnboundedSender<Result<Frame<Bytes>, axum::Error>>,
    body: Metered,
}

impl Fed {
    fn new(client: &Client, is_stream: bool) -> Self {
        let (feed, frames) = mpsc::unbounded();
        let inner = Body::new(StreamBody::new(frames));
        let framing = Framing { is_stream, ..Framing::default() };
        let client = client.clone();
        Self { feed, body: Metered { inner, framing, client, reserved: None, deadline: None } }
    }

    /// Reads a frame, and then looks whether there is another, as tonic does.
    async fn read(&mut self, data: &[u8]) -> Result<(), Failure> {
        self.feed.send(Ok(Frame::data(Bytes::copy_from_slice(data)))).await.expect("it is read");
        assert!(self.next().await?.is_some());
        match timeout(Duration::from_millis(1), self.next()).await {
            Ok(ended) => ended.map(drop),
            Err(_) => Ok(()),
        }
    }

    async fn next(&mut self) -> Result<Option<Frame<Bytes>>, Failure> {
        let next = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await.transpose();
        next.map_err(|error| {
            let status = causes(&error).find_map(|cause| cause.downcast_ref::<Status>());
            Failure::from(status.expect("the error is a status").clone())
        })
    }

    fn charged(&self) -> usize {
        self.body.reserved.as_ref().map_or(0, ReservedBytes::amount)
    }
}

fn prefix(length: u32) -> Vec<u8> {
    [&[0][..], &length.to_be_bytes()].concat()
}

fn message(length: u32) -> Vec<u8> {
    [prefix(length), vec![7; length as usize]].concat()
}

#[tokio::test(start_paused = true)]
async fn stream_is_charged_for_its_unfinished_message_alone() {
    let client = client_with(100_000, 100_000);
    let mut body = Fed::new(&client, true);
    for _ in 0..100 {
        // Far more than the budget in all: three messages, one of them empty.
        body.read(&[message(900), message(0), message(500)].concat()).await.unwrap();
        assert_eq!(body.charged(), 0);
    }
    body.read(&[&message(900)[..], &prefix(3000)[..3]].concat()).await.unwrap();
    assert_eq!(body.charged(), WAITING, "the length is not known yet");
    body.read(&[&prefix(3000)[3..], &[7; 10][..]].concat()).await.unwrap();
    assert_eq!(body.charged(), WAITING + 3000);
    body.read(&[&[7; 2990][..], &message(20), &message(40)[..7]].concat()).await.unwrap();
    assert_eq!(body.charged(), WAITING + 40);
    body.read(&[7; 38]).await.unwrap();
    assert_eq!(body.charged(), 0);
}

#[tokio::test(start_paused = true)]
async fn single_message_is_charged_until_its_request_ends() {
    let client = client_with(100_000, 100_000);
    let mut body = Fed::new(&client, false);
    body.read(&message(3000)).await.unwrap();
    assert_eq!(body.charged(), WAITING + 3000, "the end of the request has not come");
    body.read(&message(2000)).await.unwrap();
    assert_eq!(body.charged(), WAITING + 5000, "one message too many is kept as well");
    body.feed.close_channel();
    assert!(body.next().await.unwrap().is_none());
    assert_eq!(body.charged(), 0);
}

#[tokio::test(start_paused = true)]
async fn message_above_the_budget_is_refused_and_others_continue() {
    let client = client_with(20_000, 30_000);
    let mut first = Fed::new(&client, false);
    first.read(&prefix(10_000)).await.unwrap();
    let mut second = Fed::new(&client, true);
    let refused = second.read(&prefix(10_000)).await.unwrap_err();
    assert_eq!(refused.row().name, "RATE_LIMITED");
    assert!(refused.retry_after.is_some());
    assert!(second.next().await.unwrap().is_none(), "nothing more of it is read");
    assert_eq!(second.charged(), 0);
    drop(first);
    let mut third = Fed::new(&client, true);
    third.read(&prefix(10_000)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn unfinished_message_times_out_and_an_idle_stream_does_not() {
    let client = client_with(100_000, 100_000);
    let start = Instant::now();
    let mut silent = Fed::new(&client, true);
    silent.read(&message(10)).await.unwrap();
    let waited = timeout(limits::BODY_READ_TIMEOUT * 3, silent.next()).await;
    assert!(waited.is_err(), "no message has begun");
    for is_stream in [true, false] {
        let start = Instant::now();
        let mut body = Fed::new(&client, is_stream);
        body.read(&prefix(100)).await.unwrap();
        let refused = body.next().await.unwrap_err();
        assert_eq!(refused.row().name, "DEADLINE_EXCEEDED");
        assert!(start.elapsed() <= limits::BODY_READ_TIMEOUT + Duration::from_secs(1));
    }
    assert!(start.elapsed() > limits::BODY_READ_TIMEOUT);
}
