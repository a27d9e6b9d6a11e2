//! The form of a JSON answer: what is put around it, and which version of A2A it is written in.
//! JSON-RPC and REST share everything but this, and 0.3 is spoken here and nowhere else.

use axum::body::Body;
use faultline_proto::{
    Failure,
    a2a::StreamResponse,
    json,
    v1::{call, reply},
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, header::CONTENT_TYPE};
use serde_json::Value;

use crate::{
    card,
    error::{JSON, Refused, Reporter},
    http::Exchange,
    jsonrpc::Id,
    operation::{self, Operation},
    sse, v03, validate,
    version::Version,
};

const A2A_JSON: HeaderValue = HeaderValue::from_static("application/a2a+json");
const EXTENSIONS: HeaderName = HeaderName::from_static("a2a-extensions");

#[derive(Clone)]
pub(crate) struct Form {
    pub(crate) wrap: Wrap,
    pub(crate) version: Version,
    pub(crate) operation: Operation,
}

#[derive(Clone)]
pub(crate) enum Wrap {
    /// In JSON-RPC's envelope.
    Rpc(Id),
    /// As it is.
    Bare,
}

impl Form {
    /// The request as A2A 1.0 would have it.
    pub(crate) fn modern(&self, old: Value) -> Result<Value, Failure> {
        match self.wrap {
            Wrap::Rpc(_) => v03::params(self.operation.name(), old),
            Wrap::Bare => v03::rest::params(self.operation.name(), old),
        }
    }

    /// Does what is asked, and answers in this form whatever comes of it.
    pub(crate) async fn answer(
        self,
        exchange: &Exchange,
        agent: Option<&str>,
        call: Result<call::Body, Failure>,
    ) -> Response<Body> {
        let answered = match call.and_then(|call| operation::admit(exchange, agent, call)) {
            Err(failure) => Err(failure),
            Ok(call) if self.operation.streams() => sse::answer(exchange, call, &self).await,
            Ok(call) if self.is_card_to_keep() => card_to_keep(exchange, call).await,
            Ok(call) => self.once(exchange, call).await,
        };
        answered.unwrap_or_else(|failure| self.refuse(failure.into(), exchange))
    }

    async fn once(
        &self,
        exchange: &Exchange,
        call: operation::Admitted,
    ) -> Result<Response<Body>, Failure> {
        let answer = operation::once(exchange, call).await?;
        let mut out = Vec::with_capacity(1024);
        self.open(&mut out);
        match self.version {
            Version::V1 => operation::write(&answer.body, &mut out)?,
            Version::V03 => self.write_old(&answer.body, &mut out)?,
        }
        self.close(&mut out);
        let mut response = Response::new(Body::from(out));
        let kind = match (&self.wrap, self.version) {
            (Wrap::Bare, Version::V1) => A2A_JSON,
            _ => JSON,
        };
        response.headers_mut().insert(CONTENT_TYPE, kind);
        put_extensions(&answer.extensions, response.headers_mut());
        Ok(response)
    }

    fn write_old(&self, answer: &reply::Body, out: &mut Vec<u8>) -> Result<(), Failure> {
        let mut new = Vec::new();
        operation::write(answer, &mut new)?;
        let translate = match self.wrap {
            Wrap::Rpc(_) => v03::result,
            Wrap::Bare => v03::rest::result,
        };
        put(&translate(self.operation.name(), reread(&new)), out);
        Ok(())
    }

    /// One event of a stream, without its number.
    pub(crate) fn write_event(&self, event: &StreamResponse, out: &mut Vec<u8>) {
        out.extend_from_slice(b"data: ");
        self.open(out);
        let translate = match (self.version, &self.wrap) {
            (Version::V1, _) => None,
            (Version::V03, Wrap::Rpc(_)) => Some(v03::event as fn(&str, Value) -> Value),
            (Version::V03, Wrap::Bare) => Some(v03::rest::event as fn(&str, Value) -> Value),
        };
        match translate {
            None => json::write(event, out),
            Some(translate) => {
                let old = translate(self.operation.name(), reread(&json::to_vec(event)));
                put(&old, out);
            }
        }
        self.close(out);
        out.extend_from_slice(b"\n\n");
    }

    /// The event that ends a stream that broke. JSON-RPC has errors of its own; elsewhere the
    /// event says that it is one.
    pub(crate) fn write_failure(&self, failure: Failure, report: &Reporter, out: &mut Vec<u8>) {
        let event: &[u8] = match self.wrap {
            Wrap::Rpc(_) => b"data: ",
            Wrap::Bare => b"event: error\ndata: ",
        };
        out.extend_from_slice(event);
        match &self.wrap {
            Wrap::Rpc(id) => report.write_rpc(failure, id, out),
            Wrap::Bare => report.write_plain(failure, self.version, out),
        }
        out.extend_from_slice(b"\n\n");
    }

    pub(crate) fn refuse(&self, refused: Refused, exchange: &Exchange) -> Response<Body> {
        match &self.wrap {
            Wrap::Rpc(id) => exchange.reporter().rpc(refused, id),
            Wrap::Bare => exchange.reporter().plain(refused, self.version),
        }
    }

    /// An answer to a GET may be kept by whoever asked.
    fn is_card_to_keep(&self) -> bool {
        let is_get = matches!((&self.wrap, self.version), (Wrap::Bare, Version::V1));
        is_get && self.operation == Operation::GetExtendedAgentCard
    }

    fn open(&self, out: &mut Vec<u8>) {
        if let Wrap::Rpc(id) = &self.wrap {
            out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
            out.extend_from_slice(id.as_bytes());
            out.extend_from_slice(br#","result":"#);
        }
    }

    fn close(&self, out: &mut Vec<u8>) {
        if let Wrap::Rpc(_) = self.wrap {
            out.push(b'}');
        }
    }
}

async fn card_to_keep(
    exchange: &Exchange,
    call: operation::Admitted,
) -> Result<Response<Body>, Failure> {
    let agent = call.card_of();
    let answer = exchange.gateway.link.ask(call.caller, call.call).await?;
    let reply::Body::Card(card) = answer.body else { return Err(validate::wrong_answer()) };
    let mut response = card::extended_answer(exchange, agent.as_deref(), *card);
    put_extensions(&answer.extensions, response.headers_mut());
    Ok(response)
}

/// Tells the client which of the extensions it declared are in force.
pub(crate) fn put_extensions(active: &[String], headers: &mut HeaderMap) {
    if !active.is_empty()
        && let Ok(value) = HeaderValue::from_str(&active.join(", "))
    {
        headers.insert(EXTENSIONS, value);
    }
}

fn reread(json: &[u8]) -> Value {
    serde_json::from_slice(json).expect("what ProtoJSON writes is JSON")
}

fn put(value: &Value, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("a Value is always JSON");
}
