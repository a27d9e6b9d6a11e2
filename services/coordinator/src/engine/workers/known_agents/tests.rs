//! Agents are bounded, forgotten when nobody offers them, and removed at an operator's word.

use faultline_proto::{
    Failure,
    a2a::AgentCard,
    id::WorkerId,
    reason,
    v1::{AgentsRequest, Hello},
};
use tokio::sync::mpsc;

use super::*;
use crate::{
    store::postgres::testing::Database,
    testing::{Bench, offer, principal},
};

fn operator() -> Caller {
    Caller { operates: true, ..principal("olga") }
}

impl Bench {
    /// Its worker goes away for good.
    fn detach_worker(&self) {
        self.core.change(|state| {
            state.registry.detach(self.worker);
            state.registry.workers.remove(&self.worker);
        });
    }

    /// These were last offered long ago.
    async fn age_agents(&self, names: &[&str]) {
        for name in names {
            let mut known = None;
            self.core.change(|state| {
                let agent = state.registry.agents.get_mut(*name).unwrap();
                agent.offered = 1;
                known = Some(Box::new(agent.offer.clone()));
            });
            self.write(Write::Offer { offer: known.unwrap(), at: 1 }).await;
        }
    }

    async fn stored_agents(&self) -> Vec<String> {
        let known = self.core.store.agents(None).await.unwrap();
        known.into_iter().map(|known| known.offer.name).collect()
    }

    fn known_agents(&self) -> Vec<String> {
        self.core.lock().registry.agents.keys().cloned().collect()
    }

    async fn remove_agent(&self, name: &str) -> Result<(), Failure> {
        let request = RemoveAgentRequest { name: name.to_owned() };
        self.core.remove_agent(request, &operator()).await.map(drop).map_err(Failure::from)
    }
}

#[tokio::test]
async fn unoffered_agents_are_forgotten_in_memory_and_in_the_store() {
    let mut bench = Bench::start(["busy", "gone", "new", "offered"].map(offer).into()).await;
    let assign = bench.root("busy").await;
    bench.detach_worker();
    bench.attach_again(&["offered"], 1, vec![]);
    bench.age_agents(&["busy", "gone", "offered"]).await;
    bench.core.forget_agents().await;
    assert_eq!(bench.known_agents(), ["busy", "new", "offered"]);
    assert_eq!(bench.stored_agents().await, bench.known_agents());
    let offered = bench.core.store.agents(Some("offered".into())).await.unwrap();
    assert!(offered[0].offered > 1, "store records the offer");
    bench.attach_again(&["offered"], 1, vec![]);
    bench.cancel(&assign.task_id).await;
    bench.core.flushed().await;
    bench.core.forget_agents().await;
    assert_eq!(bench.known_agents(), ["new", "offered"], "its last task has ended");
    let bench = bench.restart(vec![offer("gone")]).await;
    assert_eq!(bench.known_agents(), ["gone", "new", "offered"], "reattached agent is known again");
}

#[tokio::test]
async fn agents_are_kept_for_ever_if_configured() {
    let config = Config { forget_agents_after_hours: 0, ..Config::default() };
    let bench = Bench::start_with(config, vec![offer("a")]).await;
    bench.detach_worker();
    bench.age_agents(&["a"]).await;
    bench.core.forget_agents().await;
    assert_eq!(bench.known_agents(), ["a"]);
}

#[tokio::test]
async fn operator_removes_an_unused_agent() {
    let mut bench = Bench::start(["a", "b"].map(offer).into()).await;
    let request = RemoveAgentRequest { name: "a".to_owned() };
    let denied = bench.core.remove_agent(request, &principal("ann")).await.unwrap_err();
    assert_eq!(Failure::from(denied).row(), &reason::INSUFFICIENT_SCOPE);
    assert_eq!(bench.remove_agent("x").await.unwrap_err().row(), &reason::AGENT_NOT_FOUND);
    let refused = bench.remove_agent("a").await.unwrap_err();
    assert_eq!(refused.row(), &reason::FAILED_PRECONDITION);
    assert!(refused.public_message.contains("1 worker offers it"), "{}", refused.public_message);
    let assign = bench.root("a").await;
    bench.detach_worker();
    let refused = bench.remove_agent("a").await.unwrap_err();
    assert!(refused.public_message.contains("live tasks"), "{}", refused.public_message);
    bench.cancel(&assign.task_id).await;
    bench.core.flushed().await;
    bench.remove_agent("a").await.unwrap();
    assert_eq!(
        (bench.known_agents(), bench.stored_agents().await),
        (vec!["b".into()], vec!["b".into()])
    );
    assert_eq!(bench.remove_agent("a").await.unwrap_err().row(), &reason::AGENT_NOT_FOUND);
}

