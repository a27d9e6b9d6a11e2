//! The connection to one of the coordinators: made, kept alive, made again there or elsewhere.
//! Agents do not notice when it breaks; the desk and the outbox outlive it.

use std::time::Duration;

use faultline_chassis::{Members, limits, members::Member};
use faultline_proto::{
    Failure, reason,
    v1::{self, to_worker::Body},
};
use http::uri::PathAndQuery;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Code, Request, Streaming, client::Grpc};
use tonic_prost::ProstCodec;

use crate::{ServiceError, attempt::outbox::Outgoing, runtime::attempts::Desk};

const ATTACH: &str = "/faultline.v1.Hub/Attach";
/// From dialling to the welcome. Well below the time after which the last coordinator gives its
/// work to another: there must be some left to try a third.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(3);
/// Heartbeats without a word from the coordinator before the connection counts as dead.
const SILENT_BEATS_MAX: u32 = 3;
/// How long a coordinator that sends a worker elsewhere may take to say that nothing is on its way.
const PARTING_TIMEOUT: Duration = Duration::from_millis(500);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Stays attached, through any number of connections to whichever coordinators there are, until the
/// outbox is finished.
pub(crate) async fn stay(desk: &Desk, members: &Members) -> Result<(), ServiceError> {
    let _following = AbortOnDropHandle::new(tokio::spawn(members.clone().run()));
    let mut ever_welcome = false;
    let mut backoff = BACKOFF_MIN;
    // Those that are no use for now.
    let mut tried = Vec::new();
    loop {
        let Some(member) = choose(members, &tried) else {
            if desk.outbox.finished() {
                return Ok(());
            }
            // Jitter, so that the workers of a dead coordinator do not come back all at once.
            let pause = sleep(backoff.mul_f64(rand::random_range(0.5..1.0)));
            let mut listed = members.watch();
            let fresh = |now: &Vec<Member>| now.iter().any(|member| !tried.contains(member));
            tokio::select! {
                _ = listed.wait_for(fresh) => {}
                () = pause => tried.clear(),
            }
            backoff = (backoff * 2).min(BACKOFF_MAX);
            continue;
        };
        let (welcomed, lost) = attach(desk, members, &member).await;
        desk.parted();
        if desk.outbox.finished() {
            return Ok(());
        }
        members.refresh();
        if welcomed {
            tried.clear();
            backoff = BACKOFF_MIN;
        }
        ever_welcome |= welcomed;
        // What the coordinator calls wrong the first time will be wrong every time.
        let is_final = matches!(
            lost.code(),
            Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied
        );
        if !ever_welcome && is_final {
            return Err(ServiceError::Refused(lost));
        }
        if backoff == BACKOFF_MIN {
            tracing::warn!(coordinator = %member, reason = %lost, "not attached, trying again");
        } else {
            tracing::debug!(coordinator = %member, reason = %lost, "still not attached");
        }
        tried.push(member);
    }
}

/// Any of those that were not tried yet: by chance, so that workers spread.
fn choose(members: &Members, tried: &[Member]) -> Option<Member> {
    let mut left = members.now();
    left.retain(|member| !tried.contains(member));
    (!left.is_empty()).then(|| left.swap_remove(rand::random_range(0..left.len())))
}

/// One connection from its beginning to its end: whether the coordinator welcomed it, and why it
/// ended. It is dialled anew each time, because the old one may be dead without knowing it.
async fn attach(desk: &Desk, members: &Members, member: &Member) -> (bool, Failure) {
    let channel = members.channel(member);
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
            // Before anybody hears of the welcome: what it lets go on may ask at once.
            desk.way.lead(member, members.channel(member));
            desk.welcome(epoch, &welcome);
            tracing::info!(coordinator = %member, "attached to the coordinator");
            let parting = part(desk, members, member);
            (true, follow(desk, stream, heartbeat(&welcome), parting).await)
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

/// Returns when there is another coordinator than this, and nothing is on its way from here any
/// more: what was assigned and not received would have to be found missing first.
async fn part(desk: &Desk, members: &Members, here: &Member) {
    let is_other = |now: &Vec<Member>| now.iter().any(|member| member != here);
    if members.watch().wait_for(is_other).await.is_err() {
        std::future::pending::<()>().await;
    }
    desk.outbox.decline();
    let _ = timeout(PARTING_TIMEOUT, desk.fence()).await;
}

/// Listens until the connection ends or falls silent, or the coordinator sends the worker elsewhere
/// and it could part. What was not acknowledged is said again there.
async fn follow(
    desk: &Desk,
    mut stream: Streaming<v1::ToWorker>,
    heartbeat: Duration,
    parting: impl Future<Output = ()>,
) -> Failure {
    let mut beats = interval_at(Instant::now() + heartbeat, heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut silent = 0;
    let mut sent_away = false;
    tokio::pin!(parting);
    loop {
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(message)) => {
                    silent = 0;
                    if matches!(message.body, Some(Body::Drain(_))) {
                        tracing::info!("the coordinator sends it elsewhere");
                        sent_away = true;
                    }
                    desk.take(message);
                }
                Ok(None) => {
                    let failure = Failure::new(&reason::UNAVAILABLE);
                    return failure.because("the coordinator closed the connection");
                }
                Err(status) => return status.into(),
            },
            () = &mut parting, if sent_away => {
                let failure = Failure::new(&reason::UNAVAILABLE);
                return failure.because("the coordinator sent it elsewhere");
            }
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
