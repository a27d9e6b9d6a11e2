//! Fault plan of a chaos test, drawn from a seed. Pure: the same seed gives the same plan.

use std::{fmt, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

/// Number of processes of each role in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) coordinators: usize,
    pub(crate) gateways: usize,
    pub(crate) workers: usize,
    /// Whether the store is a database server, which can be restarted and cut off.
    pub(crate) has_server: bool,
}

/// One process of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    Coordinator(usize),
    Gateway(usize),
    Worker(usize),
}

/// Fault of a proxied connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkFault {
    /// Connections are closed, and new ones refused.
    Closed,
    /// Bytes are dropped without an error (a network partition).
    Silent,
}

/// One fault. The fault injector undoes it after its duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `kill -9`; restarted after the duration.
    Kill(Target),
    /// SIGSTOP; SIGCONT after the duration.
    Pause(Target),
    /// SIGTERM; restarted once it has exited.
    Terminate(Target),
    /// No process reaches this coordinator.
    Partition(usize, LinkFault),
    /// This gateway or worker does not reach that coordinator, or any coordinator if none is
    /// named. All other processes do.
    CutOff(Target, Option<usize>, LinkFault),
    /// This coordinator does not reach its database.
    IsolateFromStore(usize, LinkFault),
    /// The database is restarted: in order, or after a crash.
    RestartStore { crash: bool },
}

impl Fault {
    /// Whether blocking calls may be answered early: a coordinator without its store does that.
    pub(crate) fn affects_store(self) -> bool {
        matches!(self, Fault::IsolateFromStore(..) | Fault::RestartStore { .. })
    }
}

/// The resource of a fault. Faults of the same resource never overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Resource {
    Process(Target),
    /// The link of all other processes to this coordinator.
    CoordinatorLink(usize),
    /// All links from this process to the coordinators.
    LinksOf(Target),
    StoreLink(usize),
    Store,
}

