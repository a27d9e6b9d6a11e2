//! A chain of processes behind one HTTP address, and load on several chains in turns, so that other
//! work of the machine affects all of them equally.
//!
//! May use: roles, load and figures.

pub(crate) mod postgres;
pub(crate) mod process;

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::Context;

use crate::cmd::bench::{
    chain::process::{Env, Process},
    figures::Figures,
    load::driver::{Fleet, Tally, ask_until_served},
    roles::Hop,
};

/// The number of periods that the duration of one point is divided into.
const SLICES: u32 = 4;
/// Load on each chain before the measurement.
const WARM_UP: Duration = Duration::from_millis(100);
const START_TIMEOUT: Duration = Duration::from_secs(10);
const START_PAUSE: Duration = Duration::from_millis(20);

/// The processes of one chain, that with the HTTP address last. A drop kills all of them.
pub(crate) struct Chain {
    pub(crate) address: SocketAddr,
    processes: Vec<Process>,
}

/// The processes of a cluster. The section builds it; `Chain::cluster` starts them.
pub(crate) struct Layout<'a> {
    /// The URL of the store.
    pub(crate) store: &'a str,
    pub(crate) coordinators: usize,
    pub(crate) workers: usize,
    /// The agents of each worker.
    pub(crate) agents: &'a str,
    pub(crate) slots: u32,
    pub(crate) attached: Attached,
}

/// The coordinators that a worker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    /// All of them.
    Anywhere,
    /// One of them, in turn.
    InTurn,
    /// The first one only.
    ToFirst,
}

impl Chain {
    fn new(processes: Vec<Process>) -> anyhow::Result<Self> {
        let front = processes.last().context("a chain of nothing")?;
        let address = front.address.trim_start_matches("http://");
        let address = address.parse().with_context(|| format!("no address: '{address}'"))?;
        Ok(Self { address, processes })
    }

    /// A mesh of three processes with its store in `dir` and these agents.
    pub(crate) async fn mesh(dir: &Path, agents: &str) -> anyhow::Result<Self> {
        Self::mesh_with(dir, agents, &[]).await
    }

    /// A mesh with these variables in the environment of each process.
    pub(crate) async fn mesh_with(dir: &Path, agents: &str, env: Env<'_>) -> anyhow::Result<Self> {
        let store = format!("sqlite:{}", dir.join("db").display());
        Self::three(dir, &store, agents, env).await
    }

    /// A mesh on this store.
    pub(crate) async fn mesh_on(dir: &Path, store: &str, agents: &str) -> anyhow::Result<Self> {
        Self::three(dir, store, agents, &[]).await
    }

    async fn three(dir: &Path, store: &str, agents: &str, env: Env<'_>) -> anyhow::Result<Self> {
        let args = ["service", "coordinator", "--listen", "127.0.0.1:0", "--store", store];
        let coordinator = Process::start_with(dir, "coordinator", &args, env).await?;
        let to = format!("http://{}", coordinator.address);
        let args = ["service", "worker", "--coordinator", &to, "--agents", agents];
        let worker = Process::start_with(dir, "worker", &args, env).await?;
        let args = ["service", "gateway", "--listen", "127.0.0.1:0", "--coordinator", &to];
        let gateway = Process::start_with(dir, "gateway", &args, env).await?;
        Self::new(vec![coordinator, worker, gateway])
    }

    /// A mesh with several coordinators and workers; its gateway knows every coordinator.
    pub(crate) async fn cluster(dir: &Path, layout: &Layout<'_>) -> anyhow::Result<Self> {
        let mut processes = Vec::new();
        for n in 0..layout.coordinators {
            let store = ["--store", layout.store];
            let args = ["service", "coordinator", "--listen", "127.0.0.1:0", store[0], store[1]];
            processes.push(Process::start(dir, &format!("coordinator-{n}"), &args).await?);
        }
        for n in 0..layout.workers {
            let worker = worker(dir, n, &processes[..layout.coordinators], layout).await?;
            processes.push(worker);
        }
        let to = addresses(&processes[..layout.coordinators]);
        let args = ["service", "gateway", "--listen", "127.0.0.1:0", "--coordinator", &to];
        processes.push(Process::start(dir, "gateway", &args).await?);
        Self::new(processes)
    }

    /// Adds workers to a cluster up to the number in the layout.
    pub(crate) async fn grow(&mut self, dir: &Path, layout: &Layout<'_>) -> anyhow::Result<()> {
        let there = self.processes.len() - layout.coordinators - 1;
        for n in there..layout.workers {
            let coordinators = self.processes.get(..layout.coordinators).unwrap_or_default();
            let worker = worker(dir, n, coordinators, layout).await?;
            let before_the_gateway = self.processes.len() - 1;
            self.processes.insert(before_the_gateway, worker);
        }
        Ok(())
    }

