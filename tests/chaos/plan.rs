//! What is done to a cluster and when, drawn from a seed. Pure: the same seed is the same plan.

use std::{fmt, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

/// How many there are of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) coordinators: usize,
    pub(crate) gateways: usize,
    pub(crate) workers: usize,
    /// Whether its store is a server, which can be restarted and cut off.
    pub(crate) has_server: bool,
}

/// One process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Coordinator(usize),
    Gateway(usize),
    Worker(usize),
}

/// What becomes of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// Connections are closed, and refused.
    Closed,
    /// Nothing arrives, and nobody is told.
    Silent,
}

/// Everything ends by itself after its time, and what it was done to is then as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// `kill -9`, and started again after that.
    Kill(Who),
    /// SIGSTOP, and SIGCONT after that.
    Pause(Who),
    /// SIGTERM; started again once it has left.
    Leave(Who),
    /// Nobody reaches this coordinator.
    Partition(usize, Break),
    /// This gateway or worker does not reach that coordinator, or none of them if none is named;
    /// all others do.
    CutOff(Who, Option<usize>, Break),
    /// This coordinator does not reach its database.
    Strand(usize, Break),
    /// The database is restarted: in order, or as after a crash.
    RestartStore { crash: bool },
}

impl Deed {
    /// A coordinator without its store answers blocking calls before their task has ended.
    pub(crate) fn takes_store_away(self) -> bool {
        matches!(self, Deed::Strand(..) | Deed::RestartStore { .. })
    }
}

/// Which of them cannot go on at once: each of these is one thing's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Site {
    Process(Who),
    Wire(usize),
    /// All that lead from this one to the coordinators.
    WiresOf(Who),
    StoreWire(usize),
    Store,
}

impl Deed {
    pub(crate) fn site(self) -> Site {
        match self {
            Self::Kill(who) | Self::Pause(who) | Self::Leave(who) => Site::Process(who),
            Self::Partition(at, _) => Site::Wire(at),
            Self::CutOff(who, ..) => Site::WiresOf(who),
            Self::Strand(at, _) => Site::StoreWire(at),
            Self::RestartStore { .. } => Site::Store,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) deed: Deed,
    /// How long it lasts.
    pub(crate) lasts: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, lasts) = (self.at.as_secs_f64(), self.lasts.as_secs_f64());
        write!(f, "{at:6.2} s  {:?}", self.deed)?;
        match self.deed {
            Deed::Leave(_) | Deed::RestartStore { .. } => Ok(()),
            _ => write!(f, " for {lasts:.1} s"),
        }
    }
}

/// The longest that anything is paused or cut off.
const LASTS_MAX: Duration = Duration::from_secs(15);
const KILLED_MAX: Duration = Duration::from_secs(3);
/// What a process that is asked to leave may take, and a database to be back.
const LEAVING: Duration = Duration::from_secs(12);
/// Between two deeds, whatever they are done to.
const GAP_MS: std::ops::Range<u64> = 100..1200;

/// How many kinds of deeds there are: for any cluster, and for one whose store is a server.
const KINDS: usize = 10;
const KINDS_OF_A_SERVER: usize = 13;

/// A plan of this length. It does everything that it can at least once, if there is time, and
/// several things at once, but no two to the same.
pub(crate) fn draw(seed: u64, shape: Shape, length: Duration) -> Vec<Step> {
    let mut rng = StdRng::seed_from_u64(seed);
    let all = if shape.has_server { KINDS_OF_A_SERVER } else { KINDS };
    let mut due: Vec<usize> = (0..all).collect();
    due.shuffle(&mut rng);
    let mut steps: Vec<Step> = Vec::new();
    let mut at = Duration::from_millis(300);
    while at < length {
        let kind = due.last().copied().unwrap_or_else(|| rng.random_range(0..all));
        let deed = deed(&mut rng, kind, shape);
        let lasts = lasts(&mut rng, deed, length);
        let is_free = |step: &Step| step.deed.site() != deed.site() || step.at + step.lasts < at;
        if steps.iter().all(is_free) {
            steps.push(Step { at, deed, lasts });
            due.pop();
        } else if !due.is_empty() {
            // Something else is done to that one just now, so the others are done before.
            due.rotate_right(1);
        }
        at += Duration::from_millis(rng.random_range(GAP_MS));
    }
    steps
}

