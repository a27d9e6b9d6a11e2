//! Behaviour of client and server on broken connections, over real sockets: statuses that tonic
//! reports wrongly must be corrected, and no input of a peer may panic.
#![allow(clippy::unwrap_used)]

mod puppet;

use std::{net::SocketAddr, pin::Pin, time::Duration};

use axum::{Router, body::Body, response::Response, routing::any};
use faultline_chassis::{
    Drain, Metrics, Timeouts,
    admin::{Admin, Probes},
    client::Channel,
    limits, server,
};
use faultline_proto::{
    Failure, reason,
    v1::{
        AgentsRequest, AgentsResponse, FromWorker, ToWorker,
        hub_client::HubClient,
        hub_server::{Hub, HubServer},
        mesh_client::MeshClient,
    },
};
use futures::{Stream, StreamExt};
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{io::AsyncReadExt, net::TcpListener};
use tonic::{Code, Request, Response as Answer, Status, Streaming, service::Routes};

/// A service that behaves as the name of the agent or task demands.
struct Puppet;

type ToWorkers = Pin<Box<dyn Stream<Item = Result<ToWorker, Status>> + Send>>;

async fn agents(request: AgentsRequest) -> Result<AgentsResponse, Status> {
    match request.name.as_str() {
        "panic" => panic!("on purpose"),
        "hang" => std::future::pending().await,
        "fail" => Err(Failure::new(&reason::CIRCUIT_OPEN).because("not now").into()),
        _ => Ok(AgentsResponse::default()),
    }
}

#[tonic::async_trait]
impl Hub for Puppet {
    type AttachStream = ToWorkers;

    async fn attach(
        &self,
        request: Request<Streaming<FromWorker>>,
    ) -> Result<Answer<ToWorkers>, Status> {
        let panics = request.metadata().contains_key("panic");
        let one = futures::stream::iter([Ok(ToWorker::default())]);
        // Delayed, or the encoder would meet the panic while it still holds the message.
        let rest = futures::stream::once(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!panics, "on purpose");
            std::future::pending().await
        });
        Ok(Answer::new(Box::pin(one.chain(rest))))
    }
}

async fn puppet() -> (SocketAddr, Drain) {
    let hub = Routes::new(HubServer::new(Puppet)).prepare().into_axum_router();
    serve(hub.merge(puppet::agents(agents)).layer(server::GuardLayer)).await
}

async fn serve(router: Router) -> (SocketAddr, Drain) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let drain = Drain::new();
    tokio::spawn(server::serve(listener, router, drain.clone(), Duration::from_millis(50)));
    (addr, drain)
}

fn mesh(addr: SocketAddr) -> MeshClient<Channel> {
    MeshClient::new(Channel::without_token(&addr.to_string()).unwrap())
}

async fn ask(addr: SocketAddr, name: &str, timeouts: Timeouts) -> Result<(), Failure> {
    let mut request = Request::new(AgentsRequest { name: name.to_owned(), ..<_>::default() });
    request.extensions_mut().insert(timeouts);
    let answer = tokio::time::timeout(Duration::from_secs(10), mesh(addr).agents(request)).await;
    answer.expect("an answer in time").map(drop).map_err(Failure::from)
}

fn code(failed: Result<(), Failure>) -> Code {
    failed.expect_err("a failure").code()
}

#[tokio::test]
async fn failure_round_trips_over_the_wire() {
    let (addr, _drain) = puppet().await;
    assert!(ask(addr, "", Timeouts::default()).await.is_ok());
    let failure = ask(addr, "fail", Timeouts::default()).await.unwrap_err();
    assert_eq!(
        (failure.reason.as_str(), failure.public_message.as_str()),
        ("CIRCUIT_OPEN", "not now")
    );
}

#[tokio::test]
async fn panic_is_internal_and_the_connection_survives() {
    let (addr, _drain) = puppet().await;
    let mut client = mesh(addr);
    let panicked =
        client.agents(AgentsRequest { name: "panic".into(), ..<_>::default() }).await.unwrap_err();
    assert_eq!(panicked.code(), Code::Internal);
    assert!(client.agents(AgentsRequest::default()).await.is_ok());
}

