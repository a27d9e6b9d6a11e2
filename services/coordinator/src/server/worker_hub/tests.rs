//! Tests of workers and gateways that violate the protocol.

use faultline_chassis::server;
use faultline_proto::{
    a2a::{
        AgentCard, GetTaskRequest,
        a2a_service_server::{A2aService, A2aServiceServer},
    },
    v1::{
        self, Call, Caller, Reply, Report, TaskFilter, TasksRequest, call, hub_client::HubClient,
        hub_server::HubServer, link_client::LinkClient, link_server::LinkServer,
        mesh_server::MeshServer, reply, report,
    },
};
use http::uri::PathAndQuery;
use tonic::{Code, client::Grpc, service::Routes};
use tonic_prost::ProstCodec;

use super::*;
use crate::{
    server::{gateway_link::LinkService, grpc::A2aEndpoint},
    store::BindingQuota,
    testing::{Bench, at_once, known, offer, principal, request, soon},
};

/// Attaches or links with these messages, each of which stands as field 1, and reads to the end.
async fn end_of<M>(bench: &Bench, path: &'static str, said: Vec<Vec<u8>>) -> (usize, Status)
where
    M: Message + Default + Send + 'static,
{
    let hub = HubServer::new(HubService { core: Arc::clone(&bench.core) });
    let routes = Routes::new(hub.max_decoding_message_size(limits::HUB_MESSAGE_BYTES_MAX))
        .add_service(LinkServer::new(LinkService::new(Arc::clone(&bench.core))));
    let mut client = Grpc::new(routes.prepare());
    let said = known(stream::iter(said).chain(stream::pending()));
    let codec = ProstCodec::<Vec<u8>, M>::default();
    let opened = soon(client.streaming(said, PathAndQuery::from_static(path), codec)).await;
    let mut answers = match opened {
        Ok(answers) => answers.into_inner(),
        Err(status) => return (0, status),
    };
    let mut count = 0;
    loop {
        match soon(answers.message()).await {
            Ok(Some(_)) => count += 1,
            Ok(None) => panic!("the stream ended without a word"),
            Err(status) => return (count, status),
        }
    }
}

#[tokio::test]
async fn a_unary_request_that_is_not_protobuf_is_an_invalid_argument() {
    let bench = Bench::start(Vec::new()).await;
    let doors = A2aEndpoint::new(Arc::clone(&bench.core));
    let routes =
        Routes::new(A2aServiceServer::new(doors.clone())).add_service(MeshServer::new(doors));
    let router = server::refuse_undecodable(routes.prepare().into_axum_router());
    let mut client = Grpc::new(Routes::from(router));
    for path in [
        "/lf.a2a.v1.A2AService/GetTask",
        "/lf.a2a.v1.A2AService/SendMessage",
        "/lf.a2a.v1.A2AService/SubscribeToTask",
        "/faultline.v1.Mesh/Inspect",
        "/faultline.v1.Mesh/RemoveAgent",
    ] {
        let codec = ProstCodec::<Vec<u8>, ()>::default();
        let path_and_query = PathAndQuery::from_static(path);
        let status = soon(client.unary(known(vec![0xff]), path_and_query, codec)).await;
        let status = status.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{path}: {status:?}");
        assert_eq!(Failure::from(status).row(), &reason::INVALID_ARGUMENT);
    }
}

#[tokio::test]
async fn lists_of_a_call_are_bounded_and_the_link_goes_on() {
    let bench = Bench::start(vec![offer("a")]).await;
    let routes = Routes::new(LinkServer::new(LinkService::new(Arc::clone(&bench.core))));
    let mut link = LinkClient::new(routes.prepare());
    let names = |count: usize| vec!["b".to_owned(); count];
    let agents = Caller { agents: names(limits::CALLER_NAMES_MAX + 1), ..Caller::default() };
    let extensions =
        Caller { extensions: names(limits::CALLER_NAMES_MAX + 1), ..Caller::default() };
    let mut parts = at_once(request("a", "hi"));
    let message = parts.message.as_mut().unwrap();
    message.parts = vec![message.parts[0].clone(); limits::PARTS_MAX + 1];
    let mut tasks = at_once(request("a", "hi"));
    tasks.message.as_mut().unwrap().reference_task_ids = names(limits::NAMES_MAX + 1);
    let send = |request| call::Body::Send(request);
    let filter = TaskFilter { states: vec![1; 1000], ..TaskFilter::default() };
    let filter = TasksRequest { filter: Some(filter), ..TasksRequest::default() };
    let operator = Caller { operates: true, ..Caller::default() };
    let calls = [
        (agents, send(at_once(request("a", "hi"))), "caller.agents"),
        (extensions, send(at_once(request("a", "hi"))), "caller.extensions"),
        (Caller::default(), send(parts), "message.parts"),
        (Caller::default(), send(tasks), "message.referenceTaskIds"),
        (operator, call::Body::Tasks(filter), "filter.states"),
    ];
    let fields = calls.each_ref().map(|(_, _, field)| *field);
    let calls = calls.into_iter().zip(1..).map(|((caller, body, _), id)| Call {
        id,
        caller: Some(caller),
        body: Some(body),
    });
    let calls: Vec<_> = calls.collect();
    let open = link.open(known(stream::iter(calls).chain(stream::pending())));
    let mut answers = soon(open).await.unwrap().into_inner();
    for _ in fields {
        let answer = soon(answers.message()).await.unwrap().unwrap();
        let Some(reply::Body::Failure(failure)) = answer.body else { panic!("{answer:?}") };
        let field = fields[answer.id as usize - 1];
        assert_eq!(failure.violations[0].field, field);
        assert!(failure.public_message.contains("at most"), "{failure:?}");
    }
    assert_eq!(bench.count().await, 0);
}

#[tokio::test]
async fn callers_cannot_have_the_name_of_a_principal_of_the_mesh() {
    let bench = Bench::start(vec![offer("a")]).await;
    let routes = Routes::new(LinkServer::new(LinkService::new(Arc::clone(&bench.core))));
    let mut link = LinkClient::new(routes.prepare());
    let bodies = [
        call::Body::Send(at_once(request("a", "hi"))),
        call::Body::Stream(request("a", "hi")),
        call::Body::Get(GetTaskRequest::default()),
    ];
    let calls = bodies.into_iter().zip(1..).map(|(body, id)| {
        let caller = Caller { principal: "faultline.dev/stops".into(), ..Caller::default() };
        Call { id, caller: Some(caller), body: Some(body) }
    });
    let calls: Vec<_> = calls.collect();
    let open = link.open(known(stream::iter(calls).chain(stream::pending())));
    let mut answers = soon(open).await.unwrap().into_inner();
    for _ in 0..3 {
        let answer = soon(answers.message()).await.unwrap().unwrap();
        let Some(reply::Body::Failure(failure)) = answer.body else { panic!("{answer:?}") };
        assert_eq!(failure.reason, reason::PERMISSION_DENIED.name);
    }
    let doors = A2aEndpoint::new(Arc::clone(&bench.core));
    let mut call = known(at_once(request("a", "hi")));
    call.metadata_mut().insert("faultline-principal", "faultline.dev/x".parse().unwrap());
    let refused = soon(doors.send_message(call)).await.unwrap_err();
    assert_eq!(Failure::from(refused).row(), &reason::PERMISSION_DENIED);
    assert_eq!(bench.count().await, 0);
}

#[test]
fn an_oversized_hello_is_refused_with_its_field_and_the_bound() {
    let hello = || Hello {
        worker_id: WorkerId::new().to_string(),
        slots: 1,
        agents: vec![offer("a")],
        ..Hello::default()
    };
    let refused = |hello: Hello| {
        let failure = check(&hello).unwrap_err();
        assert_eq!(failure.row(), &reason::INVALID_ARGUMENT);
        (failure.violations[0].field.clone(), failure.public_message.clone())
    };
    let agents = |count: usize| (0..count).map(|n| offer(&format!("a-{n}"))).collect();
    let card = |bytes: usize| AgentCard { description: "x".repeat(bytes), ..AgentCard::default() };
    assert!(check(&Hello { agents: agents(limits::WORKER_AGENTS_MAX), ..hello() }).is_ok());
    let (field, text) = refused(Hello { agents: agents(limits::WORKER_AGENTS_MAX + 1), ..hello() });
    assert!(field == "hello.agents" && text.contains("at most 256"), "{field}: {text}");
    assert!(check(&Hello { name: "n".repeat(256), ..hello() }).is_ok());
    let (field, text) = refused(Hello { name: "n".repeat(1024 * 1024), ..hello() });
    assert!(field == "hello.name" && text.contains("at most 256"), "{field}: {text}");
    let held = |count: usize| vec![Held::default(); count];
    assert!(check(&Hello { held: held(limits::HELD_MAX), ..hello() }).is_ok());
    let (field, text) = refused(Hello { held: held(limits::HELD_MAX + 1), ..hello() });
    assert!(field == "hello.held" && text.contains("at most 16384"), "{field}: {text}");
    let (large, fits) = (card(limits::CARD_BYTES_MAX), card(limits::CARD_BYTES_MAX - 8));
    let fitting = AgentOffer { card: Some(fits), ..offer("a") };
    assert!(check(&Hello { agents: vec![fitting], ..hello() }).is_ok());
    let public = AgentOffer { card: Some(large.clone()), ..offer("a") };
    let extended = AgentOffer { extended_card: Some(large), ..offer("a") };
    for (offer, card) in [(public, "card"), (extended, "extendedCard")] {
        let (field, text) = refused(Hello { agents: vec![offer], ..hello() });
        assert_eq!(field, format!("hello.agents.{card}"));
        assert!(text.contains("'a'") && text.contains("at most 65536"), "{text}");
    }
}

#[tokio::test]
async fn a_message_that_is_not_protobuf_is_an_invalid_argument() {
    let bench = Bench::start(Vec::new()).await;
    let (attach, link) = ("/faultline.v1.Hub/Attach", "/faultline.v1.Link/Open");
    let worker_id = WorkerId::new().to_string();
    let agents = vec![offer("a")];
    let hello = Hello { worker_id, slots: 1, agents, ..Hello::default() }.encode_to_vec();
    for (answers, (count, status)) in [
        (0, end_of::<ToWorker>(&bench, attach, vec![vec![0xff]]).await),
        (1, end_of::<ToWorker>(&bench, attach, vec![hello, vec![0xff]]).await),
        (0, end_of::<Reply>(&bench, link, vec![vec![0xff]]).await),
    ] {
        assert_eq!((status.code(), count), (Code::InvalidArgument, answers), "{status:?}");
        assert_eq!(Failure::from(status).row(), &reason::INVALID_ARGUMENT);
    }
}

#[test]
fn agent_offered_twice_in_one_hello_is_refused_with_its_field() {
    let agents = vec![offer("a"), offer("b"), offer("a")];
    let worker_id = WorkerId::new().to_string();
    let failure = check(&Hello { worker_id, slots: 1, agents, ..Hello::default() }).unwrap_err();
    assert_eq!(failure.row(), &reason::INVALID_ARGUMENT);
    assert_eq!(failure.violations[0].field, "hello.agents.name");
    assert!(failure.public_message.contains("'a' is offered twice"), "{failure:?}");
}

#[tokio::test]
async fn refused_hello_binds_no_worker_id() {
    let bench = Bench::start(Vec::new()).await;
    let card =
        AgentCard { description: "x".repeat(limits::CARD_BYTES_MAX - 8), ..AgentCard::default() };
    // Each is within its bound, and all together are above theirs.
    let agents = (0..limits::WORKER_AGENTS_MAX)
        .map(|n| AgentOffer { card: Some(card.clone()), ..offer(&format!("agent-{n}")) });
    let id = WorkerId::new();
    let hello =
        Hello { worker_id: id.to_string(), slots: 1, agents: agents.collect(), ..Hello::default() };
    let hello = hello.encode_to_vec();
    assert!(hello.len() < limits::HUB_MESSAGE_BYTES_MAX);
    let attach = "/faultline.v1.Hub/Attach";
    let (_, status) = end_of::<ToWorker>(&bench, attach, vec![hello]).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let quota = BindingQuota { max: 10, stale_before: 0 };
    let bound = bench.core.store.introduce(id, [9; 16], now(), quota).await.unwrap();
    assert_eq!(bound, Some([9; 16]), "nobody has introduced it");
}

#[tokio::test]
async fn message_with_many_reports_is_ingested_whole() {
    let bench = Bench::start(Vec::new()).await;
    let worker = WorkerId::new();
    let hello = Hello {
        worker_id: worker.to_string(),
        slots: 1,
        agents: vec![offer("a")],
        ..Hello::default()
    };
    let (say, said) = tokio::sync::mpsc::channel(4);
    let send = async |body| say.send(FromWorker { body: Some(body) }).await.unwrap();
    send(from_worker::Body::Hello(hello)).await;
    let routes = Routes::new(
        HubServer::new(HubService { core: Arc::clone(&bench.core) })
            .max_decoding_message_size(limits::HUB_MESSAGE_BYTES_MAX),
    );
    let mut hub = HubClient::new(routes.prepare());
    let attached = soon(hub.attach(known(ReceiverStream::new(said)))).await.unwrap();
    let mut messages = attached.into_inner();
    let mut next = async || soon(messages.message()).await.unwrap().unwrap().body.unwrap();
    assert!(matches!(next().await, to_worker::Body::Welcome(_)));
    let _answer = bench.send(request("a", "hi"), &principal("ann"));
    let to_worker::Body::Assign(assign) = next().await else { panic!("an assignment") };
    let count = limits::REPORTS_PER_MESSAGE_MAX as u32 * 2 + 100;
    let report = |number| Report {
        task_id: assign.task_id.clone(),
        attempt: assign.attempt,
        number,
        body: Some(report::Body::Started(v1::Started {})),
    };
    let reports = (1..=count).map(report).collect();
    send(from_worker::Body::Reports(v1::Reports { reports })).await;
    let mut acknowledged = 0;
    while acknowledged < count {
        let to_worker::Body::Acks(acks) = next().await else { panic!("acknowledgements") };
        acknowledged = acks.acks.iter().map(|ack| ack.number).fold(acknowledged, u32::max);
    }
}
