//! Metrics of the links to the coordinators: how they stand, and the calls and streams on them.

use faultline_chassis::{
    Metrics,
    metrics::{Def, Unit},
};

use crate::coordinators::pool::Links;

const UP: Def<0> = Def::new(
    "faultline.link.up",
    Unit::None,
    "Whether the gateway has reached a coordinator: 1 or 0.",
    [],
);
const LINKS: Def<1> = Def::new(
    "faultline.links",
    Unit::Of("link"),
    "Coordinators that the gateway knows of, by how the link to each stands.",
    ["state"],
);
const CALLS: Def<0> = Def::new(
    "faultline.link.calls",
    Unit::Of("call"),
    "Calls of this gateway that are under way, streams among them.",
    [],
);
const STREAMS: Def<0> =
    Def::new("faultline.link.streams", Unit::Of("stream"), "Streams that clients follow.", []);
const STALLED: Def<0> = Def::new(
    "faultline.stream.stalled",
    Unit::Of("stream"),
    "Streams that were ended because their reader took nothing of them.",
    [],
);

const RESUMED: Def<1> = Def::new(
    "faultline.stream.resumes",
    Unit::Of("stream"),
    "Streams that lost their coordinator, by whether they went on with another.",
    ["outcome"],
);

/// Observed for as long as the links are used.
pub(crate) fn observe(metrics: &Metrics, links: &Links) {
    let links = links.downgrade();
    metrics.observe(move |seen| {
        let Some(links) = links() else { return false };
        seen.gauge(&UP, [], links.is_up().into());
        let standings = links.standings();
        for (state, count) in [
            ("up", standings.up),
            ("down", standings.down),
            ("ejected", standings.ejected),
            ("leaving", standings.leaving),
        ] {
            seen.gauge(&LINKS, [state], count as f64);
        }
        seen.gauge(&CALLS, [], links.calls() as f64);
        seen.gauge(&STREAMS, [], links.open_streams() as f64);
        seen.counter(&STALLED, [], links.stalled() as f64);
        let (resumed, given_up) = links.resumes();
        seen.counter(&RESUMED, ["resumed"], resumed as f64);
        seen.counter(&RESUMED, ["given_up"], given_up as f64);
        true
    });
}
