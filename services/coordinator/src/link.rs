//! The gateways' door: many calls on one stream. A blocking send costs no spawn and no channel of
//! its own; its answer is put on the stream when the store has confirmed it. Streams get a task
//! each and send only as far ahead as the reader gave credit for.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use faultline_chassis::{
    limits,
    metrics::calls::Call as Measured,
    telemetry::{Kind, Span, link},
};
use faultline_proto::{
    Failure,
    a2a::{SendMessageResponse, send_message_response::Payload},
    reason,
    v1::{self, Call, Deleted, End, Frame, Moved, Reply, call, link_server::Link, reply},
};
use futures::{FutureExt, Stream, StreamExt, stream};
use prost::Message;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    caller::{Caller, Extensions},
    core::Core,
    error::Error,
    feed::Watching,
    meters,
    subscription::Subscription,
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
        request: Request<Streaming<Call>>,
    ) -> Result<Response<ReplyStream>, Status> {
        let mut incoming = request.into_inner();
        // One place for the answer of each call that a gateway may have under way, so that an
        // answer never waits; frames of streams wait in a queue of their own.
        let (replies, answers) = mpsc::channel(limits::LINK_CALLS_MAX);
        let (frames, streamed) = mpsc::channel(limits::LINK_FRAMES_MAX);
        let line = Arc::new(Line {
            id: self.next.fetch_add(1, Ordering::Relaxed),
            core: Arc::clone(&self.core),
            replies,
            frames,
            cut: CancellationToken::new(),
            streams: Mutex::default(),
        });
        let cut = line.cut.clone().cancelled_owned();
        let farewell = line.core.farewell.clone();
        tokio::spawn(async move {
            let mut told = false;
            loop {
                line.core.room().await;
                let call = tokio::select! {
                    call = incoming.message() => call,
                    () = farewell.cancelled(), if !told => {
                        told = true;
                        line.say_goodbye();
                        continue;
                    }
                    () = line.replies.closed() => break,
                    () = line.cut.cancelled() => break,
                };
                match call {
                    Ok(Some(call)) => line.take_guarded(call),
                    Ok(None) | Err(_) => break,
                }
            }
            line.hang_up();
        });
        let merged = stream::select(ReceiverStream::new(answers), ReceiverStream::new(streamed));
        // Nothing may leave after something was lost, or a reader would resume behind the loss.
        Ok(Response::new(Box::pin(merged.map(Ok).take_until(cut))))
    }
}

/// One gateway's stream.
struct Line {
    id: u64,
    core: Arc<Core>,
    replies: mpsc::Sender<Reply>,
    frames: mpsc::Sender<Reply>,
    /// The stream is over, whoever still holds the line.
    cut: CancellationToken,
    streams: Mutex<HashMap<u64, Arc<Reader>>>,
}

/// Who reads one open stream, as far as we know.
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

impl Line {
    fn take_guarded(self: &Arc<Self>, call: Call) {
        let id = call.id;
        if catch_unwind(AssertUnwindSafe(|| self.take(call))).is_err() {
            self.reply(id, Err(Failure::new(&reason::INTERNAL_ERROR)), Vec::new());
        }
    }

    fn take(self: &Arc<Self>, call: Call) {
        let id = call.id;
        let Some(body) = call.body else { return };
        let asked = call.caller.unwrap_or_default();
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
                let (line, extensions) = (Arc::clone(self), caller.extensions.clone());
                self.core.send(
                    request,
                    caller,
                    Box::new(move |answer| {
                        measured.end(answer.as_ref().err());
                        let answer = sent(span, answer);
                        line.reply(id, answer.map(reply::Body::Sent), extensions.active());
                    }),
                );
            }
            call::Body::Wait(wait) => {
                let measured = self.core.meters.send.begin();
                let (span, mut caller) = serve_span("SendMessage", asked);
                caller.call = Some((self.id, id));
                let (line, core) = (Arc::clone(self), Arc::clone(&self.core));
                let done = Box::new(move |answer: Result<SendMessageResponse, Failure>| {
                    measured.end(answer.as_ref().err());
                    let answer = sent(span, answer);
                    line.reply(id, answer.map(reply::Body::Sent), Vec::new());
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
                let measured = self.core.meters.calls.begin(meters::MESH);
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
                let measured = self.core.meters.calls.begin(meters::method(&question));
                let line = Arc::clone(self);
                tokio::spawn(async move {
                    let answer = guarded(ask(&line.core, question, &caller)).await;
                    measured.end(answer.as_ref().err());
                    if let Ok(reply::Body::Task(task)) = &answer {
                        span.task(task);
                    }
                    let answer = ended(span, answer);
                    line.reply(id, answer, caller.extensions.active());
                });
            }
        }
    }

    fn open_stream<S: Source>(
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
        tokio::spawn(async move {
            let _open = line.core.meters.open.hold();
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
            line.send_frame(last, &reader).await;
        });
    }