fn deed(rng: &mut StdRng, kind: usize, shape: Shape) -> Deed {
    let how = if rng.random_bool(0.5) { Break::Closed } else { Break::Silent };
    let coordinator = rng.random_range(0..shape.coordinators);
    let worker = Who::Worker(rng.random_range(0..shape.workers));
    let gateway = Who::Gateway(rng.random_range(0..shape.gateways));
    // Mostly from one: who sees another mesh than the others do is worse off than who sees none.
    let from = rng.random_bool(0.7).then_some(coordinator);
    match kind {
        0 => Deed::Kill(Who::Coordinator(coordinator)),
        1 => Deed::Pause(Who::Coordinator(coordinator)),
        2 => Deed::Leave(Who::Coordinator(coordinator)),
        3 => Deed::Partition(coordinator, how),
        4 => Deed::Kill(worker),
        5 => Deed::Pause(worker),
        6 => Deed::CutOff(worker, from, how),
        7 => Deed::CutOff(gateway, from, how),
        8 => {
            if rng.random_bool(0.5) {
                Deed::Leave(worker)
            } else {
                Deed::Leave(gateway)
            }
        }
        9 => {
            if rng.random_bool(0.7) {
                Deed::Kill(gateway)
            } else {
                Deed::Pause(gateway)
            }
        }
        10 | 11 => Deed::Strand(coordinator, how),
        _ => Deed::RestartStore { crash: rng.random_bool(0.5) },
    }
}

fn lasts(rng: &mut StdRng, deed: Deed, length: Duration) -> Duration {
    let longest = match deed {
        Deed::Kill(_) => KILLED_MAX,
        Deed::Leave(_) | Deed::RestartStore { .. } => return LEAVING,
        // Mostly short: a long one is one thing more than anybody waits for.
        _ if rng.random_bool(0.7) => Duration::from_secs(5),
        _ => LASTS_MAX,
    };
    let longest = longest.min(length / 3).max(Duration::from_secs(1));
    rng.random_range(Duration::from_millis(200)..=longest).max(match deed {
        Deed::Kill(_) => Duration::ZERO,
        _ => Duration::from_secs(1),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SHAPE: Shape = Shape { coordinators: 3, gateways: 2, workers: 6, has_server: true };

    #[test]
    fn a_seed_is_a_plan() {
        let length = Duration::from_secs(60);
        assert_eq!(draw(7, SHAPE, length), draw(7, SHAPE, length));
        assert_ne!(draw(7, SHAPE, length), draw(8, SHAPE, length));
    }

    #[test]
    fn a_plan_does_no_two_things_to_the_same_at_once_and_lasts_as_long_as_it_should() {
        for seed in 0..100 {
            let length = Duration::from_secs(15);
            let steps = draw(seed, SHAPE, length);
            assert!(steps.len() > 8, "seed {seed} does hardly anything: {steps:?}");
            for (n, step) in steps.iter().enumerate() {
                assert!(step.at < length && step.lasts <= LASTS_MAX, "{step}");
                for later in &steps[n + 1..] {
                    let apart =
                        later.deed.site() != step.deed.site() || later.at > step.at + step.lasts;
                    assert!(apart, "seed {seed}: {step} and {later}");
                }
            }
        }
    }

    /// As `deed` counts them, except that those are one here which are two there.
    fn kind(deed: Deed) -> usize {
        match deed {
            Deed::Kill(Who::Coordinator(_)) => 0,
            Deed::Pause(Who::Coordinator(_)) => 1,
            Deed::Leave(Who::Coordinator(_)) => 2,
            Deed::Partition(..) => 3,
            Deed::Kill(Who::Worker(_)) => 4,
            Deed::Pause(Who::Worker(_)) => 5,
            Deed::CutOff(Who::Gateway(_), ..) => 7,
            Deed::CutOff(..) => 6,
            Deed::Leave(_) => 8,
            Deed::Kill(Who::Gateway(_)) | Deed::Pause(Who::Gateway(_)) => 9,
            Deed::Strand(..) => 10,
            Deed::RestartStore { .. } => 12,
        }
    }

    #[test]
    fn a_plan_does_everything_that_it_can_if_there_is_time() {
        for seed in 0..500 {
            let steps = draw(seed, SHAPE, Duration::from_secs(30));
            let done: BTreeSet<usize> = steps.iter().map(|step| kind(step.deed)).collect();
            let missing: Vec<_> =
                (0..KINDS_OF_A_SERVER).filter(|k| *k != 11 && !done.contains(k)).collect();
            assert!(missing.is_empty(), "seed {seed} does no {missing:?}: {steps:?}");
        }
    }

    #[test]
    fn a_cluster_on_a_file_is_never_cut_off_from_it() {
        let shape = Shape { coordinators: 1, has_server: false, ..SHAPE };
        for step in (0..50).flat_map(|seed| draw(seed, shape, Duration::from_secs(30))) {
            assert!(!matches!(step.deed.site(), Site::Store | Site::StoreWire(_)), "{step}");
        }
    }
}
