//! A webhook, as a client would run one to be notified: it keeps everything it is sent and answers
//! as it is told.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Notification {
    pub headers: HeaderMap,
    pub body: Value,
    /// What it was answered with; nothing: never.
    pub status: Option<u16>,
}

/// Listens until it is dropped.
pub struct Webhook {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Notification>>>,
    _server: AbortOnDropHandle<()>,
}

/// The status to answer the request of this number with, counted from 0; nothing: keep it waiting.
type Answers = dyn Fn(usize) -> Option<u16> + Send + Sync;

impl Webhook {
    /// One that takes everything.
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

    /// The statuses it took, in the order they came.
    pub fn taken(&self) -> Vec<Value> {
        let taken = self.received().into_iter().filter(|n| n.status == Some(200));
        taken.map(|n| n.body["statusUpdate"].clone()).collect()
    }

    /// The states it took, in the order they came.
    pub fn states(&self) -> Vec<String> {
        let state = |update: Value| update["status"]["state"].as_str().map(str::to_owned);
        self.taken().into_iter().filter_map(state).collect()
    }
}

fn lock(received: &Mutex<Vec<Notification>>) -> std::sync::MutexGuard<'_, Vec<Notification>> {
    received.lock().unwrap_or_else(PoisonError::into_inner)
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
        let take =
            service_fn(move |request| take(request, Arc::clone(&received), Arc::clone(&answers)));
        connections.spawn(async move {
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), take).await;
        });
    }
}

async fn take(
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
