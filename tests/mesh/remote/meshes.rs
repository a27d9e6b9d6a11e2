//! Delegation between two meshes, one of which offers an agent of the other, on every binding.

use faultline::remote::{Binding, Remote};
use faultline_tests::{
    Plan, Rpc,
    cluster::free_address,
    rpc::{answer, message},
    task::{self, AUTH_REQUIRED, CANCELED, COMPLETED, FAILED, Fold, INPUT_REQUIRED, REJECTED},
    until,
    wait::SOON,
};
use serde_json::{Value, json};

use crate::{Running, start_with};

const BINDINGS: [Binding; 3] = [Binding::JsonRpc, Binding::HttpJson, Binding::Grpc];

/// The agent `script` of another mesh.
fn script_of(there: &Running, binding: Binding) -> Remote {
    let card = format!("{}/agents/script", there.mesh.url());
    Remote { card, binding: Some(binding), ..Remote::default() }
}

/// A mesh whose cards list every binding.
async fn serving_mesh() -> Running {
    start_with(|config| {
        config.gateway.listen = free_address();
        config.gateway.public_grpc = Some(config.gateway.listen.to_string());
    })
    .await
}

/// A serving mesh, and a mesh that offers its `script` as `partner`.
async fn two_meshes(binding: Binding) -> (Running, Running, Rpc) {
    let there = serving_mesh().await;
    let remote = script_of(&there, binding);
    let here = start_with(|config| {
        config.remote.insert("partner".to_owned(), remote);
    })
    .await;
    let partner = here.rpc.agent("partner");
    (there, here, partner)
}

fn failure(task: &Value) -> &Value {
    &task["metadata"]["faultline.dev/failure"]
}

async fn tasks(rpc: &Rpc) -> Vec<Value> {
    let params = json!({"pageSize": 100, "includeArtifacts": true});
    let list = rpc.call("ListTasks", params).await.expect("tasks are listed");
    list["tasks"].as_array().expect("tasks are a list").clone()
}

/// The only task of a mesh, once there is one.
async fn only(rpc: &Rpc) -> Value {
    until("there is a task", SOON, async || tasks(rpc).await.first().cloned()).await
}

