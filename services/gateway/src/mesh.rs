//! The operators' view as ProtoJSON: `POST /mesh/{Method}` is `faultline.v1.Mesh/{Method}`. It
//! knows the names of the methods and nothing of what they say.

use std::time::Duration;

use axum::body::Body;
use faultline_proto::{
    Failure,
    json::{self, ProtoJson},
    reason,
    v1::{call, reply},
};
use http::Response;

use crate::{
    auth::Scope,
    body,
    error::Refused,
    http::{self as surface, Exchange},
    validate,
};

pub(crate) async fn answer(
    exchange: &Exchange,
    method: &str,
    body: &mut Body,
) -> Result<Response<Body>, Refused> {
    // One's own task is there to be read; what everybody does is for operators.
    let needed = if method == "Inspect" { Scope::Read } else { Scope::Operate };
    exchange.may(needed)?;
    let body = body::read_json(&exchange.head, body).await?;
    let call = match method {
        "Agents" => call::Body::Agents(request(&body)?),
        "Workers" => call::Body::Workers(request(&body)?),
        "Inspect" => call::Body::Inspect(request(&body)?),
        _ => {
            let failure = Failure::new(&reason::NOT_FOUND)
                .because("no such method: there are Agents, Workers and Inspect");
            return Err(failure.into());
        }
    };
    let caller = exchange.caller(Duration::ZERO);
    let body = match exchange.gateway.link.ask(caller, call).await?.body {
        reply::Body::Agents(agents) => json::to_vec(&agents),
        reply::Body::Workers(workers) => json::to_vec(&workers),
        reply::Body::Inspect(inspect) => json::to_vec(&inspect),
        _ => return Err(validate::wrong_answer().into()),
    };
    Ok(surface::json(body.into()))
}

/// An empty body is an empty request: most of them have nothing to say.
fn request<T: ProtoJson + Default>(body: &[u8]) -> Result<T, Failure> {
    match body.trim_ascii() {
        b"" => Ok(T::default()),
        body => json::from_slice(body).map_err(|error| validate::not_the_message(&error)),
    }
}
