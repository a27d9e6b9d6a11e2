//! Workers and gateways that send something else than the contract says.

use faultline_proto::{
    a2a::AgentCard,
    v1::{Reply, hub_server::HubServer, link_server::LinkServer},
};
use http::uri::PathAndQuery;
use tonic::{Code, client::Grpc, service::Routes};
use tonic_prost::ProstCodec;

use super::*;
use crate::{
    link::LinkService,
    testing::{Bench, known, offer, soon},
};

/// Attaches or links with these messages, each of which stands as field 1, and reads to the end.
async fn end_of<M>(bench: &Bench, path: &'static str, said: Vec<Vec<u8>>) -> (usize, Status)
where
    M: Message + Default + Send + 'static,
{
    let routes = Routes::new(HubServer::new(HubService { core: Arc::clone(&bench.core) }))
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
