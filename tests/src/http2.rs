//! HTTP/2 clients on addresses of their own: all of 127.0.0.0/8 is this machine, so one test can be
//! many clients. They say what a test wants, also what no real client would.

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

/// One connection. Dropped, it is cut.
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

    /// The same with so much room for the answer of each stream; `None`: as much as is usual.
    pub async fn with_window(from: u8, to: SocketAddr, window: Option<u32>) -> hyper::Result<Self> {
        let socket = TcpSocket::new_v4().expect("there are sockets");
        let source = SocketAddr::from((Ipv4Addr::new(127, 0, 0, from), 0));
        socket.bind(source).expect("all of 127.0.0.0/8 is this machine");
        let stream = socket.connect(to).await.expect("somebody listens");
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

    /// Asks for something by gRPC.
    pub async fn grpc(&mut self, path: &str, message: &[u8]) -> hyper::Result<Response<Incoming>> {
        let request = self.request(path, "application/grpc", framed(message));
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// One message as gRPC frames it.
pub fn framed(message: &[u8]) -> Body {
    let length = u32::try_from(message.len()).expect("a small message").to_be_bytes();
    let framed = [&[0], &length[..], message].concat();
    Full::new(Bytes::from(framed)).boxed()
}

/// So many bytes of zeros, then nothing: the body does not end.
pub fn endless(bytes: usize) -> Body {
    const PIECE: usize = 16 * 1024;
    let pieces = stream::iter(std::iter::repeat_n(Bytes::from_static(&[0; PIECE]), bytes / PIECE));
    let frames = pieces.map(|piece| Ok(Frame::data(piece))).chain(stream::pending());
    BodyExt::boxed(StreamBody::new(frames))
}

/// The gRPC status of an answer that is over, wherever it stands.
pub async fn grpc_status(answer: Response<Incoming>) -> String {
    let code = |headers: &HeaderMap| Some(headers.get("grpc-status")?.to_str().ok()?.to_owned());
    if let Some(code) = code(answer.headers()) {
        return code;
    }
    let whole = answer.into_body().collect().await.expect("an answer that ends");
    whole.trailers().and_then(code).expect("gRPC has a status")
}
