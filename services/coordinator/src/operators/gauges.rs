//! Gauges that are read from the state when metrics are scraped: agents, workers, slots and
//! queues. They run under the state lock, so none of them iterates over all tasks.

use std::sync::{Arc, Weak};

use faultline_chassis::metrics::{Def, OTHER, Observed, Unit};
use tokio::time::Instant;

use crate::{
    engine::{core::Core, workers::registry::Presence},
    policy::circuit_breaker::Circuit,
};

const QUEUE: Def<1> =
    Def::new("faultline.queue.depth", Unit::Of("task"), "Tasks that wait for a slot.", ["agent"]);
const USED: Def<1> = Def::new(
    "faultline.slots.used",
    Unit::Of("slot"),
    "Slots in which tasks of an agent compute.",
    ["agent"],
);
const DEMAND: Def<1> = Def::new(
    "faultline.demand",
    Unit::Of("task"),
    "Tasks that compute or would if there were a slot: what workers are needed for.",
    ["agent"],
);
const OFFERED: Def<0> =
    Def::new("faultline.slots.offered", Unit::Of("slot"), "Slots of attached workers.", []);
const AGENT_SLOTS: Def<1> = Def::new(
    "faultline.agent.slots",
    Unit::Of("slot"),
    "Slots of attached workers that offer an agent; it may have to share them.",
    ["agent"],
);
const AGENT_WORKERS: Def<1> = Def::new(
    "faultline.agent.workers",
    Unit::Of("worker"),
    "Attached workers that offer an agent.",
    ["agent"],
);
const WORKERS: Def<1> = Def::new(
    "faultline.workers",
    Unit::Of("worker"),
    "Workers: attached, about to leave, or gone and given time to come back.",
    ["state"],
);
const CIRCUIT: Def<1> = Def::new(
    "faultline.circuit.state",
    Unit::None,
    "The circuit of an agent: 0 closed, 1 half open, 2 open.",
    ["agent"],
);
const PENDING: Def<1> = Def::new(
    "faultline.hitl.pending",
    Unit::Of("task"),
    "Tasks that wait for somebody's answer.",
    ["agent"],
);
const ORPHANS: Def<0> = Def::new(
    "faultline.cancel.orphans",
    Unit::Of("attempt"),
    "Agents that were told to stop and did not; each holds a slot.",
    [],
);
const COORDINATORS: Def<0> = Def::new(
    "faultline.coordinators",
    Unit::Of("coordinator"),
    "Coordinators on this one's store, itself among them, whose leases are good.",
    [],
);
const STORE_QUEUE: Def<0> =
    Def::new("faultline.store.queue.depth", Unit::Of("step"), "Steps that wait for a commit.", []);
const CALLS: Def<0> =
    Def::new("faultline.calls.waiting", Unit::Of("call"), "Sends that wait for their task.", []);
const DELIVERING: Def<0> = Def::new(
    "faultline.push.open",
    Unit::Of("delivery"),
    "Push configurations that still have something to deliver.",
    [],
);

/// For as long as the coordinator lives.
pub(crate) fn watch(core: &Arc<Core>) {
    let weak = Arc::downgrade(core);
    core.config.metrics.observe(move |seen| look(&weak, seen));
}

fn look(core: &Weak<Core>, seen: &mut Observed) -> bool {
    let Some(core) = core.upgrade() else { return false };
    let (state, now) = (core.lock(), Instant::now());
    let (mut offered, mut orphans) = (0, 0);
    for at in ["attached", "draining", "gone"] {
        seen.gauge(&WORKERS, [at], 0.);
    }
    for worker in state.registry.workers.values() {
        let at = match (&worker.link, worker.draining) {
            (Presence::Gone { .. }, _) => "gone",
            (Presence::Attached { .. }, true) => "draining",
            (Presence::Attached { .. }, false) => "attached",
        };
        seen.gauge(&WORKERS, [at], 1.);
        orphans += worker.orphans();
        if worker.is_attached() {
            offered += worker.slots;
        }
    }
    for (name, agent) in &state.registry.agents {
        let label = [agent.meters.label()];
        let workers = agent.workers.iter().filter_map(|id| state.registry.workers.get(id));
        let slots: u32 = workers.map(|worker| worker.slots).sum();
        seen.gauge(&QUEUE, label, agent.queue.len() as f64);
        seen.gauge(&DEMAND, label, state.registry.demand_here(name) as f64);
        seen.gauge(&USED, label, state.registry.computing(name).into());
        seen.gauge(&AGENT_SLOTS, label, slots.into());
        seen.gauge(&AGENT_WORKERS, label, agent.workers.len() as f64);
        seen.gauge(&PENDING, label, agent.waiting.into());
        let circuit = match agent.breaker.circuit(now) {
            Circuit::Closed => 0.,
            Circuit::HalfOpen => 1.,
            Circuit::Open(_) => 2.,
        };
        // Those of several do not add up.
        if label != [OTHER] {
            seen.gauge(&CIRCUIT, label, circuit);
        }
    }
    seen.gauge(&COORDINATORS, [], (1 + state.registry.peer_load.count()) as f64);
    seen.gauge(&OFFERED, [], offered.into());
    seen.gauge(&ORPHANS, [], orphans.into());
    seen.gauge(&STORE_QUEUE, [], state.queue.writes.len() as f64);
    seen.gauge(&CALLS, [], state.calls.len() as f64);
    seen.gauge(&DELIVERING, [], state.deliveries.len() as f64);
    true
}
