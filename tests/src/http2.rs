//! HTTP/2 clients with chosen source addresses: all of 127.0.0.0/8 is this machine, so one test can
//! act as many clients. They can send requests that no real client sends.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
};

use bytes::Bytes;
use futures::{StreamExt, stream};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody, combinators::BoxBody};
use hyper::{
    body::{Frame, Incoming},
    client::conn::http2::{Builder, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpSocket, task::JoinHandle};

pub type Body = BoxBody<Bytes, Infallible>;

/// One connection. The drop closes it.
pub struct Connection {
    pub sender: SendRequest<Body>,
    driven: JoinHandle<()>,
    host: SocketAddr,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driven.abort();
    }
}

impl Connection {
    /// Connects from 127.0.0.`from`.
    pub async fn open(from: u8, to: SocketAddr) -> hyper::Result<Self> {
        Self::with_window(from, to, None).await
    }

    /// [`open`](Self::open) with a flow-control window per stream; `None` is the default size.
    pub async fn with_window(from: u8, to: SocketAddr, window: Option<u32>) -> hyper::Result<Self> {
        let socket = TcpSocket::new_v4().expect("a socket");
        let source = SocketAddr::from((Ipv4Addr::new(127, 0, 0, from), 0));
        socket.bind(source).expect("all of 127.0.0.0/8 is this machine");
        let stream = socket.connect(to).await.expect("the port listens");
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let driven = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, driven, host: to })
    }

    /// Whether the server has closed it.
    pub fn is_closed(&self) -> bool {
        self.driven.is_finished() || self.sender.is_closed()
    }

    pub fn request(&self, path: &str, kind: &str, body: Body) -> Request<Body> {
        Request::post(format!("http://{}{path}", self.host))
            .header("content-type", kind)
            .header("a2a-version", "1.0")
            .body(body)
            .expect("a request")
    }

    /// Sends a gRPC call.
    pub async fn grpc(&mut self, path: &str, message: &[u8]) -> hyper::Result<Response<Incoming>> {
        let request = self.request(path, "application/grpc", framed(message));
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// One message with its gRPC frame.
pub fn framed(message: &[u8]) -> Body {
    let length = u32::try_from(message.len()).expect("a small message").to_be_bytes();
    let framed = [&[0], &length[..], message].concat();
    Full::new(Bytes::from(framed)).boxed()
}

/// A body of `bytes` zeros that never ends.
pub fn endless(bytes: usize) -> Body {
    const CHUNK: usize = 16 * 1024;
    let chunks = stream::iter(std::iter::repeat_n(Bytes::from_static(&[0; CHUNK]), bytes / CHUNK));
    let frames = chunks.map(|chunk| Ok(Frame::data(chunk))).chain(stream::pending());
    BodyExt::boxed(StreamBody::new(frames))
}

/// The gRPC status of an ended answer, from its headers or trailers.
pub async fn grpc_status(answer: Response<Incoming>) -> String {
    let code = |headers: &HeaderMap| Some(headers.get("grpc-status")?.to_str().ok()?.to_owned());
    if let Some(code) = code(answer.headers()) {
        return code;
    }
    let whole = answer.into_body().collect().await.expect("the answer ends");
    whole.trailers().and_then(code).expect("a gRPC answer has a status")
}
