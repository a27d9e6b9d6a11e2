//! The three bindings behind one door: an operation goes in, its answer or its events come out.

use bytes::Bytes;
use faultline_proto::json::{self, ProtoJson};
use http::{HeaderMap, Method};
use uuid::Uuid;

use crate::{
    events::Events,
    grpc::Grpc,
    http::{Exchange, Form, Http},
    operation::{Operation, Request, segment},
    retry::Fault,
};

/// What an operation is answered with, on every binding.
pub(crate) trait Answer: ProtoJson + prost::Message + Default + 'static {}

impl<A: ProtoJson + prost::Message + Default + 'static> Answer for A {}

/// Where operations go and what they travel on.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    /// Everything is posted to one URL.
    JsonRpc {
        http: Http,
        url: String,
    },
    /// Each operation has a verb and a route below the URL.
    HttpJson {
        http: Http,
        url: String,
    },
    Grpc(Grpc),
}

impl Transport {
    /// For whoever the request names, or else the `tenant`.
    pub(crate) async fn call<Q: Request, A: Answer>(
        &self,
        mut operation: Operation<Q>,
        tenant: &str,
        headers: HeaderMap,
    ) -> Result<A, Fault> {
        address(&mut operation.request, tenant);
        let mute = operation.mute;
        match self {
            Transport::JsonRpc { http, url } => {
                let answered = http.call(enveloped(url, &operation, headers)).await?;
                answered.read(Form::Enveloped, mute)
            }
            Transport::HttpJson { http, url } => {
                let answered = http.call(bare(url, operation, headers)).await?;
                answered.read(Form::Bare, mute)
            }
            Transport::Grpc(grpc) => grpc.call(operation, headers).await,
        }
    }

    pub(crate) async fn stream<Q: Request>(
        &self,
        mut operation: Operation<Q>,
        tenant: &str,
        headers: HeaderMap,
    ) -> Result<Events, Fault> {
        address(&mut operation.request, tenant);
        match self {
            Transport::JsonRpc { http, url } => {
                http.stream(enveloped(url, &operation, headers)).await
            }
            Transport::HttpJson { http, url } => http.stream(bare(url, operation, headers)).await,
            Transport::Grpc(grpc) => grpc.stream(operation, headers).await,
        }
    }
}

fn address(request: &mut impl Request, tenant: &str) {
    if request.tenant().is_empty() {
        tenant.clone_into(request.tenant());
    }
}

fn enveloped<Q: Request>(url: &str, operation: &Operation<Q>, headers: HeaderMap) -> Exchange {
    // One exchange carries one call: only whoever reads logs needs the id to tell calls apart.
    let mut body =
        format!(r#"{{"jsonrpc":"2.0","id":"{}","method":""#, Uuid::now_v7()).into_bytes();
    body.extend_from_slice(operation.name.as_bytes());
    body.extend_from_slice(br#"","params":"#);
    json::write(&operation.request, &mut body);
    body.push(b'}');
    Exchange {
        verb: Method::POST,
        url: url.to_owned(),
        headers,
        body: Some(body.into()),
        form: Form::Enveloped,
    }
}

fn bare<Q: Request>(url: &str, operation: Operation<Q>, headers: HeaderMap) -> Exchange {
    let Operation { mut request, verb, path, query, .. } = operation;
    let tenant = std::mem::take(request.tenant());
    let mut url = url.to_owned();
    if !tenant.is_empty() {
        url.push('/');
        url.push_str(&segment(&tenant));
    }
    url.push_str(&path);
    for (place, (name, value)) in query.iter().enumerate() {
        url.push(if place == 0 { '?' } else { '&' });
        url.push_str(&format!("{name}={}", segment(value)));
    }
    let body = (verb == Method::POST).then(|| Bytes::from(json::to_vec(&request)));
    Exchange { verb, url, headers, body, form: Form::Bare }
}