    /// The bare chain: the same hops without the services.
    pub(crate) async fn bare(dir: &Path) -> anyhow::Result<Self> {
        let middle = Process::start(dir, "middle", &["middle"]).await?;
        let args = ["back", "--to", &middle.address];
        let back = Process::start(dir, "back", &args).await?;
        let args = ["front", "--to", &middle.address];
        let front = Process::start(dir, "front", &args).await?;
        Self::new(vec![middle, back, front])
    }

    /// The front and the middle only, with this transport between them.
    pub(crate) async fn hop(dir: &Path, hop: Hop) -> anyhow::Result<Self> {
        let (name, middle, front) = match hop {
            Hop::Unary => ("unary", "middle-unary", "front-unary"),
            Hop::Link => ("link", "middle-link", "front-link"),
        };
        let middle = Process::start(dir, middle, &["middle", "--at-once"]).await?;
        let args = ["front", "--to", &middle.address, "--hop", name];
        let front = Process::start(dir, front, &args).await?;
        Self::new(vec![middle, front])
    }

    /// Waits for the first successful response; its number of frames and bytes.
    pub(crate) async fn first_answer(&self, request: &[u8]) -> anyhow::Result<(usize, usize)> {
        ask_until_served(self.address, request, START_TIMEOUT, START_PAUSE).await
    }

    /// The coordinator of a mesh.
    pub(crate) fn coordinator_mut(&mut self) -> anyhow::Result<&mut Process> {
        self.processes.first_mut().context("a chain of nothing")
    }

    /// The resident memory of each process in bytes, in the order of the chain.
    pub(crate) fn memory(&self) -> anyhow::Result<Vec<u64>> {
        let bytes = self.processes.iter().map(Process::memory).collect::<Option<_>>();
        bytes.context("no /proc to read memory from")
    }

    /// The CPU time of all processes; `None` without /proc.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        self.processes.iter().map(Process::cpu).sum()
    }

    /// Kills all processes and waits for their end, so that their directory can be deleted.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        for process in &mut self.processes {
            process.kill().await?;
        }
        Ok(())
    }
}

pub(crate) async fn coordinator(dir: &Path, listen: &str, store: &str) -> anyhow::Result<Process> {
    let args = ["service", "coordinator", "--listen", listen, "--store", store];
    Process::start(dir, "coordinator", &args).await
}

/// The addresses of the coordinators, as a list for gateways and workers.
fn addresses(coordinators: &[Process]) -> String {
    let urls = coordinators.iter().map(|process| format!("http://{}", process.address));
    urls.collect::<Vec<_>>().join(",")
}

async fn worker(
    dir: &Path,
    n: usize,
    coordinators: &[Process],
    layout: &Layout<'_>,
) -> anyhow::Result<Process> {
    let to = match layout.attached {
        Attached::Anywhere => addresses(coordinators),
        Attached::InTurn => addresses(&coordinators[n % coordinators.len()..][..1]),
        Attached::ToFirst => addresses(&coordinators[..1]),
    };
    let name = format!("worker-{n}");
    let slots = layout.slots.to_string();
    let command = ["service", "worker", "--coordinator", &to, "--agents", layout.agents];
    let args = [&command[..], &["--slots", &slots, "--name", &name]].concat();
    Process::start(dir, &name, &args).await
}

/// Applies load to two chains in turns, each for `span` in total.
pub(crate) async fn alternate(
    chains: [&Chain; 2],
    request: &Arc<[u8]>,
    concurrency: u16,
    span: Duration,
) -> anyhow::Result<[Figures; 2]> {
    let [a, b] = chains;
    let open = |chain: &Chain| Fleet::open(chain.address, concurrency, Arc::clone(request));
    in_turns([(a, open(a).await?), (b, open(b).await?)], span).await
}

/// Applies load to several chains in turns, each for `span` in total.
pub(crate) async fn in_turns<const N: usize>(
    fleets: [(&Chain, Fleet); N],
    span: Duration,
) -> anyhow::Result<[Figures; N]> {
    let mut sides = Vec::new();
    for (chain, mut fleet) in fleets {
        fleet.drive(WARM_UP).await?;
        sides.push((chain, fleet, Tally::default(), Some(Duration::ZERO)));
    }
    for _ in 0..SLICES {
        for (chain, fleet, tally, cpu) in &mut sides {
            let before = chain.cpu();
            tally.append(fleet.drive(span / SLICES).await?);
            let used = chain.cpu().zip(before).map(|(after, before)| after - before);
            *cpu = cpu.zip(used).map(|(sum, used)| sum + used);
        }
    }
    let figures: Vec<_> =
        sides.into_iter().map(|(_, _, tally, cpu)| Figures::of(tally, cpu)).collect();
    figures.try_into().map_err(|_| anyhow::anyhow!("as many figures as chains"))
}