#[tokio::test]
async fn expired_deadline_is_deadline_exceeded_on_both_sides() {
    let (addr, _drain) = puppet().await;
    let soon = Timeouts::total(Duration::from_millis(50));
    assert_eq!(code(ask(addr, "hang", soon).await), Code::DeadlineExceeded);
    // The timeout is sent to the server only: its own timer must answer.
    let mut request = Request::new(AgentsRequest { name: "hang".into(), ..<_>::default() });
    request.metadata_mut().insert("grpc-timeout", "50m".parse().unwrap());
    let answer = mesh(addr).agents(request).await.unwrap_err();
    assert_eq!(answer.code(), Code::DeadlineExceeded);
}

async fn attach(addr: SocketAddr, timeouts: Timeouts, panics: bool) -> Streaming<ToWorker> {
    let mut request = Request::new(futures::stream::pending::<FromWorker>());
    request.extensions_mut().insert(timeouts);
    if panics {
        request.metadata_mut().insert("panic", "1".parse().unwrap());
    }
    let mut client = HubClient::new(Channel::without_token(&addr.to_string()).unwrap());
    client.attach(request).await.unwrap().into_inner()
}

async fn end_of(mut stream: Streaming<ToWorker>) -> Code {
    assert!(stream.message().await.unwrap().is_some());
    let end = tokio::time::timeout(Duration::from_secs(5), stream.message()).await;
    end.expect("an end in time").unwrap_err().code()
}

#[tokio::test]
async fn stream_has_a_total_and_an_idle_deadline() {
    let (addr, _drain) = puppet().await;
    let total = Timeouts::total(Duration::from_millis(100));
    assert_eq!(end_of(attach(addr, total, false).await).await, Code::DeadlineExceeded);
    let idle = Timeouts { total: None, idle: Some(Duration::from_millis(100)) };
    assert_eq!(end_of(attach(addr, idle, false).await).await, Code::DeadlineExceeded);
}

#[tokio::test]
async fn panic_in_a_stream_is_internal() {
    let (addr, _drain) = puppet().await;
    assert_eq!(end_of(attach(addr, Timeouts::default(), true).await).await, Code::Internal);
}

#[tokio::test]
async fn absent_or_dying_peer_is_unavailable() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(code(ask(free, "", Timeouts::default()).await), Code::Unavailable);

    // Accepts, reads a little, and closes the connection in the middle of the call.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 64]).await;
    });
    assert_eq!(code(ask(addr, "", Timeouts::default()).await), Code::Unavailable);

    let (addr, drain) = puppet().await;
    let stream = attach(addr, Timeouts::default(), false).await;
    drain.start();
    assert_eq!(end_of(stream).await, Code::Unavailable);
}

fn grpc(headers: &[(&str, &str)]) -> Response {
    let mut response = Response::builder().header("content-type", "application/grpc");
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    response.body(Body::empty()).unwrap()
}

#[tokio::test]
async fn invalid_details_neither_panic_nor_hide_the_code() {
    let answer = || async {
        grpc(&[("grpc-status", "7"), ("grpc-message", "no"), ("grpc-status-details-bin", "%%%")])
    };
    let (addr, _drain) = serve(Router::new().fallback(any(answer))).await;
    let failure = ask(addr, "", Timeouts::default()).await.unwrap_err();
    assert_eq!((failure.code(), failure.public_message.as_str()), (Code::PermissionDenied, "no"));
}

#[tokio::test]
async fn response_without_a_status_is_unknown() {
    let answer = || async { grpc(&[]) };
    let (addr, _drain) = serve(Router::new().fallback(any(answer))).await;
    assert_eq!(code(ask(addr, "", Timeouts::default()).await), Code::Unknown);
}

