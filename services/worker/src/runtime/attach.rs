//! Connection of the worker to one coordinator: connect, heartbeat, reconnect with exponential
//! backoff and jitter, and the move to another coordinator (rebalance or drain). Agents do not
//! notice a broken connection, because the attempt table and the outbox outlive it.

use std::time::Duration;

use faultline_chassis::{Members, backoff::Backoff, limits, members::Member};
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
/// Limit from dialling to the welcome. Well below the lease of a lost worker, so that there is time
/// to try a third coordinator before the tasks are given to another worker.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(3);
/// Unanswered heartbeats after which the connection counts as dead.
const MISSED_HEARTBEATS_MAX: u32 = 3;
/// Limit for the flush barrier when the worker moves to another coordinator.
const DETACH_TIMEOUT: Duration = Duration::from_millis(500);
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Keeps the worker attached to one of the coordinators, over any number of connections, until the
/// outbox is finished.
pub(crate) async fn keep_attached(
    table: &AttemptTable,
    members: &Members,
) -> Result<(), ServiceError> {
    let _following = AbortOnDropHandle::new(tokio::spawn(members.clone().run()));
    let mut ever_welcome = false;
    let mut pauses = BACKOFF.start();
    // Coordinators that failed since the last success.
    let mut tried = Vec::new();
    loop {
        let Some(member) = choose(members, &tried) else {
            if table.outbox.finished() {
                return Ok(());
            }
            // The jitter spreads the reconnects of all workers of a dead coordinator.
            let pause = sleep(pauses.next_pause());
            let mut listed = members.watch();
            let fresh = |now: &Vec<Member>| now.iter().any(|member| !tried.contains(member));
            tokio::select! {
                _ = listed.wait_for(fresh) => {}
                () = pause => tried.clear(),
            }
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
            pauses.reset();
        }
        ever_welcome |= welcomed;
        // A hello that is invalid the first time stays invalid.
        let is_final = matches!(
            lost.code(),
            Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied
        );
        if !ever_welcome && is_final {
            return Err(ServiceError::Refused(lost));
        }
        if pauses.is_fresh() {
            tracing::warn!(
                coordinator = %member, reason = %lost,
                "not attached to a coordinator, retrying"
            );
        } else {
            tracing::debug!(
                coordinator = %member, reason = %lost,
                "still not attached to a coordinator"
            );
        }
        tried.push(member);
    }
}

/// A random coordinator among those not tried yet, which spreads the workers.
fn choose(members: &Members, tried: &[Member]) -> Option<Member> {
    let mut left = members.now();
    left.retain(|member| !tried.contains(member));
    (!left.is_empty()).then(|| left.swap_remove(rand::random_range(0..left.len())))
}

/// One connection from its beginning to its end: whether the coordinator accepted the worker, and
/// why the connection ended. Dials a new channel each time, because a dead one may not be noticed.
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
            _ => Err(Failure::new(&reason::UNAVAILABLE).because("the coordinator sent no welcome")),
        }
    };
    match timeout(WELCOME_TIMEOUT, opening).await {
        Ok(Ok((stream, welcome))) => {
            // Before the welcome is applied: an agent that resumes may delegate at once.
            table.channel.switch_to(member, members.channel(member));
            table.on_welcome(epoch, &welcome);
            tracing::info!(coordinator = %member, "attached to a coordinator");
            let leaving = leave_cleanly(table, members, member);
            (true, read_messages(table, stream, heartbeat(&welcome), leaving).await)
        }
        Ok(Err(failure)) => (false, failure),
        Err(_) => {
            let failure = Failure::new(&reason::UNAVAILABLE);
            (false, failure.because("the coordinator did not answer in time"))
        }
    }
}

fn heartbeat(welcome: &v1::Welcome) -> Duration {
    match welcome.heartbeat_ms {
        0 => limits::HEARTBEAT,
        ms => Duration::from_millis(ms.into()),
    }
}

/// Returns once there is another coordinator than `here` and everything that this one sent has
/// arrived (flush barrier): an assignment in flight would have to be found missing first.
async fn leave_cleanly(table: &AttemptTable, members: &Members, here: &Member) {
    let is_other = |now: &Vec<Member>| now.iter().any(|member| member != here);
    if members.watch().wait_for(is_other).await.is_err() {
        std::future::pending::<()>().await;
    }
    table.outbox.refuse_work();
    let _ = timeout(DETACH_TIMEOUT, table.flush_barrier()).await;
}

/// Reads messages until the connection ends, heartbeats stay unanswered, or the coordinator evicts
/// the worker and nothing is in flight. Unacknowledged reports are sent again on the next
/// connection.
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
                        tracing::info!(
                            "coordinator asks the worker to attach to another coordinator"
                        );
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
                return failure.because("the coordinator asked the worker to attach to another one");
            }
            _ = beats.tick() => {
                if missed == MISSED_HEARTBEATS_MAX {
                    let failure = Failure::new(&reason::UNAVAILABLE);
                    return failure.because("the coordinator answered no heartbeat");
                }
                missed += 1;
                table.outbox.heartbeat();
            }
        }
    }
}
