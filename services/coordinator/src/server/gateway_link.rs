//! The link service for gateways: many calls multiplexed on one stream. A blocking send needs
//! no task and no channel of its own; streams have credit-based flow control; a call above the
//! limit of a gateway is rejected alone.

mod ask;
mod place;

use crate::engine::active_task::CallError;
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use faultline_chassis::{
    limits,
    metrics::calls::Call as Measured,
    telemetry::{Span, SpanKind, link},
};
use faultline_proto::{
    Failure,
    a2a::{SendMessageResponse, send_message_response::Payload},
    reason,
    v1::{self, Call, End, Frame, Moved, Reply, call, link_server::Link, reply},
};
use futures::{FutureExt, Stream, StreamExt, stream};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use self::{
    ask::{ask, method},
    place::{Place, Streaming},
};
use crate::{
    api::subscription::Subscription,
    calls::{
        caller::{Caller, Extensions},
        roles,
    },
    engine::core::Core,
    error::{Error, refuse},
    operators::change_feed::Watching,
    server::worker_hub,
    telemetry::metrics,
};

pub(crate) struct LinkService {
    pub(crate) core: Arc<Core>,
    next: AtomicU64,
}

impl LinkService {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, next: AtomicU64::new(1) }
    }
}

type ReplyStream = Pin<Box<dyn Stream<Item = Result<Reply, Status>> + Send>>;

#[tonic::async_trait]
impl Link for LinkService {
    type OpenStream = ReplyStream;

    async fn open(
        &self,
        request: Request<tonic::Streaming<Call>>,
    ) -> Result<Response<ReplyStream>, Status> {
        let mut incoming = request.into_inner();
        // One place for the answer of each call that a gateway may have under way, and one for the
        // goodbye, so that an answer never waits; frames of streams wait in a queue of their own.
        let (replies, answers) = mpsc::channel(limits::LINK_CALLS_MAX + 1);
        let (frames, streamed) = mpsc::channel(limits::LINK_FRAMES_MAX);
        let line = Arc::new(Line {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            core: Arc::clone(&self.core),
            replies,
            frames,
            open: AtomicUsize::new(0),
            cut: CancellationToken::new(),
            streams: Mutex::default(),
        });
        let written = Arc::clone(&line);
        let cut = line.cut.clone().cancelled_owned();
        let farewell = line.core.farewell.clone();
        let (refuse, refused) = oneshot::channel();
        tokio::spawn(async move {
            let mut told = false;
            loop {
                line.core.room().await;
                let call = tokio::select! {
                    call = incoming.message() => call,
                    () = farewell.cancelled(), if !told => {
                        told = true;
                        line.announce_leaving();
                        continue;
                    }
                    () = line.replies.closed() => break,
                    () = line.cut.cancelled() => break,
                };
                match call {
                    Ok(Some(call)) if line.is_too_many(&call) => line.refuse(call.id).await,
                    Ok(Some(call)) => line.take_guarded(call),
                    Ok(None) => break,
                    Err(status) => {
                        worker_hub::refused_message(status).map(|failure| refuse.send(failure));
                        break;
                    }
                }
            }
            line.hang_up();
        });
        // A call is over when its answer is written.
        let answers = ReceiverStream::new(answers).inspect(move |reply| {
            if reply.id != GOODBYE {
                written.open.fetch_sub(1, Ordering::Relaxed);
            }
        });
        let merged = stream::select(answers, ReceiverStream::new(streamed));
        // Nothing may leave after something was lost, or a reader would resume behind the loss.
        Ok(Response::new(Box::pin(
            merged.map(Ok).take_until(cut).chain(worker_hub::refusal(refused)),
        )))
    }
}

/// When a gateway that had too many calls may have fewer.
const REFUSED_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The id of no call: messages that concern all calls.
const GOODBYE: u64 = 0;

/// One gateway's stream.
struct Line {
    id: u64,
    core: Arc<Core>,
    replies: mpsc::Sender<Reply>,
    frames: mpsc::Sender<Reply>,
    /// Calls without an answer, or with one that is not written yet.
    open: AtomicUsize,
    /// Cancelled when the stream is over.
    cut: CancellationToken,
    streams: Mutex<HashMap<u64, Arc<Reader>>>,
}

/// The reader of one open stream, with its flow-control credit.
struct Reader {
    /// How many frames may be sent ahead.
    credit: Semaphore,
    /// Nobody reads it any more.
    gone: Notify,
}

