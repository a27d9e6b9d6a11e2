//! Tests of tenant isolation: two principals in one mesh neither see nor change tasks of each
//! other.

use faultline_proto::{
    Failure,
    a2a::{
        AgentCapabilities, AgentCard, AgentExtension, CancelTaskRequest,
        DeleteTaskPushNotificationConfigRequest, GetExtendedAgentCardRequest,
        GetTaskPushNotificationConfigRequest, GetTaskRequest,
        ListTaskPushNotificationConfigsRequest, ListTasksRequest, SubscribeToTaskRequest,
        TaskPushNotificationConfig, TaskState,
    },
    reason,
    v1::{self, AgentOffer, AgentsRequest, InspectRequest, Interrupt, report},
};

use crate::{
    calls::caller::Caller,
    error::Error,
    testing::{
        Bench, answering, at_once, keyed, offer, principal, refusal_of, request, soon, task_of,
    },
};

fn only(name: &str, agents: &[&str]) -> Caller {
    let agents = agents.iter().map(|a| (*a).to_owned()).collect();
    Caller { agents, ..principal(name) }
}

/// An agent with push notifications: a call about the push of any other is refused before the task
/// is looked up.
fn notifying(name: &str) -> AgentOffer {
    let capabilities = AgentCapabilities {
        streaming: Some(true),
        push_notifications: Some(true),
        ..AgentCapabilities::default()
    };
    let card = AgentCard { capabilities: Some(capabilities), ..AgentCard::default() };
    AgentOffer { card: Some(card), ..offer(name) }
}

#[tokio::test]
async fn a_caller_without_a_list_of_agents_may_not_use_agents_for_drills() {
    let drill = AgentOffer { drill: true, ..offer("drill") };
    let mut bench = Bench::start(vec![offer("a"), drill]).await;
    let by_default = Caller { without_drills: true, ..principal("ann") };
    let send = async |caller: &Caller, agent: &str| {
        soon(bench.send(at_once(request(agent, "hi")), caller)).await.unwrap().map(drop)
    };
    let refused = send(&by_default, "drill").await.unwrap_err();
    assert_eq!(refused.row(), &reason::INSUFFICIENT_SCOPE);
    assert!(refused.public_message.contains("`agents`"), "{}", refused.public_message);
    send(&by_default, "a").await.unwrap();
    send(&only("ann", &["drill"]), "drill").await.unwrap();
    send(&principal("ann"), "drill").await.unwrap();
    // An agent that the caller may use delegates by its own authority.
    let root = bench.root("a").await;
    bench.child(&root, "one", "drill").await;
}

/// The answers of every operation on this task for this caller.
async fn tried(bench: &Bench, id: &str, caller: &Caller) -> Vec<Result<(), Failure>> {
    let (id, tenant, core) = (id.to_owned(), String::new(), &bench.core);
    let get = GetTaskRequest { id: id.clone(), ..GetTaskRequest::default() };
    let cancel = CancelTaskRequest { id: id.clone(), ..CancelTaskRequest::default() };
    let subscribe = SubscribeToTaskRequest { id: id.clone(), tenant };
    let inspect = InspectRequest { task_id: id.clone() };
    let answer = answering(at_once(request("", "hi")), &id);
    let with_key = Caller { idempotency_key: "k".into(), ..caller.clone() };
    let failed = |error: Error| Failure::from(error);
    let (hook, task_id) = ("hook".to_owned(), id.clone());
    let (url, push_id) = ("https://example.org/".to_owned(), hook.clone());
    let make = TaskPushNotificationConfig { id: hook, task_id, url, ..Default::default() };
    let task_id = id.clone();
    let read = GetTaskPushNotificationConfigRequest {
        task_id: task_id.clone(),
        id: push_id.clone(),
        ..Default::default()
    };
    let all =
        ListTaskPushNotificationConfigsRequest { task_id: task_id.clone(), ..Default::default() };
    let delete =
        DeleteTaskPushNotificationConfigRequest { task_id, id: push_id, ..Default::default() };
    vec![
        core.create_push(make, caller).await.map(drop).map_err(failed),
        core.get_push(read, caller).await.map(drop).map_err(failed),
        core.list_push(all, caller).await.map(drop).map_err(failed),
        core.delete_push(delete, caller).await.map_err(failed),
        core.get(get, caller).await.map(drop).map_err(failed),
        core.subscribe(&subscribe, None, caller).await.map(drop).map_err(failed),
        core.subscribe(&subscribe, Some(1), caller).await.map(drop).map_err(failed),
        core.inspect(inspect, caller).await.map(drop).map_err(failed),
        soon(bench.send(answer.clone(), caller)).await.unwrap().map(drop),
        soon(bench.send(answer.clone(), &with_key)).await.unwrap().map(drop),
        core.stream(answer, caller).await.map(drop).map_err(failed),
        core.cancel(cancel, caller).await.map(drop).map_err(failed),
    ]
}

