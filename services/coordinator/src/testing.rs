//! A coordinator in this process for unit tests: a real store, and a worker that the test
//! plays.

use std::{sync::Arc, time::Duration};

use faultline_chassis::{MeshConfig, Secret, credential::Credentials};
use faultline_proto::{
    Failure,
    a2a::{
        self, AgentCapabilities, AgentCard, CancelTaskRequest, SendMessageConfiguration,
        SendMessageRequest, SendMessageResponse, part::Content, send_message_response::Payload,
    },
    id::WorkerId,
    v1::{self, AgentOffer, Assign, Frame, Held, Hello, Report, ToWorker, report, to_worker},
};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    Config,
    api::{delegation::AttemptCredentials, subscription::Subscription},
    calls::caller::Caller,
    clock::now,
    engine::{active_task::Done, core::Core},
    store::{Filter, Store, Write, sqlite::Sqlite},
};

pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) type Answer = oneshot::Receiver<Result<SendMessageResponse, Failure>>;

pub(crate) struct Bench {
    pub(crate) core: Arc<Core>,
    pub(crate) worker: WorkerId,
    pub(crate) messages: mpsc::Receiver<ToWorker>,
    /// Of a store that is a file.
    dir: Option<tempfile::TempDir>,
    writer: JoinHandle<()>,
}

/// An agent with a card that offers streaming.
pub(crate) fn offer(name: &str) -> AgentOffer {
    let capabilities = AgentCapabilities { streaming: Some(true), ..AgentCapabilities::default() };
    let card = AgentCard { capabilities: Some(capabilities), ..AgentCard::default() };
    AgentOffer { name: name.into(), card: Some(card), ..AgentOffer::default() }
}

pub(crate) fn principal(name: &str) -> Caller {
    v1::Caller { principal: name.into(), ..v1::Caller::default() }.into()
}

pub(crate) fn keyed(name: &str, key: &str) -> Caller {
    Caller { idempotency_key: key.into(), ..principal(name) }
}

pub(crate) fn request(agent: &str, text: &str) -> SendMessageRequest {
    let part = a2a::Part { content: Some(Content::Text(text.into())), ..a2a::Part::default() };
    let message = a2a::Message { parts: vec![part], ..a2a::Message::default() };
    SendMessageRequest {
        tenant: agent.into(),
        message: Some(message),
        ..SendMessageRequest::default()
    }
}

pub(crate) fn at_once(request: SendMessageRequest) -> SendMessageRequest {
    let now = SendMessageConfiguration { return_immediately: true, ..Default::default() };
    SendMessageRequest { configuration: Some(now), ..request }
}

/// The same message as an answer to this task.
pub(crate) fn answering(mut request: SendMessageRequest, task_id: &str) -> SendMessageRequest {
    request.message.get_or_insert_default().task_id = task_id.into();
    request
}

pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    timeout(SOON, work).await.expect("in time")
}

pub(crate) async fn task_of(answer: Answer) -> a2a::Task {
    match soon(answer).await.unwrap().unwrap().payload {
        Some(Payload::Task(task)) => task,
        other => panic!("a task, not {other:?}"),
    }
}

pub(crate) async fn refusal_of(answer: Answer) -> Failure {
    soon(answer).await.unwrap().unwrap_err()
}

pub(crate) async fn frame_of(subscription: &mut Subscription) -> Option<Frame> {
    soon(subscription.next()).await.unwrap()
}

fn writer(core: &Arc<Core>) -> JoinHandle<()> {
    let core = Arc::clone(core);
    tokio::spawn(async move { core.write().await })
}

impl Bench {
    pub(crate) async fn start(offers: Vec<AgentOffer>) -> Self {
        Self::start_with(Config::default(), offers).await
    }