#[tokio::test]
async fn coordinators_that_share_a_store_forget_an_agent_together() {
    let database = Database::make().await;
    let start = async |offers| {
        let store = Box::new(database.open().await);
        Bench::start_on(store, Config::default(), offers).await
    };
    let here = start(["a", "b"].map(offer).into()).await;
    here.core.flushed().await;
    let there = start(vec![]).await;
    assert_eq!(there.known_agents(), ["a", "b"]);
    // It is still offered elsewhere, which the one that removes it has not heard of.
    there.remove_agent("a").await.unwrap();
    let cluster = here.core.store.cluster().unwrap();
    here.core.compare(cluster).await;
    here.core.flushed().await;
    assert_eq!(here.stored_agents().await, ["a", "b"], "offered agent is stored again");
    there.core.compare(there.core.store.cluster().unwrap()).await;
    assert_eq!(there.known_agents(), ["a", "b"]);
    here.detach_worker();
    there.remove_agent("a").await.unwrap();
    here.core.compare(cluster).await;
    assert_eq!((here.known_agents(), there.known_agents()), (vec!["b".into()], vec!["b".into()]));
    // One that nobody offers for long goes everywhere, too.
    here.age_agents(&["b"]).await;
    here.core.forget_agents().await;
    there.core.compare(there.core.store.cluster().unwrap()).await;
    assert!(here.known_agents().is_empty() && there.known_agents().is_empty());
}

#[tokio::test]
async fn number_of_agents_is_bounded() {
    let bench = Bench::start(Vec::new()).await;
    let hello = |from: usize, count: usize| {
        let agents = (from..from + count).map(|n| offer(&format!("a-{n:04}"))).collect();
        Hello { agents, slots: 1, ..Hello::default() }
    };
    let say = |hello: Hello| {
        bench.core.change(|state| {
            state.check_agents(&hello.agents)?;
            let (outbox, _) = mpsc::channel(8);
            state.attach(WorkerId::new(), hello, outbox, bench.core.welcome(), now());
            Ok::<_, Error>(())
        })
    };
    for at in (0..limits::AGENTS_MAX).step_by(250) {
        say(hello(at, 250)).unwrap();
    }
    let refused = Failure::from(say(hello(limits::AGENTS_MAX - 1, 2)).unwrap_err());
    assert_eq!(refused.row(), &reason::INVALID_ARGUMENT);
    assert_eq!(refused.violations[0].field, "hello.agents");
    let text = &refused.public_message;
    assert!(text.contains("at most 1000") && text.contains("agents remove NAME"), "{text}");
    say(hello(0, 250)).unwrap();
    // The card of the root takes one look, however many there are.
    let only_default = AgentsRequest { only_default: true, ..AgentsRequest::default() };
    assert!(bench.core.agents(&only_default).unwrap().agents.is_empty());
    let named = AgentsRequest { name: "a-0007".to_owned(), ..AgentsRequest::default() };
    assert_eq!(bench.core.agents(&named).unwrap().agents.len(), 1);
    assert_eq!(bench.core.agents(&AgentsRequest::default()).unwrap().agents.len(), 1000);
}

#[tokio::test]
async fn total_size_of_cards_is_bounded() {
    let large = |name: &str, bytes: usize| {
        let card = AgentCard { description: "x".repeat(bytes), ..AgentCard::default() };
        AgentOffer { card: Some(card.clone()), extended_card: Some(card), ..offer(name) }
    };
    let bench = Bench::start(Vec::new()).await;
    let each = limits::CARD_BYTES_MAX - 1024;
    let count = limits::OFFERS_BYTES_MAX / (2 * each + 512);
    let fitting: Vec<_> = (0..count).map(|n| large(&format!("a-{n}"), each)).collect();
    let check = |offers: &[AgentOffer]| {
        let checked = bench.core.lock().check_agents(offers);
        checked.map_err(Failure::from)
    };
    check(&fitting).unwrap();
    bench.core.change(|state| {
        fitting.iter().for_each(|offer| _ = state.registry.offer(offer.clone(), 1));
    });
    let refused = check(&[large("more", each), large("still-more", each)]).unwrap_err();
    assert_eq!(refused.violations[0].field, "hello.agents.card");
    assert!(refused.public_message.contains("faultline agents remove"), "{refused:?}");
    check(&fitting[..3]).unwrap();
    check(&[large("a-0", each - 1)]).unwrap();
    check(&[offer("small")]).unwrap();
}
