//! Fault injector: applies a plan to a cluster, one task per resource, and undoes every fault.

use std::{slice, time::Duration};

use faultline_tests::{Cluster, CuttableProxy, Process, postgres::Server};
use futures::future::{BoxFuture, join_all};
use tokio::time::{Instant, sleep, sleep_until};

use crate::plan::{Fault, LinkFault, Resource, Step, Target};

/// Time within which a killed process must start: its database may be away meanwhile.
const RESTART_MAX: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_millis(300);
/// Time within which a process must exit after SIGTERM.
const EXIT_MAX: Duration = Duration::from_secs(30);

/// Runs the plan. Returns once every fault is undone, with the failures that were not injected.
pub(crate) async fn run(cluster: &mut Cluster, steps: &[Step], start: Instant) -> Vec<String> {
    let of = |resource: Resource| -> Vec<Step> {
        steps.iter().copied().filter(|step| step.fault.resource() == resource).collect()
    };
    let mut runs: Vec<BoxFuture<'_, Vec<String>>> = Vec::new();
    let rows = [
        (&mut cluster.coordinators, Target::Coordinator as fn(usize) -> Target),
        (&mut cluster.gateways, Target::Gateway),
        (&mut cluster.workers, Target::Worker),
    ];
    for (processes, target) in rows {
        for (n, process) in processes.iter_mut().enumerate() {
            runs.push(Box::pin(run_process(process, of(Resource::Process(target(n))), start)));
        }
    }
    for (n, link) in cluster.coordinator_proxies.iter().enumerate() {
        runs.push(Box::pin(break_links(
            slice::from_ref(link),
            of(Resource::CoordinatorLink(n)),
            start,
        )));
    }
    for (n, link) in cluster.store_proxies.iter().enumerate() {
        runs.push(Box::pin(break_links(slice::from_ref(link), of(Resource::StoreLink(n)), start)));
    }
    for (n, links) in cluster.gateway_proxies.iter().enumerate() {
        runs.push(Box::pin(break_links(links, of(Resource::LinksOf(Target::Gateway(n))), start)));
    }
    for (n, links) in cluster.worker_proxies.iter().enumerate() {
        runs.push(Box::pin(break_links(links, of(Resource::LinksOf(Target::Worker(n))), start)));
    }
    if let Some(server) = &cluster.server {
        runs.push(Box::pin(restart_store(server, of(Resource::Store), start)));
    }
    join_all(runs).await.into_iter().flatten().collect()
}

/// Applies the faults of one process. An exit that was not injected is reported as a failure, and
/// the process is restarted, as a supervisor would do.
async fn run_process(process: &mut Process, steps: Vec<Step>, start: Instant) -> Vec<String> {
    let mut failures = Vec::new();
    for step in steps {
        loop {
            tokio::select! {
                () = sleep_until(start + step.at) => break,
                exit = process.wait() => {
                    failures.push(format!("{} exited without a fault: {exit}", process.name()));
                    restart(process, &mut failures).await;
                }
            }
        }
        match step.fault {
            Fault::Kill(_) => {
                process.kill().await;
                sleep(step.lasts).await;
                restart(process, &mut failures).await;
            }
            Fault::Pause(_) => {
                process.pause().await;
                sleep(step.lasts).await;
                process.resume().await;
            }
            Fault::Terminate(_) => {
                process.terminate().await;
                match process.exit_within(EXIT_MAX).await {
                    Some(exit) if exit.success() => {}
                    Some(exit) => failures
                        .push(format!("{} exited with {exit} after SIGTERM", process.name())),
                    None => {
                        failures.push(format!("{} does not exit after SIGTERM", process.name()));
                        process.kill().await;
                    }
                }
                restart(process, &mut failures).await;
            }
            fault => unreachable!("{fault:?} is no fault of a process"),
        }
    }
    failures
}

async fn restart(process: &mut Process, failures: &mut Vec<String>) {
    let end = Instant::now() + RESTART_MAX;
    while let Err(error) = process.try_restart().await {
        if Instant::now() > end {
            failures.push(format!("a process cannot be restarted: {error}"));
            return;
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Applies the faults of links of one kind: to all of them, unless the fault names one.
async fn break_links(links: &[CuttableProxy], steps: Vec<Step>, start: Instant) -> Vec<String> {
    for step in steps {
        sleep_until(start + step.at).await;
        let (links, link_fault) = match step.fault {
            Fault::Partition(_, link_fault)
            | Fault::IsolateFromStore(_, link_fault)
            | Fault::CutOff(_, None, link_fault) => (links, link_fault),
            Fault::CutOff(_, Some(n), link_fault) => (&links[n..=n], link_fault),
            fault => unreachable!("{fault:?} is no fault of a link"),
        };
        match link_fault {
            LinkFault::Closed => links.iter().for_each(CuttableProxy::sever),
            LinkFault::Silent => links.iter().for_each(CuttableProxy::stall),
        }
        sleep(step.lasts).await;
        links.iter().for_each(CuttableProxy::heal);
    }
    Vec::new()
}

async fn restart_store(server: &Server, steps: Vec<Step>, start: Instant) -> Vec<String> {
    for step in steps {
        sleep_until(start + step.at).await;
        let Fault::RestartStore { crash } = step.fault else { unreachable!("{step}") };
        server.restart(crash).await;
    }
    Vec::new()
}
