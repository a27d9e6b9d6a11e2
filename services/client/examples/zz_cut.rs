use faultline_client::*;
#[tokio::main]
async fn main() {
    let c = Client::builder("http://127.0.0.1:9912").binding(Binding::Grpc).reconnect(Reconnect{max:0,poll:None,..Default::default()}).direct().unwrap();
    let t = std::time::Instant::now();
    println!("{:?} {:?}", c.run("quiet").await.map_err(|e| (e.to_string(), e.failure().and_then(|f| f.private()).map(|p| p.for_log().to_owned()))).map(|_| ()), t.elapsed());
}