impl Reader {
    fn leave(&self) {
        self.credit.close();
        self.gone.notify_one();
    }
}

/// Bounds the lists that are looked through for each call.
fn check_lists(asked: &v1::Caller) -> Result<(), Failure> {
    let lists = [("caller.agents", &asked.agents), ("caller.extensions", &asked.extensions)];
    match lists.into_iter().find(|(_, names)| names.len() > limits::CALLER_NAMES_MAX) {
        None => Ok(()),
        Some((field, names)) => {
            let most = limits::CALLER_NAMES_MAX;
            Err(refuse(field, format!("{} entries, at most {most}", names.len())))
        }
    }
}

impl Line {
    fn take_guarded(self: &Arc<Self>, call: Call) {
        // A panic costs the call that met it, which its place answers.
        let _ = catch_unwind(AssertUnwindSafe(|| self.take(call)));
    }

    /// Whether it is one call more than a gateway may have under way.
    fn is_too_many(&self, call: &Call) -> bool {
        let is_call =
            !matches!(call.body, None | Some(call::Body::Credit(_) | call::Body::Drop(_)));
        is_call && self.open.load(Ordering::Relaxed) >= limits::LINK_CALLS_MAX
    }

    /// Refuses one call. Where the gateway reads nothing, no further call is taken until it does.
    async fn refuse(&self, id: u64) {
        let failure = Failure::new(&reason::OVERLOADED)
            .because("this gateway has too many calls under way at the coordinator")
            .with_retry_after(REFUSED_RETRY_AFTER);
        let body = Some(self.body(Err(failure)));
        self.send_last(Reply { id, body, extensions: Vec::new() }).await;
    }

    fn take(self: &Arc<Self>, call: Call) {
        let id = call.id;
        let Some(body) = call.body else { return };
        let asked = call.caller.unwrap_or_default();
        let checked = roles::check_principal(&asked.principal);
        if let Err(failure) = checked.and_then(|()| check_lists(&asked)) {
            return Place::new(self, id).answer(Err(failure), Vec::new());
        }
        match body {
            call::Body::Credit(frames) => {
                if let Some(reader) = self.streams().get(&id) {
                    reader.credit.add_permits(frames.min(limits::STREAM_CREDIT) as usize);
                }
            }
            call::Body::Drop(_) => self.drop_call(id),
            call::Body::Send(request) => {
                let measured = self.core.meters.send.begin();
                let (span, mut caller) = serve_span("SendMessage", asked);
                caller.call = Some((self.id, id));
                let (place, extensions) = (Place::new(self, id), caller.extensions.clone());
                self.core.send(
                    request,
                    caller,
                    Box::new(move |answer| {
                        let answer = answer.map_err(Failure::from);
                        measured.end(answer.as_ref().err());
                        let answer = sent(span, answer);
                        place.answer(answer.map(reply::Body::Sent), extensions.active());
                    }),
                );
            }
            call::Body::Wait(wait) => {
                let measured = self.core.meters.send.begin();
                let (span, mut caller) = serve_span("SendMessage", asked);
                caller.call = Some((self.id, id));
                let (place, core) = (Place::new(self, id), Arc::clone(&self.core));
                let done = Box::new(move |answer: Result<_, CallError>| {
                    let answer = answer.map_err(Failure::from);
                    measured.end(answer.as_ref().err());
                    let answer = sent(span, answer);
                    place.answer(answer.map(reply::Body::Sent), Vec::new());
                });
                tokio::spawn(async move { core.wait(wait, caller, done).await });
            }
            call::Body::Stream(request) => {
                let (span, caller) = serve_span("SendStreamingMessage", asked);
                let (core, extensions) = (Arc::clone(&self.core), caller.extensions.clone());
                let open = async move { core.stream(request, &caller).await };
                self.open_stream(id, self.core.meters.stream.begin(), span, extensions, open);
            }
            call::Body::Subscribe(subscribe) => {
                let (mut span, caller) = serve_span("SubscribeToTask", asked);
                let (core, extensions) = (Arc::clone(&self.core), caller.extensions.clone());
                if subscribe.after.is_some() {
                    let id = subscribe.request.as_ref().map_or("", |request| &request.id);
                    core.link_run(&mut span, id, link::RECONNECT_OF);
                }
                let measured = self.core.meters.subscribe.begin();
                self.open_stream(id, measured, span, extensions, async move {
                    let request = subscribe.request.unwrap_or_default();
                    core.subscribe(&request, subscribe.after, &caller).await
                });
            }
            call::Body::Watch(request) => {
                let (core, caller) = (Arc::clone(&self.core), Caller::from(asked));
                let measured = self.core.meters.calls.begin(metrics::MESH);
                let open = async move { core.changes(request, &caller) };
                self.open_stream(id, measured, Span::none(), Extensions::default(), open);
            }
            question => {
                let (mut span, caller) = match method(&question) {
                    Some(method) => serve_span(method, asked),
                    None => (Span::none(), asked.into()),
                };
                if let call::Body::Cancel(request) = &question {
                    self.core.link_run(&mut span, &request.id, link::CANCELS);
                }
                let measured = self.core.meters.calls.begin(metrics::method(&question));
                let (place, core) = (Place::new(self, id), Arc::clone(&self.core));
                tokio::spawn(async move {
                    let answer = guarded(ask(&core, question, &caller)).await;
                    measured.end(answer.as_ref().err());
                    if let Ok(reply::Body::Task(task)) = &answer {
                        span.task(task);
                    }
                    let answer = ended(span, answer);
                    place.answer(answer, caller.extensions.active());
                });
            }
        }
    }

