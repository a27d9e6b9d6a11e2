use std::time::{Duration, Instant};
use bytes::Bytes;
use faultline_chassis::Drain;
use faultline_gateway::Config;
use faultline_proto::{a2a::*, v1::{*, link_server::*, call, reply}};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio_stream::{wrappers::{ReceiverStream, TcpListenerStream}};
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
struct Part;
#[tonic::async_trait]
impl Link for Part {
    type OpenStream = ReceiverStream<Result<Reply, Status>>;
    async fn open(&self, r: Request<Streaming<Call>>) -> Result<Response<Self::OpenStream>, Status> {
        let (tx, rx) = tokio::sync::mpsc::channel(16384);
        let mut calls = r.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(c)) = calls.message().await {
                if let Some(call::Body::Send(req)) = c.body {
                    let m = req.message.unwrap();
                    let task = Task { id: "0198f6a2-7c1e-7a43-9f0b-5f2d6f3f8a11".into(), context_id: "0198f6a2-7c1e-7a43-9f0b-1c9be2a7d0c4".into(),
                        status: Some(TaskStatus { state: 3, message: None, timestamp: Some(std::time::SystemTime::now().into()) }),
                        artifacts: vec![Artifact { artifact_id: "a".into(), parts: m.parts.clone(), ..Default::default() }],
                        history: vec![m], metadata: None };
                    let p = Some(send_message_response::Payload::Task(task));
                    tx.send(Ok(Reply { id: c.id, body: Some(reply::Body::Sent(SendMessageResponse { payload: p })) })).await.ok();
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(rx)))
    }
}

fn rt() -> tokio::runtime::Runtime { tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap() }
fn cpu() -> u64 { std::fs::read_to_string("/proc/thread-self/schedstat").unwrap().split(' ').next().unwrap().parse().unwrap() }

fn main() {
    let (atx, arx) = std::sync::mpsc::channel();
    std::thread::spawn(move || rt().block_on(async move {
        let l = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        atx.send(l.local_addr().unwrap()).unwrap();
        tonic::transport::Server::builder().tcp_nodelay(true).add_service(LinkServer::new(Part)).serve_with_incoming(TcpListenerStream::new(l)).await.unwrap();
    }));
    let coord = arx.recv().unwrap();
    let (gtx, grx) = std::sync::mpsc::channel();
    let (ctx, mut crx) = tokio::sync::mpsc::channel::<std::sync::mpsc::Sender<u64>>(1);
    std::thread::spawn(move || rt().block_on(async move {
        let s = Config { listen: ([127,0,0,1],0).into(), coordinator: coord.to_string(), public_url: None }.bind().await.unwrap();
        gtx.send(s.addr()).unwrap();
        tokio::spawn(async move { while let Some(a) = crx.recv().await { a.send(cpu()).unwrap(); } });
        s.run(Drain::new()).await.unwrap();
    }));
    let gw = grx.recv().unwrap();
    let body = Bytes::from(serde_json::json!({"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"messageId":"0198f6a2-7c1e-7a43-9f0b-5f2d6f3f8a11","role":"ROLE_USER","parts":[{"text":"x".repeat(60)}]}}}).to_string());
    println!("body {} bytes", body.len());
    let ask_cpu = || { let (t, r) = std::sync::mpsc::channel(); ctx.blocking_send(t).unwrap(); r.recv().unwrap() };
    std::thread::sleep(Duration::from_millis(300));
    for conc in [1usize, 16, 64, 256] {
        let n: usize = if conc == 1 { 5000 } else { 60000 };
        let before = ask_cpu();
        let start = Instant::now();
        rt().block_on(async {
            let mut set = tokio::task::JoinSet::new();
            for _ in 0..conc {
                let body = body.clone();
                set.spawn(async move {
                    let s = tokio::net::TcpStream::connect(gw).await.unwrap();
                    s.set_nodelay(true).unwrap();
                    let (mut tx, c) = hyper::client::conn::http1::handshake(TokioIo::new(s)).await.unwrap();
                    tokio::spawn(c);
                    for _ in 0..n / conc {
                        tx.ready().await.unwrap();
                        let r = http::Request::post("/agents/echo").header("host", "x").header("content-type", "application/json").body(Full::new(body.clone())).unwrap();
                        let resp = tx.send_request(r).await.unwrap();
                        let b = resp.into_body().collect().await.unwrap().to_bytes();
                        assert!(b.len() > 200, "{b:?}");
                    }
                });
            }
            while set.join_next().await.is_some() {}
        });
        let (took, after) = (start.elapsed(), ask_cpu());
        println!("conc {conc}: {:.0} req/s, gateway cpu {:.1} us/req", n as f64 / took.as_secs_f64(), (after - before) as f64 / n as f64 / 1000.0);
    }
}