fn said(results: Vec<Result<(), Failure>>, id: &str) -> Vec<String> {
    let failures = results.into_iter().map(|result| result.expect_err("not theirs"));
    let words = failures.map(|f| {
        let mut record = f.into_record();
        record.id.clear();
        record.time = None;
        format!("{record:?}").replace(id, "ID")
    });
    words.collect()
}

#[tokio::test]
async fn foreign_task_error_equals_unknown_task_error() {
    let mut bench = Bench::start(vec![notifying("a"), notifying("b")]).await;
    let sent = bench.send(request("a", "hi"), &principal("ann"));
    let assign = bench.assigned().await;
    let ask = Interrupt { key: "q".into(), ..Interrupt::default() };
    bench.report(&assign, 1, report::Body::Ask(ask));
    let task = task_of(sent).await;
    let nothing = faultline_proto::id::TaskId::new().to_string();
    let missing = said(tried(&bench, &nothing, &principal("ben")).await, &nothing);
    assert!(missing.iter().all(|words| words.contains("TASK_NOT_FOUND")), "{missing:#?}");
    assert_eq!(said(tried(&bench, &task.id, &principal("ben")).await, &task.id), missing);
    let narrow = only("ann", &["b"]);
    assert_eq!(
        said(tried(&bench, &task.id, &narrow).await, &task.id),
        missing,
        "nor is one of an agent that the caller may not use"
    );
    let get = GetTaskRequest { id: task.id.clone(), ..GetTaskRequest::default() };
    let mine = bench.core.get(get, &principal("ann")).await.unwrap();
    assert_eq!(mine, task, "and nothing has happened to it");
}

#[tokio::test]
async fn list_shows_own_tasks_only() {
    let mut bench = Bench::start(vec![offer("a"), offer("b")]).await;
    for (whose, agent) in [("ann", "a"), ("ann", "b"), ("ben", "a"), ("", "a")] {
        let mut hi = at_once(request(agent, "hi"));
        hi.message.as_mut().unwrap().context_id = "shared".into();
        task_of(bench.send(hi, &principal(whose))).await;
        bench.assigned().await;
    }
    let cases = [
        (principal("ann"), "", 2),
        (principal("ann"), "b", 1),
        (only("ann", &["a"]), "", 1),
        (only("ann", &["a"]), "b", 0),
        (principal("ben"), "", 1),
        (principal("eve"), "", 0),
        (principal("local"), "", 1),
    ];
    for (caller, tenant, expected) in cases {
        for context in ["", "shared"] {
            let (tenant, context_id) = (tenant.to_owned(), context.to_owned());
            let list = ListTasksRequest { tenant, context_id, ..ListTasksRequest::default() };
            let list = bench.core.list(list, &caller).await.unwrap();
            let counts = (list.tasks.len(), list.total_size);
            assert_eq!(counts, (expected, expected as i32), "{caller:?}");
        }
    }
}

#[tokio::test]
async fn an_agent_out_of_bounds_is_denied_whether_it_exists_or_not() {
    let bench = Bench::start(vec![offer("a"), offer("b")]).await;
    let narrow = only("ann", &["a"]);
    for agent in ["b", "never-offered"] {
        let words = |failure: Failure| (failure.reason.clone(), failure.public_message.clone());
        let plain = refusal_of(bench.send(request(agent, "hi"), &narrow)).await;
        let (reason, text) = words(plain);
        assert_eq!(reason, "INSUFFICIENT_SCOPE");
        assert_eq!(text.replace(agent, "X"), Error::Denied("X".into()).to_string());
        let with_key = Caller { agents: narrow.agents.clone(), ..keyed("ann", "k") };
        let keyed = refusal_of(bench.send(request(agent, "hi"), &with_key)).await;
        let streamed = bench.core.stream(request(agent, "hi"), &narrow).await.map(drop);
        let card = GetExtendedAgentCardRequest { tenant: agent.into() };
        let card = bench.core.extended_card(&card, &narrow);
        for failure in [keyed, streamed.unwrap_err().into(), card.unwrap_err().into()] {
            assert_eq!(words(failure), (reason.clone(), text.clone()));
        }
    }
    let unknown = refusal_of(bench.send(request("never-offered", "hi"), &principal("ann"))).await;
    assert_eq!(unknown.reason, "AGENT_NOT_FOUND");
}