    fn open_stream<S: FrameSource>(
        self: &Arc<Self>,
        id: u64,
        measured: Measured,
        mut span: Span,
        extensions: Extensions,
        open: impl Future<Output = Result<S, Error>> + Send + 'static,
    ) {
        let line = Arc::clone(self);
        let credit = Semaphore::new(limits::STREAM_CREDIT as usize);
        let reader = Arc::new(Reader { credit, gone: Notify::new() });
        self.streams().insert(id, Arc::clone(&reader));
        let counted = Streaming::new(self);
        tokio::spawn(async move {
            let _open = line.core.meters.open.guard();
            let all = async {
                let opened = open.await.map_err(Failure::from);
                measured.end(opened.as_ref().err());
                let source = opened.map_err(Error::from)?;
                line.pump(id, source, &reader, extensions, &mut span).await
            };
            let answer = guarded(all).await.map(|()| reply::Body::End(End {}));
            line.streams().remove(&id);
            let answer = ended(span, answer);
            let last = Reply { id, body: Some(line.body(answer)), extensions: Vec::new() };
            // Also to a reader that left: the gateway counts the call until then.
            line.send_last(last).await;
            drop(counted);
        });
    }

    /// Sends frames as fast as the reader gives credit, until the end or until nobody reads. What
    /// waits here for credit is bounded; a reader that is stuck is the gateway's to end.
    async fn pump(
        &self,
        id: u64,
        mut source: impl FrameSource,
        reader: &Reader,
        extensions: Extensions,
        span: &mut Span,
    ) -> Result<(), Error> {
        let mut extensions = extensions.active();
        loop {
            let frame = tokio::select! {
                frame = source.next() => frame?,
                () = reader.gone.notified() => return Ok(()),
            };
            let Some(frame) = frame else { return Ok(()) };
            span.frame(&frame);
            match reader.credit.acquire().await {
                Ok(permit) => permit.forget(),
                Err(_) => return Ok(()),
            }
            let (body, extensions) = (reply::Body::Frame(frame), std::mem::take(&mut extensions));
            self.send_frame(Reply { id, body: Some(body), extensions }, reader).await;
        }
    }

    async fn send_frame(&self, frame: Reply, reader: &Reader) {
        tokio::select! {
            _ = self.frames.send(frame) => {}
            () = reader.gone.notified() => {}
            () = self.cut.cancelled() => {}
        }
    }

    async fn send_last(&self, last: Reply) {
        tokio::select! {
            _ = self.frames.send(last) => {}
            () = self.cut.cancelled() => {}
        }
    }

    /// Puts an answer on the stream, now: it may be called under the core's lock. There is room for
    /// the answer of every call that is counted.
    fn reply(&self, id: u64, answer: Result<reply::Body, Failure>, extensions: Vec<String>) {
        let body = Some(self.body(answer));
        if self.replies.try_send(Reply { id, body, extensions }).is_err() {
            self.cut.cancel();
        }
    }

    /// New calls are to be made elsewhere.
    fn announce_leaving(&self) {
        let body = Some(reply::Body::Moved(Moved::default()));
        if self.replies.try_send(Reply { id: GOODBYE, body, extensions: Vec::new() }).is_err() {
            self.cut.cancel();
        }
    }

