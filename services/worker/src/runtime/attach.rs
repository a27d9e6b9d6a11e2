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

use crate::{ServiceError, attempt::outbox::OutgoingMessage, runtime::attempts::AttemptTable};

const ATTACH: &str = "/faultline.v1.Hub/Attach";
/// From dialling to the welcome. Well below the time after which the last coordinator gives its
/// work to another: there must be some left to try a third.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(3);
/// Heartbeats without a word from the coordinator before the connection counts as dead.
const MISSED_HEARTBEATS_MAX: u32 = 3;
/// How long a coordinator that sends a worker elsewhere may take to say that nothing is on its way.
const DETACH_TIMEOUT: Duration = Duration::from_millis(500);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(2);

/// Stays attached, through any number of connections to whichever coordinators there are, until the
/// outbox is finished.
pub(crate) async fn keep_attached(
    table: &AttemptTable,
    members: &Members,
) -> Result<(), ServiceError> {
    let _following = AbortOnDropHandle::new(tokio::spawn(members.clone().run()));
    let mut ever_welcome = false;
    let mut backoff = BACKOFF_MIN;
    // Those that are no use for now.
    let mut tried = Vec::new();
    loop {
        let Some(member) = choose(members, &tried) else {
            if table.outbox.finished() {
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
        let (welcomed, lost) = attach(table, members, &member).await;
        table.on_disconnect();
        if table.outbox.finished() {
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
async fn attach(table: &AttemptTable, members: &Members, member: &Member) -> (bool, Failure) {
    let channel = members.channel(member);
    let outgoing = table.outbox.open(table.hello());
    let epoch = outgoing.epoch();
    let opening = async {
        let mut grpc = Grpc::new(channel)
            .max_decoding_message_size(limits::GRPC_BYTES_MAX)
            .max_encoding_message_size(limits::GRPC_BYTES_MAX);
        if let Err(never) = grpc.ready().await {
            match never {}
        }
        let codec = ProstCodec::<OutgoingMessage, v1::ToWorker>::default();
        let path = PathAndQuery::from_static(ATTACH);
        let answer = grpc.streaming(Request::new(outgoing), path, codec).await?;
        let mut stream = answer.into_inner();
        match stream.message().await?.and_then(|first| first.body) {
            Some(Body::Welcome(welcome)) => Ok((stream, welcome)),
            _ => Err(Failure::new(&reason::UNAVAILABLE).because("not welcomed")),
        }
    };
    match timeout(WELCOME_TIMEOUT, opening).await {
        Ok(Ok((stream, welcome))) => {
            // Before anybody hears of the welcome: what it lets go on may ask at once.
            table.channel.switch_to(member, members.channel(member));
            table.on_welcome(epoch, &welcome);
            tracing::info!(coordinator = %member, "attached to the coordinator");
            let leaving = leave_cleanly(table, members, member);
            (true, read_messages(table, stream, heartbeat(&welcome), leaving).await)
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
async fn leave_cleanly(table: &AttemptTable, members: &Members, here: &Member) {
    let is_other = |now: &Vec<Member>| now.iter().any(|member| member != here);
    if members.watch().wait_for(is_other).await.is_err() {
        std::future::pending::<()>().await;
    }
    table.outbox.refuse_work();
    let _ = timeout(DETACH_TIMEOUT, table.flush_barrier()).await;
}

/// Listens until the connection ends or falls missed, or the coordinator sends the worker elsewhere
/// and it could part. What was not acknowledged is said again there.
async fn read_messages(
    table: &AttemptTable,
    mut stream: Streaming<v1::ToWorker>,
    heartbeat: Duration,
    leaving: impl Future<Output = ()>,
) -> Failure {
    let mut beats = interval_at(Instant::now() + heartbeat, heartbeat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut missed = 0;
    let mut evicted = false;
    tokio::pin!(leaving);
    loop {
        tokio::select! {
            message = stream.message() => match message {
                Ok(Some(message)) => {
                    missed = 0;
                    if matches!(message.body, Some(Body::Drain(_))) {
                        tracing::info!("the coordinator sends it elsewhere");
                        evicted = true;
                    }
                    table.on_message(message);
                }
                Ok(None) => {
                    let failure = Failure::new(&reason::UNAVAILABLE);
                    return failure.because("the coordinator closed the connection");
                }
                Err(status) => return status.into(),
            },
            () = &mut leaving, if evicted => {
                let failure = Failure::new(&reason::UNAVAILABLE);
                return failure.because("the coordinator sent it elsewhere");
            }
            _ = beats.tick() => {
                if missed == MISSED_HEARTBEATS_MAX {
                    let failure = Failure::new(&reason::UNAVAILABLE);
                    return failure.because("the coordinator fell silent");
                }
                missed += 1;
                table.outbox.heartbeat();
            }
        }
    }
}
