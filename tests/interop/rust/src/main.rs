//! The official Rust client against a mesh, on JSON-RPC and REST: one JSON line per check on
//! stdout.

mod errors;
mod operations;
mod webhook;

use std::{future::Future, pin::Pin, process::ExitCode, sync::Arc, time::Duration};

use a2a::*;
use a2a_client::{
    A2AClient, A2AClientFactory, Transport, agent_card::AgentCardResolver, auth::AuthInterceptor,
    factory::A2AClientFactoryBuilder, middleware::CallInterceptor, transport::ServiceParams,
};
use async_trait::async_trait;
use futures::StreamExt;

const SDK: &str = "a2a-client-lf";
/// Time limit of one check, longer than any intended wait.
const CHECK_MAX: Duration = Duration::from_secs(30);

pub type Client = A2AClient<Box<dyn Transport>>;
/// The error of a failed check.
pub type Checked = Result<(), String>;
pub type Check = fn(Clients) -> Pin<Box<dyn Future<Output = Checked>>>;

/// A check with its name in the table of docs/interop.md.
#[macro_export]
macro_rules! checks {
    ($($name:literal => $check:path),+ $(,)?) => {
        &[$(($name, |clients| Box::pin($check(clients)))),+]
    };
}

/// Fails the check unless the condition is true.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err(format!("not so: {}; seen: {}", stringify!($holds), format!($($seen)+)));
        }
    };
}

/// Clients of one binding, made from the agent card as in an application.
#[derive(Clone, Copy)]
pub struct Clients(&'static str);

/// Adds or replaces one service parameter of every call.
struct Parameter(&'static str, &'static str);

#[async_trait]
impl CallInterceptor for Parameter {
    async fn before(&self, _: &str, params: &mut ServiceParams) -> Result<(), A2AError> {
        params.insert(self.0.to_owned(), vec![self.1.to_owned()]);
        Ok(())
    }
}

pub fn env(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|_| format!("{name} is not set"))
}

pub async fn card_of(agent: &str) -> Result<AgentCard, String> {
    resolve(&env("FAULTLINE_URL")?, agent).await
}

async fn resolve(mesh: &str, agent: &str) -> Result<AgentCard, String> {
    let url = format!("{mesh}/agents/{agent}");
    AgentCardResolver::new(None).resolve(&url).await.map_err(|e| e.to_string())
}

impl Clients {
    pub fn binding(self) -> &'static str {
        self.0
    }

    pub async fn of(self, agent: &str) -> Result<Client, String> {
        self.build(card_of(agent).await?, A2AClientFactory::builder()).await
    }

    /// The same with one service parameter in all calls.
    pub async fn with(
        self,
        agent: &str,
        name: &'static str,
        value: &'static str,
    ) -> Result<Client, String> {
        let parameter = Arc::new(Parameter(name, value));
        let builder = A2AClientFactory::builder().with_interceptor(parameter);
        self.build(card_of(agent).await?, builder).await
    }

    /// A client of the mesh that requires a token.
    pub async fn of_locked(self, agent: &str, token: &str) -> Result<Client, String> {
        let card = resolve(&env("FAULTLINE_LOCKED_URL")?, agent).await?;
        let bearer = Arc::new(AuthInterceptor::bearer(token));
        self.build(card, A2AClientFactory::builder().with_interceptor(bearer)).await
    }

    async fn build(
        self,
        mut card: AgentCard,
        builder: A2AClientFactoryBuilder,
    ) -> Result<Client, String> {
        card.supported_interfaces.retain(|i| i.protocol_binding == self.0);
        builder.build().create_from_card(&card).await.map_err(|e| e.to_string())
    }
}

pub fn message(text: &str) -> SendMessageRequest {
    let message = Message::new(Role::User, vec![Part::text(text)]);
    SendMessageRequest { message, configuration: None, metadata: None, tenant: None }
}

/// The same, without waiting for the end of the task.
pub fn at_once(text: &str) -> SendMessageRequest {
    let configuration = SendMessageConfiguration {
        accepted_output_modes: None,
        task_push_notification_config: None,
        history_length: None,
        return_immediately: Some(true),
    };
    SendMessageRequest { configuration: Some(configuration), ..message(text) }
}

/// An answer to a task that waits.
pub fn answer(task: &Task, text: &str) -> SendMessageRequest {
    let mut request = message(text);
    request.message.task_id = Some(task.id.clone());
    request
}

pub async fn send(client: &Client, request: &SendMessageRequest) -> Result<Task, String> {
    match client.send_message(request).await {
        Ok(SendMessageResponse::Task(task)) => Ok(task),
        other => Err(format!("no task: {other:?}")),
    }
}

pub async fn get(client: &Client, id: &str) -> Result<Task, String> {
    let request = GetTaskRequest { id: id.to_owned(), history_length: None, tenant: None };
    client.get_task(&request).await.map_err(|e| e.to_string())
}

/// Polls the task until it is in this state.
pub async fn until(client: &Client, id: &str, state: TaskState) -> Result<Task, String> {
    loop {
        let task = get(client, id).await?;
        if task.status.state == state {
            return Ok(task);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub type Stream = futures::stream::BoxStream<'static, Result<StreamResponse, A2AError>>;

/// Every event to the end, or the first error.
pub async fn collect(stream: Result<Stream, A2AError>) -> Result<Vec<StreamResponse>, A2AError> {
    let events: Vec<_> = stream?.collect().await;
    events.into_iter().collect()
}

pub fn text(parts: &[Part]) -> String {
    parts.iter().filter_map(Part::as_text).collect()
}

pub fn artifacts(task: &Task) -> Vec<String> {
    task.artifacts.iter().flatten().map(|a| text(&a.parts)).collect()
}

/// The client with the version that is linked.
fn client() -> String {
    let entry = format!("name = \"{SDK}\"\nversion = \"");
    let version = include_str!("../Cargo.lock").split(&entry).nth(1);
    format!("{SDK} {}", version.and_then(|rest| rest.split('"').next()).unwrap_or("unknown"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let client = client();
    let mut all_well = true;
    for binding in [TRANSPORT_PROTOCOL_JSONRPC, TRANSPORT_PROTOCOL_HTTP_JSON] {
        for (name, check) in operations::CHECKS.iter().chain(errors::CHECKS) {
            let ended = tokio::time::timeout(CHECK_MAX, check(Clients(binding))).await;
            let why = ended.unwrap_or_else(|_| Err("it hangs".to_owned())).err();
            let ok = why.is_none();
            all_well &= ok;
            let line = serde_json::json!({
                "client": client, "binding": binding, "check": name, "ok": ok, "why": why,
            });
            println!("{line}");
        }
    }
    if all_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