#[tokio::test]
async fn http_response_of_a_proxy_is_mapped_to_a_code() {
    for (status, expected) in [
        (401, Code::Unauthenticated),
        (403, Code::PermissionDenied),
        (404, Code::Unimplemented),
        (429, Code::Unavailable),
        (503, Code::Unavailable),
        (504, Code::Unavailable),
        (400, Code::Internal),
        (200, Code::Unknown),
    ] {
        let answer = move || async move {
            Response::builder().status(status).body(Body::from("<html>sorry</html>")).unwrap()
        };
        let (addr, _drain) = serve(Router::new().fallback(any(answer))).await;
        assert_eq!(code(ask(addr, "", Timeouts::default()).await), expected, "{status}");
    }
}

#[tokio::test]
async fn client_that_sends_too_little_times_out_and_others_are_served() {
    let (addr, _drain) = puppet().await;
    let mut slow = tokio::net::TcpStream::connect(addr).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut slow, b"P").await.unwrap();
    assert!(ask(addr, "", Timeouts::default()).await.is_ok());
    let patience = faultline_chassis::limits::HEADER_READ_TIMEOUT + Duration::from_secs(2);
    let cut = tokio::time::timeout(patience, slow.read(&mut [0; 64])).await;
    assert!(matches!(cut, Ok(Ok(0) | Err(_))), "{cut:?}");
}

#[tokio::test]
async fn request_that_is_not_protobuf_is_an_invalid_argument() {
    let (addr, _drain) = puppet().await;
    let channel = Channel::without_token(&addr.to_string()).unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    // Field 1 as bytes, while the contract has text.
    let codec = tonic_prost::ProstCodec::<Vec<u8>, AgentsResponse>::default();
    let path = http::uri::PathAndQuery::from_static("/faultline.v1.Mesh/Agents");
    let answer = grpc.unary(Request::new(vec![0xff]), path, codec).await.unwrap_err();
    assert_eq!(answer.code(), Code::InvalidArgument, "{answer:?}");
    assert_eq!(Failure::from(answer).row(), &reason::INVALID_ARGUMENT);
}

#[tokio::test]
async fn connection_with_an_unread_response_is_closed_and_one_that_reads_is_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let listener = server::Listener::from(listener).reader_stall(Duration::from_millis(200));
    let answer = || async { server::charge_until_read(Response::new(Body::from("text"))) };
    let router = Router::new().fallback(any(answer));
    tokio::spawn(server::serve(listener, router, Drain::new(), Duration::from_millis(50)));
    let open = async |window: u32| {
        let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window);
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        (sender, tokio::spawn(connection))
    };
    let ask = || http::Request::get(format!("http://{addr}/")).body(String::new()).unwrap();
    let (mut reader, reading) = open(1024).await;
    for window in [0, 1] {
        let (mut idler, cut) = open(window).await;
        let _unread = idler.send_request(ask()).await.unwrap();
        tokio::time::timeout(Duration::from_secs(10), cut).await.expect("it is cut").unwrap().ok();
        let answer = reader.send_request(ask()).await.unwrap().into_body();
        assert_eq!(answer.collect().await.unwrap().to_bytes(), "text");
    }
    assert!(!reading.is_finished(), "a client that reads is not cut");
}

#[tokio::test]
async fn unread_metrics_are_held_for_a_few_streams_only() {
    let any = "127.0.0.1:0".parse().unwrap();
    let metrics = Metrics::default();
    let admin = Admin::bind(any, metrics, Probes::default()).await.unwrap();
    let addr = admin.addr();
    tokio::spawn(admin.serve());
    let stream = tokio::net::TcpStream::connect(addr).await.unwrap();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let asked = (0..1000).map(|_| {
        let mut sender = sender.clone();
        let ask = http::Request::get(format!("http://{addr}/livez")).body(String::new()).unwrap();
        async move {
            sender.ready().await?;
            sender.send_request(ask).await
        }
    });
    let answers = futures::future::join_all(asked).await;
    let kept = answers.iter().flatten().filter(|answer| answer.status() == 200).count();
    assert!((1..=limits::ADMIN_CONNECTIONS_PER_ADDRESS_MAX).contains(&kept), "{kept} answers wait");
}
