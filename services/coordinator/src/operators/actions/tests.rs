//! Tests of operator actions on tasks of other principals.

use faultline_proto::{
    Failure,
    a2a::{AgentExtension, TaskState},
    json, reason,
    v1::{Interrupt, report, to_worker},
};

use super::*;
use crate::testing::{Bench, offer, principal};

fn operator() -> Caller {
    Caller { operates: true, agents: vec!["nothing".into()], ..principal("olga") }
}

fn state(shown: &InspectResponse) -> TaskState {
    shown.task.as_ref().unwrap().status.as_ref().unwrap().state()
}

async fn cancel(bench: &Bench, task_id: &str, why: &str) -> Result<InspectResponse, Failure> {
    let request = OperatorCancelRequest { task_id: task_id.into(), reason: why.into() };
    Ok(bench.core.operator_cancel(request, &operator()).await?)
}

async fn answer(bench: &Bench, said: OperatorAnswerRequest) -> Result<InspectResponse, Failure> {
    Ok(bench.core.operator_answer(said, &operator()).await?)
}

#[tokio::test]
async fn operator_cancels_a_task_of_another_principal_with_its_children() {
    let mut bench = Bench::start(vec![offer("a"), offer("b")]).await;
    let root = bench.root("a").await;
    let child = bench.child(&root, "k", "b").await;
    let shown = cancel(&bench, &root.task_id, " too dear ").await.unwrap();
    assert_eq!((state(&shown), shown.principal.as_str()), (TaskState::Canceled, "ann"));
    let failure = shown.failure.unwrap();
    assert_eq!(failure.public_message, "cancelled by an operator: too dear");
    for (task_id, initiator) in [(&root.task_id, "operator"), (&child.task_id, "parent")] {
        let to_worker::Body::Cancel(told) = bench.told().await else { panic!("a cancel") };
        assert_eq!((&told.task_id, told.initiator.as_str()), (task_id, initiator));
    }
    let again = cancel(&bench, &root.task_id, "").await.unwrap_err();
    assert_eq!(again.row(), &reason::TASK_NOT_CANCELABLE);
    for nobody in [TaskId::new().to_string(), "x".into()] {
        let refused = cancel(&bench, &nobody, "").await.unwrap_err();
        assert_eq!(refused.row(), &reason::TASK_NOT_FOUND);
    }
}

fn port() -> Interrupt {
    let asked = r#"{"key": "port", "prompt": "which?", "schema": {"type": "object",
        "required": ["port"], "properties": {"port": {"type": "integer"}}}}"#;
    json::from_str(asked).unwrap()
}

#[tokio::test]
async fn operator_answers_a_question_once() {
    let mut picky = offer("a");
    let required = AgentExtension { uri: "urn:x".into(), required: true, ..<_>::default() };
    let card = picky.card.as_mut().unwrap().capabilities.as_mut().unwrap();
    card.extensions.push(required.clone());
    let mut bench = Bench::start(vec![picky]).await;
    let client =
        v1::Caller { principal: "ann".into(), extensions: vec![required.uri], ..<_>::default() };
    let assign = bench.child_of(&client.into(), "a").await;
    bench.report(&assign, 1, report::Body::Ask(port()));
    let name = Interrupt { key: "name".into(), prompt: "who?".into(), ..Interrupt::default() };
    bench.report(&assign, 2, report::Body::Ask(name));
    bench.core.flushed().await;
    let task_id = assign.task_id.clone();
    let said = |key: &str, fields: &str| OperatorAnswerRequest {
        task_id: task_id.clone(),
        key: key.into(),
        fields: json::from_str(fields).ok(),
        ..OperatorAnswerRequest::default()
    };
    let wrong = answer(&bench, said("port", r#"{"port": "eighty"}"#)).await.unwrap_err();
    assert_eq!(wrong.row(), &reason::INVALID_PARAMS);
    assert_eq!(wrong.violations[0].field, "answer.port");
    let unknown = answer(&bench, said("colour", "{}")).await.unwrap_err();
    assert!(unknown.public_message.contains("open are 'port', 'name'"), "{unknown}");
    let expire = OperatorAnswerRequest { action: AnswerAction::Expire as i32, ..said("", "{}") };
    assert_eq!(answer(&bench, expire).await.unwrap_err().violations[0].field, "action");
    let shown = answer(&bench, said("port", r#"{"port": 80}"#)).await.unwrap();
    assert_eq!(shown.interrupts.len(), 1, "the other is still open");
    let second = answer(&bench, said("port", r#"{"port": 81}"#)).await.unwrap_err();
    assert!(second.public_message.contains("the first answer counts"), "{second}");
    let action = AnswerAction::Decline as i32;
    let no = OperatorAnswerRequest { task_id: task_id.clone(), action, ..<_>::default() };
    let shown = answer(&bench, no).await.unwrap();
    assert_eq!((state(&shown), shown.interrupts.len()), (TaskState::Working, 0));
    let to_worker::Body::Answer(told) = bench.told().await else { panic!("an answer") };
    assert_eq!((told.key.as_str(), told.attempt), ("port", 1));
    let to_worker::Body::Answer(told) = bench.told().await else { panic!("an answer") };
    assert_eq!((told.key.as_str(), told.action()), ("name", AnswerAction::Decline));
    let idle = answer(&bench, said("", "{}")).await.unwrap_err();
    assert_eq!(idle.row(), &reason::UNSUPPORTED_OPERATION);
    bench.complete(&assign, 3);
    bench.core.flushed().await;
    let over = answer(&bench, said("", "{}")).await.unwrap_err();
    assert!(over.public_message.contains("has ended"), "{over}");
}