impl Fault {
    pub(crate) fn resource(self) -> Resource {
        match self {
            Self::Kill(target) | Self::Pause(target) | Self::Terminate(target) => {
                Resource::Process(target)
            }
            Self::Partition(at, _) => Resource::CoordinatorLink(at),
            Self::CutOff(target, ..) => Resource::LinksOf(target),
            Self::IsolateFromStore(at, _) => Resource::StoreLink(at),
            Self::RestartStore { .. } => Resource::Store,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
    /// Duration of the fault.
    pub(crate) lasts: Duration,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        let lasts = self.lasts.as_secs_f64();
        write!(f, "{at:6.2} s  {:?}", self.fault)?;
        match self.fault {
            Fault::Terminate(_) | Fault::RestartStore { .. } => Ok(()),
            _ => write!(f, " for {lasts:.1} s"),
        }
    }
}

/// The longest pause or disconnection.
const LASTS_MAX: Duration = Duration::from_secs(15);
const KILLED_MAX: Duration = Duration::from_secs(3);
/// Time for a process to exit after SIGTERM, and for a database to restart.
const RESTART: Duration = Duration::from_secs(12);
/// Time between the starts of two faults.
const GAP_MS: std::ops::Range<u64> = 100..1200;

/// Number of kinds of faults: for any cluster, and for one whose store is a server.
const KINDS: usize = 10;
const KINDS_WITH_SERVER: usize = 13;

/// A plan of this length. It contains every possible kind of fault at least once, if there is time,
/// and overlapping faults, but never two of the same resource.
pub(crate) fn draw(seed: u64, shape: Shape, length: Duration) -> Vec<Step> {
    let mut rng = StdRng::seed_from_u64(seed);
    let all = if shape.has_server { KINDS_WITH_SERVER } else { KINDS };
    let mut due: Vec<usize> = (0..all).collect();
    due.shuffle(&mut rng);
    let mut steps: Vec<Step> = Vec::new();
    let mut at = Duration::from_millis(300);
    while at < length {
        let kind = due.last().copied().unwrap_or_else(|| rng.random_range(0..all));
        let fault = fault(&mut rng, kind, shape);
        let lasts = lasts(&mut rng, fault, length);
        let is_free =
            |step: &Step| step.fault.resource() != fault.resource() || step.at + step.lasts < at;
        if steps.iter().all(is_free) {
            steps.push(Step { at, fault, lasts });
            due.pop();
        } else if !due.is_empty() {
            // Its resource has another fault at this moment: the other kinds come first.
            due.rotate_right(1);
        }
        at += Duration::from_millis(rng.random_range(GAP_MS));
    }
    steps
}

fn fault(rng: &mut StdRng, kind: usize, shape: Shape) -> Fault {
    let link_fault = if rng.random_bool(0.5) { LinkFault::Closed } else { LinkFault::Silent };
    let coordinator = rng.random_range(0..shape.coordinators);
    let worker = Target::Worker(rng.random_range(0..shape.workers));
    let gateway = Target::Gateway(rng.random_range(0..shape.gateways));
    // Mostly from one coordinator: a partial partition is harder to handle than a full one.
    let from = rng.random_bool(0.7).then_some(coordinator);
    match kind {
        0 => Fault::Kill(Target::Coordinator(coordinator)),
        1 => Fault::Pause(Target::Coordinator(coordinator)),
        2 => Fault::Terminate(Target::Coordinator(coordinator)),
        3 => Fault::Partition(coordinator, link_fault),
        4 => Fault::Kill(worker),
        5 => Fault::Pause(worker),
        6 => Fault::CutOff(worker, from, link_fault),
        7 => Fault::CutOff(gateway, from, link_fault),
        8 => {
            if rng.random_bool(0.5) {
                Fault::Terminate(worker)
            } else {
                Fault::Terminate(gateway)
            }
        }
        9 => {
            if rng.random_bool(0.7) {
                Fault::Kill(gateway)
            } else {
                Fault::Pause(gateway)
            }
        }
        10 | 11 => Fault::IsolateFromStore(coordinator, link_fault),
        _ => Fault::RestartStore { crash: rng.random_bool(0.5) },
    }
}

fn lasts(rng: &mut StdRng, fault: Fault, length: Duration) -> Duration {
    let longest = match fault {
        Fault::Kill(_) => KILLED_MAX,
        Fault::Terminate(_) | Fault::RestartStore { .. } => return RESTART,
        // Mostly short: a long disconnection delays all later faults of its resource.
        _ if rng.random_bool(0.7) => Duration::from_secs(5),
        _ => LASTS_MAX,
    };
    let longest = longest.min(length / 3).max(Duration::from_secs(1));
    rng.random_range(Duration::from_millis(200)..=longest).max(match fault {
        Fault::Kill(_) => Duration::ZERO,
        _ => Duration::from_secs(1),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const SHAPE: Shape = Shape { coordinators: 3, gateways: 2, workers: 6, has_server: true };

    #[test]
    fn seed_determines_the_plan() {
        let length = Duration::from_secs(60);
        assert_eq!(draw(7, SHAPE, length), draw(7, SHAPE, length));
        assert_ne!(draw(7, SHAPE, length), draw(8, SHAPE, length));
    }

    #[test]
    fn plan_never_overlaps_faults_of_one_resource() {
        for seed in 0..100 {
            let length = Duration::from_secs(15);
            let steps = draw(seed, SHAPE, length);
            assert!(steps.len() > 8, "seed {seed} draws too few faults: {steps:?}");
            for (n, step) in steps.iter().enumerate() {
                assert!(step.at < length && step.lasts <= LASTS_MAX, "{step}");
                for later in &steps[n + 1..] {
                    let apart = later.fault.resource() != step.fault.resource()
                        || later.at > step.at + step.lasts;
                    assert!(apart, "seed {seed}: {step} and {later}");
                }
            }
        }
    }

    /// The kind of a fault, as `fault` numbers them; 10 and 11 are both 10 here.
    fn kind(fault: Fault) -> usize {
        match fault {
            Fault::Kill(Target::Coordinator(_)) => 0,
            Fault::Pause(Target::Coordinator(_)) => 1,
            Fault::Terminate(Target::Coordinator(_)) => 2,
            Fault::Partition(..) => 3,
            Fault::Kill(Target::Worker(_)) => 4,
            Fault::Pause(Target::Worker(_)) => 5,
            Fault::CutOff(Target::Gateway(_), ..) => 7,
            Fault::CutOff(..) => 6,
            Fault::Terminate(_) => 8,
            Fault::Kill(Target::Gateway(_)) | Fault::Pause(Target::Gateway(_)) => 9,
            Fault::IsolateFromStore(..) => 10,
            Fault::RestartStore { .. } => 12,
        }
    }

    #[test]
    fn plan_contains_every_kind_of_fault() {
        for seed in 0..500 {
            let steps = draw(seed, SHAPE, Duration::from_secs(30));
            let done: BTreeSet<usize> = steps.iter().map(|step| kind(step.fault)).collect();
            let missing: Vec<_> =
                (0..KINDS_WITH_SERVER).filter(|k| *k != 11 && !done.contains(k)).collect();
            assert!(missing.is_empty(), "seed {seed} draws no {missing:?}: {steps:?}");
        }
    }

    #[test]
    fn plan_of_a_sqlite_cluster_has_no_store_faults() {
        let shape = Shape { coordinators: 1, has_server: false, ..SHAPE };
        for step in (0..50).flat_map(|seed| draw(seed, shape, Duration::from_secs(30))) {
            assert!(
                !matches!(step.fault.resource(), Resource::Store | Resource::StoreLink(_)),
                "{step}"
            );
        }
    }
}
