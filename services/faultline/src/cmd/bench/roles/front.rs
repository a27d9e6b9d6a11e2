//! The first hop of the bare chain: axum, JSON-RPC and ProtoJSON as in the gateway, and a call to
//! the middle. It validates no more than it needs.

use std::{
    collections::HashMap,
    convert::Infallible,
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderValue, Response, StatusCode, header::CONTENT_TYPE},
};
use faultline_chassis::{Drain, client::Channel, limits, process::print_ready_line, server};
use faultline_proto::{
    a2a::{SendMessageRequest, SendMessageResponse, a2a_service_client::A2aServiceClient},
    json::{self, ProtoJson},
    v1::{Call, Caller, Reply, call, link_client::LinkClient, reply},
};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
};
use tonic::Streaming;

use crate::cmd::bench::roles::Hop;

pub(crate) async fn serve(to: &str, hop: Hop) -> anyhow::Result<()> {
    let channel = Channel::without_token(to)?;
    let link = match hop {
        Hop::Unary => None,
        Hop::Link => Some(Link::open(channel.clone()).await?),
    };
    let front = Front { client: A2aServiceClient::new(channel), link };
    let router = Router::new().fallback(handle).with_state(Arc::new(front));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    print_ready_line(&format!("ready http://{}", listener.local_addr()?))?;
    server::serve(listener, router, Drain::new(), Duration::ZERO).await;
    Ok(())
}

struct Front {
    client: A2aServiceClient<Channel>,
    link: Option<Link>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: &'a str,
    #[serde(borrow)]
    params: &'a RawValue,
}

async fn handle(State(front): State<Arc<Front>>, body: Bytes) -> Response<Body> {
    front.answer(&body).await.unwrap_or_else(|error| {
        let mut response = Response::new(Body::from(format!("{error:#}")));
        *response.status_mut() = StatusCode::BAD_GATEWAY;
        response
    })
}

impl Front {
    async fn answer(&self, body: &[u8]) -> anyhow::Result<Response<Body>> {
        let envelope: Envelope<'_> = serde_json::from_slice(body)?;
        let id = envelope.id.get().to_owned();
        let request: SendMessageRequest = json::from_str(envelope.params.get())?;
        match envelope.method {
            "SendMessage" => {
                let sent = match &self.link {
                    Some(link) => link.send(request).await?,
                    None => self.client.clone().send_message(request).await?.into_inner(),
                };
                let mut out = Vec::with_capacity(1024);
                write_result(&id, &sent, &mut out);
                Ok(response("application/json", Body::from(out)))
            }
            "SendStreamingMessage" => {
                let frames = self.client.clone().send_streaming_message(request).await?;
                Ok(response("text/event-stream", events(id, frames.into_inner())))
            }
            other => bail!("no such method: {other}"),
        }
    }
}

fn response(kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn write_result(id: &str, message: &impl ProtoJson, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(br#","result":"#);
    json::write(message, out);
    out.push(b'}');
}

fn events<T: ProtoJson + Send + 'static>(id: String, frames: Streaming<T>) -> Body {
    let mut number = 0;
    let events = frames.map(move |frame| {
        number += 1;
        let mut out = Vec::with_capacity(1024);
        // An error shows in the body, where the load generator misses the end of the task.
        let _ = match frame {
            Ok(frame) => {
                let _ = write!(out, "id: {number}\ndata: ");
                write_result(&id, &frame, &mut out);
                write!(out, "\n\n")
            }
            Err(status) => write!(out, "data: {status}\n\n"),
        };
        Ok::<_, Infallible>(Bytes::from(out))
    });
    Body::from_stream(events)
}

type Waiting = Mutex<HashMap<u64, oneshot::Sender<SendMessageResponse>>>;

/// Many concurrent calls on one stream, distinguished by numbers.
struct Link {
    calls: mpsc::Sender<Call>,
    waiting: Arc<Waiting>,
    last_id: AtomicU64,
}

impl Link {
    async fn open(channel: Channel) -> anyhow::Result<Self> {
        let (calls, mut receiver) = mpsc::channel(limits::OUTBOX_MAX);
        let outgoing = stream::poll_fn(move |cx| receiver.poll_recv(cx));
        let replies = LinkClient::new(channel).open(outgoing).await.context("no link")?;
        let waiting = Arc::new(Waiting::default());
        tokio::spawn(listen(replies.into_inner(), Arc::clone(&waiting)));
        Ok(Self { calls, waiting, last_id: AtomicU64::new(0) })
    }

    async fn send(&self, request: SendMessageRequest) -> anyhow::Result<SendMessageResponse> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().insert(id, sender);
        let caller = Some(Caller::default());
        let body = Some(call::Body::Send(request));
        self.calls.send(Call { id, caller, body }).await.context("the link is gone")?;
        receiver.await.context("the link is gone")
    }
}

async fn listen(mut replies: Streaming<Reply>, waiting: Arc<Waiting>) {
    while let Ok(Some(reply)) = replies.message().await {
        let waiter = waiting.lock().remove(&reply.id);
        if let (Some(waiter), Some(reply::Body::Sent(sent))) = (waiter, reply.body) {
            let _ = waiter.send(sent);
        }
    }
}