    /// The body of an answer. An answer above the size limit of a message would end the stream for
    /// every other call, so the call fails instead.
    fn body(&self, answer: Result<reply::Body, Failure>) -> reply::Body {
        let bytes = match &answer {
            Ok(reply::Body::Sent(sent)) => sent.encoded_len(),
            Ok(reply::Body::Task(task)) => task.encoded_len(),
            Ok(reply::Body::List(list)) => list.encoded_len(),
            Ok(reply::Body::Inspect(inspect)) => inspect.encoded_len(),
            Ok(reply::Body::Events(events)) => events.encoded_len(),
            _ => 0,
        };
        let answer = match bytes > limits::GRPC_BYTES_MAX - limits::ENVELOPE_BYTES {
            true => Err(Error::TooLarge("the answer is too large to send: ask for less").into()),
            false => answer,
        };
        answer.unwrap_or_else(|failure| {
            // Nothing was done, or it goes on: the answer is to be had elsewhere.
            if failure.reason == reason::UNAVAILABLE.name && self.core.has_left() {
                return reply::Body::Moved(Moved { task_id: failure.task_id.clone() });
            }
            log_private(&failure);
            self.core.meters.refused(&failure);
            reply::Body::Failure(Box::new(failure.into_record()))
        })
    }

    fn drop_call(&self, id: u64) {
        if let Some(reader) = self.streams().remove(&id) {
            reader.leave();
        }
        drop(self.core.touch(|state| state.forget_call((self.id, id))));
    }

    fn hang_up(&self) {
        self.cut.cancel();
        self.core.touch(|state| state.forget_link(self.id));
        for (_, reader) in self.streams().drain() {
            reader.leave();
        }
    }

    fn streams(&self) -> parking_lot::MutexGuard<'_, HashMap<u64, Arc<Reader>>> {
        self.streams.lock()
    }
}

/// The source of the frames of a stream.
trait FrameSource: Send + 'static {
    /// The next frame; `None`: that was all.
    fn next(&mut self) -> impl Future<Output = Result<Option<Frame>, Error>> + Send;
}

impl FrameSource for Subscription {
    async fn next(&mut self) -> Result<Option<Frame>, Error> {
        Subscription::next(self).await
    }
}

impl FrameSource for Watching {
    async fn next(&mut self) -> Result<Option<Frame>, Error> {
        let changed = Watching::next(self).await;
        Ok(changed.map(|changed| Frame { changed: Some(changed), ..Frame::default() }))
    }
}

/// A panic fails the call that met it, with an answer to its caller.
async fn guarded<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done.map_err(Failure::from),
        Err(_) => Err(Failure::new(&reason::INTERNAL_ERROR)),
    }
}

/// The span of one call at this hop, and the caller as the operations see it.
pub(crate) fn serve_span(method: &'static str, asked: v1::Caller) -> (Span, Caller) {
    let mut caller = Caller::from(asked);
    let name = format_args!("lf.a2a.v1.A2AService/{method}");
    let mut span = Span::begin(SpanKind::Server, &caller.trace, name);
    span.rpc("coordinator", method);
    caller.trace = span.context().clone();
    (span, caller)
}

/// A call is over.
pub(crate) fn ended<T>(mut span: Span, answer: Result<T, Failure>) -> Result<T, Failure> {
    match answer {
        Ok(answer) => {
            span.rpc_ended(Ok(()));
            Ok(answer)
        }
        Err(failure) => Err(refused(span, failure)),
    }
}

/// A rejection here has its origin here.
pub(crate) fn refused(mut span: Span, failure: Failure) -> Failure {
    let trace = span.context();
    let failure = match failure.trace_id.is_empty() {
        true => failure.with_trace(trace.trace_id(), trace.span_id()),
        false => failure,
    };
    span.rpc_ended(Err(&failure));
    failure
}

/// The same for a send.
pub(crate) fn sent(
    mut span: Span,
    answer: Result<SendMessageResponse, Failure>,
) -> Result<SendMessageResponse, Failure> {
    if let Ok(SendMessageResponse { payload: Some(Payload::Task(task)) }) = &answer {
        span.task(task);
    }
    ended(span, answer)
}

/// Logs the private text of a failure, which the caller does not get, under its id.
pub(crate) fn log_private(failure: &Failure) {
    if let Some(private) = failure.private() {
        tracing::warn!(
            failure.id = %failure.id,
            task.id = %failure.task_id,
            reason = %failure.reason,
            detail = private.for_log(),
            "refused"
        );
    }
}
