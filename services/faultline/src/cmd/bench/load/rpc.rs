//! Single calls, each on a connection of its own, for the preparation of a section.

use std::{net::SocketAddr, time::Duration};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::cmd::bench::load::http1::Connection;

const TIMEOUT: Duration = Duration::from_secs(60);

/// The bytes of a JSON-RPC request.
pub(crate) fn request(path: &str, method: &str, params: &Value) -> Vec<u8> {
    post(path, &json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }))
}

/// The bytes of a POST request with this JSON body.
pub(crate) fn post(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         a2a-version: 1.0\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// The parameters of a send. `content`: the message without its id and role.
pub(crate) fn message(content: &Value) -> Value {
    let mut message = content.clone();
    message["messageId"] = "m".into();
    message["role"] = "ROLE_USER".into();
    json!({ "message": message })
}

pub(crate) async fn call(address: SocketAddr, request: &[u8]) -> anyhow::Result<Value> {
    let one = async {
        let mut connection = Connection::open(address).await?;
        let (_, body) = connection.exchange(request).await?;
        Ok(serde_json::from_slice(body)?)
    };
    timeout(TIMEOUT, one).await.context("no answer in time")?
}
