//! The connection to the coordinator: made, kept alive, made again. Agents do not notice when it
//! breaks; the desk and the outbox outlive it.

use std::time::Duration;

use faultline_chassis::{client::Channel, limits};
use faultline_proto::{
    Failure, reason,
    v1::{self, to_worker::Body},
};
use http::uri::PathAndQuery;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tonic::{Code, Request, Streaming, client::Grpc};
use tonic_prost::ProstCodec;

use crate::{ServiceError, desk::Desk, outbox::Outgoing};

const ATTACH: &str = "/faultline.v1.Hub/Attach";
/// From dialling to the welcome.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);
/// Heartbeats without a word from the coordinator before the connection counts as dead.
const SILENT_BEATS_MAX: u32 = 3;
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Stays attached, through any number of connections, until the outbox is finished.
pub(crate) async fn stay(
    desk: &Desk,
    address: &str,
    coordinator: &Channel,
) -> Result<(), ServiceError> {
    let mut ever_welcome = false;
    let mut backoff = BACKOFF_MIN;
    loop {
        let (welcomed, lost) = attach(desk, coordinator.anew()).await;
        desk.parted();
        if desk.outbox.finished() {
            return Ok(());
        }
        ever_welcome |= welcomed;
        if welcomed {
            backoff = BACKOFF_MIN;
        }
        // What the coordinator calls wrong the first time will be wrong every time.
        let is_final = matches!(lost.code(), Code::InvalidArgument | Code::Unauthenticated);
        if !ever_welcome && is_final {
            return Err(ServiceError::Refused(lost));
        }
        if backoff == BACKOFF_MIN {
            tracing::warn!(coordinator = address, reason = %lost, "not attached, trying again");
        } else {
            tracing::debug!(coordinator = address, reason = %lost, "still not attached");
        }
        // Jitter, so that the workers of a dead coordinator do not come back all at once.
        sleep(backoff.mul_f64(rand::random_range(0.5..1.0))).await;
        backoff = (backoff * 2).min(BACKOFF_MAX);
    }
}

/// One connection from its beginning to its end: whether the coordinator welcomed it, and why it
/// ended. It is dialled anew each time, because the old one may be dead without knowing it.
async fn attach(desk: &Desk, channel: Channel) -> (bool, Failure) {
    let outgoings = desk.outbox.open(desk.hello());
    let epoch = outgoings.epoch();
    let opening = async {
        let mut grpc = Grpc::new(channel)
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX);
        if let Err(never) = grpc.ready().await {
            match never {}
        }
        let codec = ProstCodec::<Outgoing, v1::ToWorker>::default();
        let path = PathAndQuery::from_static(ATTACH);
        let answer = grpc.streaming(Request::new(outgoings), path, codec).await?;
        let mut stream = answer.into_inner();
        match stream.message().await?.and_then(|first| first.body) {
            Some(Body::Welcome(welcome)) => Ok((stream, welcome)),
            _ => Err(Failure::new(&reason::UNAVAILABLE).because("not welcomed")),
        }
    };
    match timeout(WELCOME_TIMEOUT, opening).await {
        Ok(Ok((stream, welcome))) => {
            desk.welcome(epoch, &welcome);
            tracing::info!("attached to the coordinator");
            (true, follow(desk, stream, heartbeat(&welcome)).await)
        }
        Ok(Err(failure)) => (false, failure),
        Err(_) => {
            let failure = Failure::new(&reason::UNAVAILABLE);
            (false, failure.because("the coordinator does not answer"))
        }
    }
}

fn heartbeat(welcome: &v1::Welcome) -> Duration {
    match welcome.heartbeat_ms {
        0 => limits::HEARTBEAT,
        ms => Duration::from_millis(ms.into()),
    }
}

/// Listens until the connection ends or falls silent.
async fn follow(desk: &Desk, mut stream: Streaming<v1::ToWorker>, heartbeat: Duration) -> Failure {
    let mut beats = interval_at(Instant::now() + heartbeat, heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent = 0;
    loop {
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(message)) => {
                    silent = 0;
                    desk.take(message);
                }
                Ok(None) => {
                    let failure = Failure::new(&reason::UNAVAILABLE);
                    return failure.because("the coordinator closed the connection");
                }
                Err(status) => return status.into(),
            },
            _ = beats.tick() => {
                if silent == SILENT_BEATS_MAX {
                    let failure = Failure::new(&reason::UNAVAILABLE);
                    return failure.because("the coordinator fell silent");
                }
                silent += 1;
                desk.outbox.heartbeat();
            }
        }
    }
}