    /// Sends frames as fast as the reader gives credit, until the end or until nobody reads. What
    /// waits here for credit is bounded; a reader that is stuck is the gateway's to end.
    async fn pump(
        &self,
        id: u64,
        mut source: impl Source,
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

    /// Puts an answer on the stream, now: it may be called under the core's lock. A gateway that
    /// has more calls under way than it may loses its stream.
    fn reply(&self, id: u64, answer: Result<reply::Body, Failure>, extensions: Vec<String>) {
        let body = Some(self.body(answer));
        if self.replies.try_send(Reply { id, body, extensions }).is_err() {
            self.cut.cancel();
        }
    }

    /// New calls are to be made elsewhere.
    fn say_goodbye(&self) {
        let body = Some(reply::Body::Moved(Moved::default()));
        if self.replies.try_send(Reply { id: 0, body, extensions: Vec::new() }).is_err() {
            self.cut.cancel();
        }
    }

    /// What is sent of an answer. One that is larger than a message may be would end the stream
    /// for every other call, so it is refused instead.
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

    fn streams(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Reader>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a stream is read from.
trait Source: Send + 'static {
    /// The next frame; `None`: that was all.
    fn next(&mut self) -> impl Future<Output = Result<Option<Frame>, Error>> + Send;
}

impl Source for Subscription {
    async fn next(&mut self) -> Result<Option<Frame>, Error> {
        Subscription::next(self).await
    }
}

impl Source for Watching {
    async fn next(&mut self) -> Result<Option<Frame>, Error> {
        let changed = Watching::next(self).await;
        Ok(changed.map(|changed| Frame { changed: Some(changed), ..Frame::default() }))
    }
}

/// A panic costs the call that met it, and whoever waits for the answer is told.
async fn guarded<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done.map_err(Failure::from),
        Err(_) => Err(Failure::new(&reason::INTERNAL_ERROR)),
    }
}

/// What A2A calls a question that has one answer; `None`: it is an operator's.
fn method(question: &call::Body) -> Option<&'static str> {
    use call::Body;
    Some(match question {
        Body::Get(_) => "GetTask",
        Body::List(_) => "ListTasks",
        Body::Cancel(_) => "CancelTask",
        Body::CreatePush(_) => "CreateTaskPushNotificationConfig",
        Body::GetPush(_) => "GetTaskPushNotificationConfig",
        Body::ListPush(_) => "ListTaskPushNotificationConfigs",
        Body::DeletePush(_) => "DeleteTaskPushNotificationConfig",
        Body::ExtendedCard(_) => "GetExtendedAgentCard",
        _ => return None,
    })
}

async fn ask(
    core: &Arc<Core>,
    question: call::Body,
    caller: &Caller,
) -> Result<reply::Body, Error> {
    use call::Body;
    Ok(match question {
        Body::Get(request) => reply::Body::Task(Box::new(core.get(request, caller).await?)),
        Body::List(request) => reply::Body::List(core.list(request, caller).await?),
        Body::Cancel(request) => reply::Body::Task(Box::new(core.cancel(request, caller).await?)),
        Body::Inspect(request) => {
            reply::Body::Inspect(Box::new(core.inspect(request, caller).await?))
        }
        Body::Tasks(request) => reply::Body::Tasks(core.tasks(request, caller).await?),
        Body::Events(request) => reply::Body::Events(core.events(request, caller).await?),
        Body::Activity(request) => reply::Body::Activity(core.activity(request, caller).await?),
        Body::Failures(request) => reply::Body::Failures(core.failures(request, caller).await?),
        Body::OperatorCancel(request) => {
            reply::Body::Inspect(Box::new(core.operator_cancel(request, caller).await?))
        }
        Body::OperatorAnswer(request) => {
            reply::Body::Inspect(Box::new(core.operator_answer(request, caller).await?))
        }
        Body::Agents(request) => {
            core.meet(&request.name).await?;
            reply::Body::Agents(core.agents(&request)?)
        }
        Body::Workers(_) => reply::Body::Workers(core.workers()),
        Body::CreatePush(config) => {
            reply::Body::Push(Box::new(core.create_push(config, caller).await?))
        }
        Body::GetPush(request) => {
            reply::Body::Push(Box::new(core.get_push(request, caller).await?))
        }
        Body::ListPush(request) => reply::Body::Pushes(core.list_push(request, caller).await?),
        Body::DeletePush(request) => {
            core.delete_push(request, caller).await?;
            reply::Body::Deleted(Deleted {})
        }
        Body::ExtendedCard(request) => {
            reply::Body::Card(Box::new(core.extended_card(&request, caller)?))
        }
        Body::Send(_)
        | Body::Wait(_)
        | Body::Stream(_)
        | Body::Subscribe(_)
        | Body::Watch(_)
        | Body::Credit(_)
        | Body::Drop(_) => unreachable!("the line keeps these to itself"),
    })
}

/// The span of one call at this hop, and the caller as the operations see it.
pub(crate) fn serve_span(method: &'static str, asked: v1::Caller) -> (Span, Caller) {
    let mut caller = Caller::from(asked);
    let name = format_args!("lf.a2a.v1.A2AService/{method}");
    let mut span = Span::begin(Kind::Server, &caller.trace, name);
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

/// What is refused here was born here.
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

/// What the caller is not told must be found somewhere: here, under the failure's id.
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
