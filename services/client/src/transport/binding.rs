//! Dispatch of an operation to one of the three bindings: JSON-RPC, HTTP+JSON or gRPC.

use bytes::Bytes;
use faultline_proto::json::{self, ProtoJson};
use http::{HeaderMap, Method};
use uuid::Uuid;

use crate::{
    protocol::operation::{Operation, Request, segment},
    transport::{
        a2a_v03,
        events::Events,
        grpc::Grpc,
        http::{BodyFormat, Http, HttpRequest},
        retry::Fault,
    },
};

/// A response message, on every binding.
pub(crate) trait ResponseMessage: ProtoJson + prost::Message + Default + 'static {}

impl<A: ProtoJson + prost::Message + Default + 'static> ResponseMessage for A {}

/// The binding, its connection and its URL.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    /// All operations are posted to one URL.
    JsonRpc {
        http: Http,
        url: String,
        /// The server supports A2A 0.3 only.
        v03: bool,
    },
    /// Each operation has a verb and a route below the URL.
    HttpJson {
        http: Http,
        url: String,
        v03: bool,
    },
    Grpc(Grpc),
}

impl Transport {
    /// Calls the tenant of the request, or else `tenant`.
    pub(crate) async fn call<Q: Request, A: ResponseMessage>(
        &self,
        mut operation: Operation<Q>,
        tenant: &str,
        headers: HeaderMap,
    ) -> Result<A, Fault> {
        set_tenant(&mut operation.request, tenant);
        let empty_response = operation.empty_response;
        let (http, exchange) = match self {
            Transport::JsonRpc { http, url, v03 } => (http, rpc(url, &operation, headers, *v03)?),
            Transport::HttpJson { http, url, v03 } => (http, rest(url, operation, headers, *v03)?),
            Transport::Grpc(grpc) => return grpc.call(operation, headers).await,
        };
        let form = exchange.form;
        http.call(exchange).await?.read(form, empty_response)
    }

    pub(crate) async fn stream<Q: Request>(
        &self,
        mut operation: Operation<Q>,
        tenant: &str,
        headers: HeaderMap,
    ) -> Result<Events, Fault> {
        set_tenant(&mut operation.request, tenant);
        match self {
            Transport::JsonRpc { http, url, v03 } => {
                http.stream(rpc(url, &operation, headers, *v03)?).await
            }
            Transport::HttpJson { http, url, v03 } => {
                http.stream(rest(url, operation, headers, *v03)?).await
            }
            Transport::Grpc(grpc) => grpc.stream(operation, headers).await,
        }
    }

    /// Whether a subscription starts with a snapshot of the task. In 0.3 it does not, and earlier
    /// events would be lost.
    pub(crate) fn subscribes(&self) -> bool {
        !matches!(self, Self::JsonRpc { v03: true, .. } | Self::HttpJson { v03: true, .. })
    }
}

fn rpc<Q: Request>(
    url: &str,
    operation: &Operation<Q>,
    headers: HeaderMap,
    v03: bool,
) -> Result<HttpRequest, Fault> {
    if v03 {
        a2a_v03::enveloped(url, operation, headers)
    } else {
        Ok(enveloped(url, operation, headers))
    }
}

fn rest<Q: Request>(
    url: &str,
    operation: Operation<Q>,
    headers: HeaderMap,
    v03: bool,
) -> Result<HttpRequest, Fault> {
    if v03 { a2a_v03::bare(url, &operation, headers) } else { Ok(bare(url, operation, headers)) }
}

fn set_tenant(request: &mut impl Request, tenant: &str) {
    if request.tenant().is_empty() {
        tenant.clone_into(request.tenant());
    }
}

fn enveloped<Q: Request>(url: &str, operation: &Operation<Q>, headers: HeaderMap) -> HttpRequest {
    let body = json_rpc_request(operation.name, |body| json::write(&operation.request, body));
    let verb = Method::POST;
    let form = BodyFormat::Enveloped;
    HttpRequest { verb, url: url.to_owned(), headers, body: Some(body), form }
}

/// The body of a JSON-RPC call.
pub(crate) fn json_rpc_request(method: &str, params: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    // One HTTP exchange carries one call; the id serves logs alone.
    let mut body =
        format!(r#"{{"jsonrpc":"2.0","id":"{}","method":""#, Uuid::now_v7()).into_bytes();
    body.extend_from_slice(method.as_bytes());
    body.extend_from_slice(br#"","params":"#);
    params(&mut body);
    body.push(b'}');
    body.into()
}

fn bare<Q: Request>(url: &str, operation: Operation<Q>, headers: HeaderMap) -> HttpRequest {
    let Operation { mut request, verb, path, query, .. } = operation;
    let tenant = std::mem::take(request.tenant());
    let mut url = url.to_owned();
    if !tenant.is_empty() {
        url.push('/');
        url.push_str(&segment(&tenant));
    }
    url.push_str(&path);
    push_query(&mut url, &query);
    let body = (verb == Method::POST).then(|| Bytes::from(json::to_vec(&request)));
    HttpRequest { verb, url, headers, body, form: BodyFormat::Bare }
}

pub(crate) fn push_query(url: &mut String, query: &[(&'static str, String)]) {
    for (place, (name, value)) in query.iter().enumerate() {
        url.push(if place == 0 { '?' } else { '&' });
        url.push_str(&format!("{name}={}", segment(value)));
    }
}
