//! Does a plan to a cluster, all that belongs together at once, and leaves it whole.

use std::{slice, time::Duration};

use faultline_tests::{Cluster, CuttableProxy, Process, postgres::Server};
use futures::future::{BoxFuture, join_all};
use tokio::time::{Instant, sleep, sleep_until};

use crate::plan::{Break, Deed, Site, Step, Who};

/// How long whatever was killed may be unable to start: what it needs may be away meanwhile.
const BACK: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_millis(300);
/// What a process that is asked to leave may take.
const LEAVES: Duration = Duration::from_secs(30);

/// Returns when the plan is done and everything is as it was. Gives what went wrong by itself.
pub(crate) async fn run(cluster: &mut Cluster, steps: &[Step], start: Instant) -> Vec<String> {
    let of = |site: Site| -> Vec<Step> {
        steps.iter().copied().filter(|step| step.deed.site() == site).collect()
    };
    let mut lives: Vec<BoxFuture<'_, Vec<String>>> = Vec::new();
    let rows = [
        (&mut cluster.coordinators, Who::Coordinator as fn(usize) -> Who),
        (&mut cluster.gateways, Who::Gateway),
        (&mut cluster.workers, Who::Worker),
    ];
    for (processes, who) in rows {
        for (n, process) in processes.iter_mut().enumerate() {
            lives.push(Box::pin(live(process, of(Site::Process(who(n))), start)));
        }
    }
    for (n, wire) in cluster.coordinator_proxies.iter().enumerate() {
        lives.push(Box::pin(disturb(slice::from_ref(wire), of(Site::Wire(n)), start)));
    }
    for (n, wire) in cluster.store_proxies.iter().enumerate() {
        lives.push(Box::pin(disturb(slice::from_ref(wire), of(Site::StoreWire(n)), start)));
    }
    for (n, wires) in cluster.gateway_proxies.iter().enumerate() {
        lives.push(Box::pin(disturb(wires, of(Site::WiresOf(Who::Gateway(n))), start)));
    }
    for (n, wires) in cluster.worker_proxies.iter().enumerate() {
        lives.push(Box::pin(disturb(wires, of(Site::WiresOf(Who::Worker(n))), start)));
    }
    if let Some(server) = &cluster.server {
        lives.push(Box::pin(restart(server, of(Site::Store), start)));
    }
    join_all(lives).await.into_iter().flatten().collect()
}

/// What happens to one process. One that dies without having been killed is a fault of its own,
/// and is started again, as whatever looks after it would.
async fn live(process: &mut Process, steps: Vec<Step>, start: Instant) -> Vec<String> {
    let mut faults = Vec::new();
    for step in steps {
        loop {
            tokio::select! {
                () = sleep_until(start + step.at) => break,
                exit = process.wait() => {
                    faults.push(format!("{} died by itself: {exit}", process.name()));
                    back(process, &mut faults).await;
                }
            }
        }
        match step.deed {
            Deed::Kill(_) => {
                process.kill().await;
                sleep(step.lasts).await;
                back(process, &mut faults).await;
            }
            Deed::Pause(_) => {
                process.pause().await;
                sleep(step.lasts).await;
                process.resume().await;
            }
            Deed::Leave(_) => {
                process.terminate().await;
                match process.exit_within(LEAVES).await {
                    Some(exit) if exit.success() => {}
                    Some(exit) => faults.push(format!("{} left with {exit}", process.name())),
                    None => {
                        faults.push(format!("{} does not leave", process.name()));
                        process.kill().await;
                    }
                }
                back(process, &mut faults).await;
            }
            deed => unreachable!("{deed:?} is done to no process"),
        }
    }
    faults
}

async fn back(process: &mut Process, faults: &mut Vec<String>) {
    let end = Instant::now() + BACK;
    while let Err(why) = process.try_restart().await {
        if Instant::now() > end {
            faults.push(format!("it cannot be started again: {why}"));
            return;
        }
        sleep(AGAIN).await;
    }
}

/// What happens to wires of one kind: to all of them, unless the deed names one.
async fn disturb(wires: &[CuttableProxy], steps: Vec<Step>, start: Instant) -> Vec<String> {
    for step in steps {
        sleep_until(start + step.at).await;
        let (wires, how) = match step.deed {
            Deed::Partition(_, how) | Deed::Strand(_, how) | Deed::CutOff(_, None, how) => {
                (wires, how)
            }
            Deed::CutOff(_, Some(n), how) => (&wires[n..=n], how),
            deed => unreachable!("{deed:?} is done to no wire"),
        };
        match how {
            Break::Closed => wires.iter().for_each(CuttableProxy::sever),
            Break::Silent => wires.iter().for_each(CuttableProxy::stall),
        }
        sleep(step.lasts).await;
        wires.iter().for_each(CuttableProxy::heal);
    }
    Vec::new()
}

async fn restart(server: &Server, steps: Vec<Step>, start: Instant) -> Vec<String> {
    for step in steps {
        sleep_until(start + step.at).await;
        let Deed::RestartStore { crash } = step.deed else { unreachable!("{step}") };
        server.restart(crash).await;
    }
    Vec::new()
}
