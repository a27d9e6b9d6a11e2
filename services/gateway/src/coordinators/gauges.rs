//! Gauges of the pool: links by status, calls and streams in flight, resumes.

use faultline_chassis::{
    Metrics,
    metrics::{Def, Unit},
};

use crate::coordinators::pool::Pool;

const UP: Def<0> = Def::new(
    "faultline.link.up",
    Unit::None,
    "Whether the gateway has reached a coordinator: 1 or 0.",
    [],
);
const LINKS: Def<1> = Def::new(
    "faultline.links",
    Unit::Of("link"),
    "Coordinators that the gateway knows, by the status of the link to each.",
    ["state"],
);
const CALLS: Def<0> = Def::new(
    "faultline.link.calls",
    Unit::Of("call"),
    "Calls of this gateway in flight, streams included.",
    [],
);
const STREAMS: Def<0> =
    Def::new("faultline.link.streams", Unit::Of("stream"), "Streams that clients follow.", []);
const STALLED: Def<0> = Def::new(
    "faultline.stream.stalled",
    Unit::Of("stream"),
    "Streams that were ended because their client did not read them.",
    [],
);

const RESUMED: Def<1> = Def::new(
    "faultline.stream.resumes",
    Unit::Of("stream"),
    "Streams that lost their coordinator, by whether they resumed at another one.",
    ["outcome"],
);

/// Registers the gauges. They are read for as long as the pool is in use.
pub(crate) fn observe(metrics: &Metrics, pool: &Pool) {
    let pool = pool.downgrade();
    metrics.observe(move |seen| {
        let Some(pool) = pool() else { return false };
        seen.gauge(&UP, [], pool.is_up().into());
        let counts = pool.link_counts();
        for (state, count) in [
            ("up", counts.up),
            ("down", counts.down),
            ("ejected", counts.ejected),
            ("leaving", counts.leaving),
        ] {
            seen.gauge(&LINKS, [state], count as f64);
        }
        seen.gauge(&CALLS, [], pool.in_flight() as f64);
        seen.gauge(&STREAMS, [], pool.open_streams() as f64);
        seen.counter(&STALLED, [], pool.stalled() as f64);
        let (resumed, given_up) = pool.resumes();
        seen.counter(&RESUMED, ["resumed"], resumed as f64);
        seen.counter(&RESUMED, ["given_up"], given_up as f64);
        true
    });
}