    pub(crate) async fn start_with(config: Config, offers: Vec<AgentOffer>) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config, offers).await
    }

    pub(crate) async fn start_in(
        dir: tempfile::TempDir,
        config: Config,
        offers: Vec<AgentOffer>,
    ) -> Self {
        let store = Sqlite::open(&dir.path().join("t.db")).unwrap();
        Self { dir: Some(dir), ..Self::start_on(Box::new(store), config, offers).await }
    }

    pub(crate) async fn start_on(
        store: Box<dyn Store>,
        config: Config,
        offers: Vec<AgentOffer>,
    ) -> Self {
        let core = Arc::new(Core::new(store, config));
        core.recover().await.unwrap();
        let writer = writer(&core);
        let (worker, (outbox, messages)) = (WorkerId::new(), mpsc::channel(64));
        if !offers.is_empty() {
            let hello = Hello { agents: offers, slots: 100, ..Hello::default() };
            core.change(|state| state.attach(worker, hello, outbox, core.welcome(), now()));
        }
        Self { core, worker, messages, dir: None, writer }
    }

    /// Another coordinator on the same store, with its agents.
    pub(crate) async fn restart(self, offers: Vec<AgentOffer>) -> Self {
        let Self { core, dir, writer, .. } = self;
        core.flushed().await;
        writer.abort();
        let _ = writer.await;
        let config = Config::clone(&core.config);
        core.released().await;
        Self::start_in(dir.expect("it is a file"), config, offers).await
    }

    pub(crate) fn send(&self, request: SendMessageRequest, caller: &Caller) -> Answer {
        let (done, answer) = oneshot::channel();
        let done: Done = Box::new(move |sent| drop(done.send(sent.map_err(Failure::from))));
        self.core.send(request, caller.clone(), done);
        answer
    }

    /// The next message to the worker, except welcome and acknowledgements.
    pub(crate) async fn told(&mut self) -> to_worker::Body {
        loop {
            match soon(self.messages.recv()).await.and_then(|message| message.body) {
                Some(to_worker::Body::Welcome(_) | to_worker::Body::Acks(_)) => {}
                other => return other.expect("the worker's stream is open"),
            }
        }
    }

    pub(crate) async fn assigned(&mut self) -> Assign {
        match self.told().await {
            to_worker::Body::Assign(assign) => assign,
            other => panic!("an assignment, not {other:?}"),
        }
    }

    pub(crate) fn report(&self, assign: &Assign, number: u32, body: report::Body) {
        let (task_id, attempt) = (assign.task_id.clone(), assign.attempt);
        let report = Report { task_id, attempt, number, body: Some(body) };
        self.core.change(|state| state.reports(self.worker, vec![report], now()));
    }

    pub(crate) fn complete(&self, assign: &Assign, number: u32) {
        self.report(assign, number, report::Body::Completed(v1::Completed::default()));
    }

    /// From now on nothing becomes durable…
    pub(crate) async fn hold_writes(&mut self) {
        self.core.flushed().await;
        self.writer.abort();
        let _ = (&mut self.writer).await;
    }

    /// …until now.
    pub(crate) fn write_on(&mut self) {
        self.writer = writer(&self.core);
    }

    /// Writes past everything else.
    pub(crate) async fn write(&self, write: Write) {
        self.core.change(|state| state.commit_write(write, Vec::new()));
        self.core.flushed().await;
    }

    /// The number of tasks of all principals.
    pub(crate) async fn count(&self) -> usize {
        let filter = Filter { limit: 1, ..Filter::default() };
        self.core.store.list(filter).await.unwrap().total
    }
}

/// A call of a caller that has every role, as the port's layer lets it through.
pub(crate) fn known<T>(message: T) -> tonic::Request<T> {
    let token = Secret::random();
    let said = format!("Bearer {}", token.reveal()).parse().unwrap();
    let mesh = MeshConfig { token: Some(token), ..MeshConfig::default() };
    let credentials = Credentials::load(&mesh, Config::default().port()).unwrap();
    let headers = [(http::header::AUTHORIZATION, said)].into_iter().collect();
    let mut request = tonic::Request::new(message);
    request.extensions_mut().insert(Arc::clone(credentials.identify(&headers).unwrap()));
    request
}

// Delegation.

pub(crate) fn claimed(assign: &Assign, key: &str) -> AttemptCredentials {
    AttemptCredentials {
        token: assign.token.clone(),
        key: key.into(),
        ..AttemptCredentials::default()
    }
}

impl Bench {
    /// The attempt as a caller. The principal that it claims is ignored.
    pub(crate) fn calling(&self, assign: &Assign, key: &str) -> Caller {
        self.core.authenticate_attempt(principal("mallory"), claimed(assign, key)).unwrap()
    }

    pub(crate) fn calling_detached(&self, assign: &Assign, key: &str) -> Caller {
        let claimed = AttemptCredentials { detached: true, ..claimed(assign, key) };
        self.core.authenticate_attempt(principal("mallory"), claimed).unwrap()
    }

    /// Starts a task of ann's and gives it to the worker.
    pub(crate) async fn root(&mut self, agent: &str) -> Assign {
        self.child_of(&principal("ann"), agent).await
    }

    /// A child on the worker.
    pub(crate) async fn child(&mut self, parent: &Assign, key: &str, agent: &str) -> Assign {
        self.child_of(&self.calling(parent, key), agent).await
    }

    pub(crate) async fn child_of(&mut self, caller: &Caller, agent: &str) -> Assign {
        task_of(self.send(at_once(request(agent, "do this")), caller)).await;
        self.assigned().await
    }

    /// As ann does.
    pub(crate) async fn cancel(&self, id: &str) -> a2a::Task {
        let cancel = CancelTaskRequest { id: id.into(), ..CancelTaskRequest::default() };
        soon(self.core.cancel(cancel, &principal("ann"))).await.unwrap()
    }

    pub(crate) fn set_slots(&self, slots: u32) {
        self.core.change(|state| {
            state.registry.workers.get_mut(&self.worker).unwrap().slots = slots;
        });
    }

    /// The worker attaches again with the attempts that it holds.
    pub(crate) fn attach_again(&mut self, agents: &[&str], slots: u32, held: Vec<Held>) {
        let (outbox, messages) = mpsc::channel(64);
        let agents = agents.iter().map(|name| offer(name)).collect();
        let hello = Hello { agents, slots, held, ..Hello::default() };
        let core = &self.core;
        core.change(|state| state.attach(self.worker, hello, outbox, core.welcome(), now()));
        self.messages = messages;
    }
}