async fn in_state(rpc: &Rpc, id: &str, state: &str) -> Value {
    until(state, SOON, async || Some(rpc.task(id).await).filter(|t| task::state(t) == state)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn remote_output_is_streamed_as_it_is_produced() {
    for binding in BINDINGS {
        let (there, _here, partner) = two_meshes(binding).await;
        let script = "say one; chunk \"a \"; sleep 50ms; chunk \"b \"; artifact extra whole; \
                      sleep 50ms; chunk c; message done";
        let sent = partner.stream("SendStreamingMessage", message(script)).await.unwrap();
        let frames = sent.all().await;
        let fold = Fold::of(&frames);
        assert_eq!(fold.finals(), [COMPLETED], "{binding:?}");
        assert_eq!(fold.artifacts["output"], "a b c", "{binding:?}");
        assert_eq!(fold.artifacts["extra"], "whole", "{binding:?}");
        let chunks = frames.iter().filter(|f| f.body.get("artifactUpdate").is_some()).count();
        assert!(chunks >= 3, "{binding:?}: chunks arrive one by one, {chunks}");
        let id = task::id(&frames[0].body["task"]).to_owned();
        let stored = partner.task(&id).await;
        assert_eq!(task::artifacts(&stored)["output"], "a b c", "{stored}");
        assert_eq!(task::text(&stored["status"]["message"]), "done", "{stored}");
        let statuses: Vec<_> = frames.iter().map(|f| &f.body["statusUpdate"]["status"]).collect();
        assert!(statuses.iter().any(|s| task::text(&s["message"]) == "one"), "{statuses:?}");
        let theirs = tasks(&there.rpc).await;
        assert_eq!(theirs.len(), 1, "{binding:?}: sent once");
        assert_ne!(
            theirs[0]["contextId"], stored["contextId"],
            "the remote task has its own context"
        );
        let private = "faultline.dev/idempotencyKey";
        assert!(!theirs[0]["history"].to_string().contains(private), "{theirs:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn card_repeats_the_card_of_the_remote_agent() {
    let (there, here, partner) = two_meshes(Binding::JsonRpc).await;
    let card = |name: &str| format!("/agents/{name}/.well-known/agent-card.json");
    let theirs = there.rpc.path(&card("script")).get().await.json();
    let ours = partner.path(&card("partner")).get().await.json();
    assert_eq!(ours["name"], "partner");
    for same in ["description", "skills", "defaultInputModes", "version"] {
        assert_eq!(ours[same], theirs[same], "{same}");
    }
    let url = ours["supportedInterfaces"][0]["url"].as_str().unwrap_or_default();
    assert!(url.starts_with(&here.mesh.url()), "the card points to this mesh: {url}");
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_three_hops_deep_names_the_hops_of_both_meshes() {
    for binding in BINDINGS {
        let (there, here, _) = two_meshes(binding).await;
        let fault = "fail RATE_LIMITED code=40401 text=\"slow down\" retry_after=2s";
        let script = format!("delegate partner {{ delegate script {{ {fault} }} }}");
        let trace = format!("{:032x}", rand::random::<u128>() | 1);
        let traced = here.script.header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"));
        let task = traced.send(&script).await;
        assert_eq!(task::state(&task), FAILED, "{task}");
        let failure = failure(&task);
        let names = failure["causes"].as_array().expect("there are causes").iter();
        let names = names.map(|c| c["agent"].as_str().unwrap_or_default()).collect::<Vec<_>>();
        let expected = ["script", "partner", "partner:script", "partner:script"];
        assert_eq!(names, expected, "{binding:?}: {failure}");
        assert_eq!(failure["origin"]["agent"], "partner", "{failure}");
        assert_eq!(failure["foreign"], true);
        assert_eq!(failure["reason"], "RATE_LIMITED");
        assert_eq!(failure["businessCode"], "40401");
        assert_eq!(failure["retryAfter"], "2s");
        assert_eq!(failure["causes"][3]["publicMessage"], "slow down", "{failure}");
        assert_eq!(
            failure["publicMessage"],
            "partner:script: slow down (via partner:script, partner)"
        );
        assert_eq!(failure["traceId"], trace, "one trace through both meshes");
        let theirs = tasks(&there.rpc).await;
        let root = theirs.iter().find(|t| task::id(t) == failure["causes"][3]["taskId"]);
        let root = self::failure(root.expect("the failure names the remote task"));
        assert_eq!((&root["id"], &root["traceId"]), (&failure["id"], &failure["traceId"]));
        let stored = &here.rpc.inspect(task::id(&task)).await["failure"];
        assert_eq!(task::public(stored), *failure, "the stored failure is the same");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rejection_by_a_remote_stays_a_rejection() {
    let (_there, _here, partner) = two_meshes(Binding::JsonRpc).await;
    let task = partner.send("reject \"not my work\"").await;
    assert_eq!(task::state(&task), REJECTED, "{task}");
    assert_eq!(task::text(&task["status"]["message"]), "not my work");
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_reaches_the_remote_mesh() {
    for binding in BINDINGS {
        let (there, _here, partner) = two_meshes(binding).await;
        let task = partner.send_immediately("say here; sleep 60s").await;
        let theirs = only(&there.rpc).await;
        let canceled = partner.call("CancelTask", json!({"id": task["id"]})).await.unwrap();
        assert_eq!(task::state(&canceled), CANCELED);
        in_state(&there.rpc, task::id(&theirs), CANCELED).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn question_of_a_remote_is_asked_locally_and_its_answer_forwarded() {
    for binding in BINDINGS {
        let (there, here, partner) = two_meshes(binding).await;
        let script = "chunk \"hello \"; ask \"Your name?\"; chunk $answer; ask \"And?\"; \
                      chunk \" and $answer\"";
        let asked = partner.send(script).await;
        let id = task::id(&asked);
        assert_eq!(task::state(&asked), INPUT_REQUIRED, "{binding:?}: {asked}");
        assert_eq!(task::text(&asked["status"]["message"]), "Your name?");
        let again = partner.call("SendMessage", answer(id, "Ada")).await.expect("the task waits");
        assert_eq!(task::text(&again["task"]["status"]["message"]), "And?", "{again}");
        let done = partner.call("SendMessage", answer(id, "Bob")).await.expect("the task waits");
        assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
        assert_eq!(task::artifacts(&done["task"])["output"], "hello Ada and Bob");
        assert_eq!((tasks(&there.rpc).await.len(), tasks(&here.rpc).await.len()), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_may_be_given_to_either_mesh() {
    let (there, _here, partner) = two_meshes(Binding::JsonRpc).await;
    let asked = partner.send_immediately("auth https://login.example/x; chunk in").await;
    let asked = in_state(&partner, task::id(&asked), AUTH_REQUIRED).await;
    let interrupt = &asked["status"]["message"]["metadata"]["faultline.dev/interrupt"];
    assert_eq!(interrupt["url"], "https://login.example/x", "{asked}");
    // The credential is given to the remote task, and the local task goes on.
    let theirs = only(&there.rpc).await;
    let given = there.script.call("SendMessage", answer(task::id(&theirs), "done")).await;
    assert_eq!(task::state(&given.unwrap()["task"]), COMPLETED);
    let done = in_state(&partner, task::id(&asked), COMPLETED).await;
    assert_eq!(task::artifacts(&done)["output"], "in", "{done}");
    let asked = partner.send_immediately("auth https://login.example/y; chunk in").await;
    in_state(&partner, task::id(&asked), AUTH_REQUIRED).await;
    let done = partner.call("SendMessage", answer(task::id(&asked), "done")).await.unwrap();
    assert_eq!(task::state(&done["task"]), COMPLETED, "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_worker_leaves_the_remote_task_to_the_next_worker() {
    let (there, mut here, partner) = two_meshes(Binding::JsonRpc).await;
    let task = partner.send_immediately("chunk \"one \"; ask \"Well?\"; chunk $answer").await;
    let theirs = only(&there.rpc).await;
    in_state(&partner, task::id(&task), INPUT_REQUIRED).await;
    here.mesh.detach().await.expect("the worker detaches");
    let remotes = [("partner".to_owned(), script_of(&there, Binding::JsonRpc))].into();
    let mut offers = faultline::remote::offers(&remotes).await.expect("the agent is offered");
    let offer = offers.remove(0);
    let worker = faultline_worker::Config::default();
    let attached = here.mesh.attach(worker, |c| faultline_worker::Worker::new(c).offer(offer));
    attached.await.expect("another worker attaches");
    let theirs = there.rpc.task(task::id(&theirs)).await;
    assert_eq!(task::state(&theirs), INPUT_REQUIRED, "the remote task is not cancelled: {theirs}");
    let done = partner.call("SendMessage", answer(task::id(&task), "two")).await.unwrap();
    assert_eq!(task::artifacts(&done["task"])["output"], "one two", "{done}");
    assert_eq!(tasks(&there.rpc).await.len(), 1, "sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_worker_does_not_send_twice() {
    for binding in ["jsonrpc", "grpc"] {
        let there = serving_mesh().await;
        let remote = format!(
            "[remote.partner]\ncard = \"{}/agents/script\"\nbinding = \"{binding}\"",
            there.mesh.url()
        );
        let mut here = Plan::default().with(&remote).start().await;
        let partner = here.rpc().agent("partner");
        let script = "chunk \"one \"; sleep 3s; chunk \"two \"; sleep 2s; chunk three";
        let task = partner.send_immediately(script).await;
        until("the first chunk has arrived", SOON, async || {
            let task = partner.task(task::id(&task)).await;
            task::artifacts(&task).get("output").cloned()
        })
        .await;
        here.workers[0].kill().await;
        here.workers[0].restart().await;
        let done = until("the task has ended", 3 * SOON, async || {
            let task = partner.task(task::id(&task)).await;
            Some(task).filter(|task| task::is_final(task::state(task)))
        })
        .await;
        assert_eq!(task::state(&done), COMPLETED, "{done}");
        assert_eq!(task::artifacts(&done)["output"], "one two three", "{done}");
        assert_eq!(tasks(&there.rpc).await.len(), 1, "{binding}: sent once");
        let story = here.rpc().inspect(task::id(&done)).await;
        let attempts = story["attempts"].as_array().map(Vec::len);
        assert!(attempts > Some(1), "the worker was lost: {story}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_agent_fails_its_tasks_and_not_its_worker() {
    let unreachable = free_address();
    let up = start_with(|config| {
        let card = format!("http://{unreachable}/agents/script");
        config.remote.insert("partner".to_owned(), Remote { card, ..Remote::default() });
    })
    .await;
    let task = up.rpc.agent("partner").send("chunk x").await;
    let failure = failure(&task);
    assert_eq!((task::state(&task), &failure["reason"]), (FAILED, &json!("AGENT_UNAVAILABLE")));
    assert_eq!(failure["origin"]["agent"], "partner", "{failure}");
    let text = failure["publicMessage"].as_str().unwrap_or_default();
    assert!(text.contains("'partner'") && text.contains("the connection was refused"), "{text}");
    assert!(!failure.to_string().contains(&unreachable.to_string()), "no address leaks: {failure}");
    assert_eq!(task::state(&up.script.send("chunk x").await), COMPLETED);
}

#[tokio::test(flavor = "multi_thread")]
async fn transient_failure_is_retried_unless_the_remote_mesh_has_retried_it() {
    for (retries_there, tries_here) in [(0, 3), (1, 1)] {
        let there = start_with(|config| {
            config.coordinator.retries = retries_there;
            config.coordinator.retry_base_ms = 20;
            config.coordinator.breaker_failures = 0;
        })
        .await;
        let remote = script_of(&there, Binding::JsonRpc);
        let here = start_with(|config| {
            config.coordinator.retries = 2;
            config.coordinator.retry_base_ms = 20;
            config.remote.insert("partner".to_owned(), remote);
        })
        .await;
        let partner = here.rpc.agent("partner");
        let task = partner.send("chunk x; fail UNAVAILABLE text=\"not now\"").await;
        let failure = failure(&task);
        assert_eq!((task::state(&task), &failure["reason"]), (FAILED, &json!("UNAVAILABLE")));
        assert_eq!(failure["retriesSpent"], json!(tries_here - 1 + retries_there), "{failure}");
        let story = here.rpc.inspect(task::id(&task)).await;
        let attempts = story["attempts"].as_array().map_or(0, Vec::len);
        assert_eq!(attempts as u32, tries_here, "{story}");
        assert_eq!(tasks(&there.rpc).await.len(), attempts, "one remote task per attempt: {story}");
        let again = partner.send("chunk y").await;
        assert_eq!(task::artifacts(&again)["output"], "y");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_without_a_worker_is_delivered_by_the_next_worker() {
    let there = serving_mesh().await;
    let card = format!("{}/agents/script", there.mesh.url());
    let remote = format!("reattach_grace_ms = 300\n[remote.partner]\ncard = \"{card}\"");
    let mut here = Plan::default().with(&remote).start().await;
    let partner = here.rpc().agent("partner");
    let task = partner.send_immediately("chunk here; sleep 120s").await;
    let theirs = only(&there.rpc).await;
    until("the first chunk has arrived", SOON, async || {
        let task = partner.task(task::id(&task)).await;
        task::artifacts(&task).get("output").cloned()
    })
    .await;
    here.workers[0].kill().await;
    let canceled = partner.call("CancelTask", json!({"id": task["id"]})).await.unwrap();
    assert_eq!(task::state(&canceled), CANCELED);
    here.coordinators[0].kill().await;
    here.coordinators[0].restart().await;
    let theirs_now = there.rpc.task(task::id(&theirs)).await;
    assert!(
        !task::is_final(task::state(&theirs_now)),
        "no worker could deliver the cancel: {theirs_now}"
    );
    here.workers[0].restart().await;
    until("the remote task is canceled", 3 * SOON, async || {
        let theirs = there.rpc.task(task::id(&theirs)).await;
        (task::state(&theirs) == CANCELED).then_some(())
    })
    .await;
    let listed = here.rpc().call("ListTasks", json!({"pageSize": 100})).await.unwrap();
    let ids: Vec<_> = listed["tasks"].as_array().unwrap().iter().map(task::id).collect();
    assert_eq!(ids, [task::id(&task)], "callers see one task only: {listed}");
}
