//! Webhook server for tests: records every push notification and answers with scripted statuses.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// One received request.
#[derive(Clone, Debug)]
pub struct Notification {
    pub headers: HeaderMap,
    pub body: Value,
    /// The status of the answer; `None` without an answer.
    pub status: Option<u16>,
}

/// A running webhook. Listens until its drop.
pub struct Webhook {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Notification>>>,
    _server: AbortOnDropHandle<()>,
}

/// The status for the request of this number, from 0; `None` leaves the request without an answer.
type Answers = dyn Fn(usize) -> Option<u16> + Send + Sync;

impl Webhook {
    /// A webhook that accepts every notification.
    pub async fn start() -> Self {
        Self::answering(|_| Some(200)).await
    }

    pub async fn answering(answers: impl Fn(usize) -> Option<u16> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("a listener has an address");
        let received = Arc::new(Mutex::new(Vec::new()));
        let server = serve(listener, Arc::clone(&received), Arc::new(answers));
        Self { address, received, _server: AbortOnDropHandle::new(tokio::spawn(server)) }
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook?query=canary", self.address)
    }

    pub fn received(&self) -> Vec<Notification> {
        lock(&self.received).clone()
    }

    /// Accepted status updates, in order.
    pub fn accepted(&self) -> Vec<Value> {
        let accepted = self.received().into_iter().filter(|n| n.status == Some(200));
        accepted.map(|n| n.body["statusUpdate"].clone()).collect()
    }

    /// States of the accepted updates, in order.
    pub fn states(&self) -> Vec<String> {
        let state = |update: Value| update["status"]["state"].as_str().map(str::to_owned);
        self.accepted().into_iter().filter_map(state).collect()
    }
}

fn lock(received: &Mutex<Vec<Notification>>) -> parking_lot::MutexGuard<'_, Vec<Notification>> {
    received.lock()
}

async fn serve(
    listener: TcpListener,
    received: Arc<Mutex<Vec<Notification>>>,
    answers: Arc<Answers>,
) {
    // Connections end with the webhook.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let received = Arc::clone(&received);
        let answers = Arc::clone(&answers);
        let service = service_fn(move |request| {
            receive(request, Arc::clone(&received), Arc::clone(&answers))
        });
        connections.spawn(async move {
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn receive(
    request: Request<Incoming>,
    received: Arc<Mutex<Vec<Notification>>>,
    answers: Arc<Answers>,
) -> Result<Response<Empty<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(|whole| whole.to_bytes()).unwrap_or_default();
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let status = {
        let mut received = lock(&received);
        let status = answers(received.len());
        received.push(Notification { headers: head.headers, body, status });
        status
    };
    match status {
        None => std::future::pending().await,
        Some(status) => {
            let mut response = Response::new(Empty::new());
            *response.status_mut() = http::StatusCode::from_u16(status).expect("a status");
            Ok(response)
        }
    }
}