#[tokio::test]
async fn operator_inspects_tasks_of_all_principals() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let task = task_of(bench.send(at_once(request("a", "hi")), &principal("ann"))).await;
    bench.assigned().await;
    let request = InspectRequest { task_id: task.id };
    let operator = Caller { operates: true, ..principal("olga") };
    let seen = bench.core.inspect(request.clone(), &operator).await.unwrap();
    assert_eq!(seen.principal, "ann");
    assert!(bench.core.inspect(request.clone(), &principal("ann")).await.is_ok());
    assert!(bench.core.inspect(request, &principal("olga")).await.is_err());
}

#[tokio::test]
async fn a_task_keeps_its_principal_through_a_restart() {
    let mut bench = Bench::start(vec![offer("a")]).await;
    let task = task_of(bench.send(at_once(request("a", "hi")), &principal("ann"))).await;
    bench.assigned().await;
    let bench = bench.restart(Vec::new()).await;
    let get = GetTaskRequest { id: task.id, ..GetTaskRequest::default() };
    assert!(bench.core.get(get.clone(), &principal("ann")).await.is_ok());
    assert!(bench.core.get(get, &principal("ben")).await.is_err());
}

#[tokio::test]
async fn card_and_its_change_time_survive_a_restart() {
    let changed = |bench: &Bench| {
        let agents = bench.core.agents(&AgentsRequest::default()).unwrap().agents;
        let [agent] = &agents[..] else { panic!("one agent, not {agents:?}") };
        (agent.card.clone(), agent.card_changed.unwrap())
    };
    let bench = Bench::start(vec![offer("a")]).await;
    let first = changed(&bench);
    let bench = bench.restart(Vec::new()).await;
    assert_eq!(changed(&bench), first, "nobody offers it now");
    let bench = bench.restart(vec![offer("a")]).await;
    assert_eq!(changed(&bench), first, "the same again is no change");
    let mut other = offer("a");
    other.card.as_mut().unwrap().version = "2".into();
    let bench = bench.restart(vec![other]).await;
    let (card, at) = changed(&bench);
    assert_eq!(card.unwrap().version, "2");
    assert!((at.seconds, at.nanos) > (first.1.seconds, first.1.nanos));
}

fn extended(extensions: &[(&str, bool)]) -> AgentOffer {
    let mut offer = offer("a");
    let card = offer.card.as_mut().unwrap();
    let capabilities = card.capabilities.as_mut().unwrap();
    capabilities.extended_agent_card = Some(true);
    capabilities.extensions = extensions
        .iter()
        .map(|(uri, required)| AgentExtension {
            uri: (*uri).into(),
            required: *required,
            ..AgentExtension::default()
        })
        .collect();
    offer.extended_card = Some(AgentCard { name: "more".into(), ..AgentCard::default() });
    offer
}

#[tokio::test]
async fn extensions_of_both_sides_are_in_force_for_every_call() {
    let mut bench = Bench::start(vec![extended(&[("urn:a", false), ("urn:b", true)])]).await;
    let plain = refusal_of(bench.send(at_once(request("a", "hi")), &principal("ann"))).await;
    assert_eq!(plain.reason, "EXTENSION_SUPPORT_REQUIRED");
    let declared = || {
        let extensions = ["urn:x", "urn:b"].map(str::to_owned).into();
        Caller::from(v1::Caller { principal: "ann".into(), extensions, ..v1::Caller::default() })
    };
    let caller = declared();
    let task = task_of(bench.send(at_once(request("a", "hi")), &caller)).await;
    assert_eq!(caller.extensions.active(), ["urn:b"]);
    bench.assigned().await;
    let caller = declared();
    let get = GetTaskRequest { id: task.id, ..GetTaskRequest::default() };
    bench.core.get(get, &caller).await.unwrap();
    assert_eq!(caller.extensions.active(), ["urn:b"]);
    let card = GetExtendedAgentCardRequest::default();
    assert_eq!(bench.core.extended_card(&card, &caller).unwrap().name, "more");
}

#[tokio::test]
async fn an_agent_that_does_not_stream_is_not_streamed() {
    let mut silent = offer("a");
    silent.card = None;
    let mut bench = Bench::start(vec![silent]).await;
    let caller = principal("ann");
    let refused = bench.core.stream(request("a", "hi"), &caller).await.map(drop).unwrap_err();
    assert_eq!(Failure::from(refused).reason, "UNSUPPORTED_OPERATION");
    let task = task_of(bench.send(at_once(request("a", "hi")), &caller)).await;
    bench.assigned().await;
    let subscribe = SubscribeToTaskRequest { id: task.id, ..SubscribeToTaskRequest::default() };
    let refused = bench.core.subscribe(&subscribe, None, &caller).await.map(drop).unwrap_err();
    assert_eq!(Failure::from(refused).reason, "UNSUPPORTED_OPERATION");
    assert_eq!(bench.count().await, 1);
    assert_eq!(task.status.unwrap().state(), TaskState::Submitted);
}
