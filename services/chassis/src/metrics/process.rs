//! Resource usage of the process, read from /proc at each collection. Empty on systems without
//! /proc.

use std::{fs, time::Duration};

use super::{
    Observed,
    instrument::{Def, Unit},
};

/// The unit of CPU time in /proc: Linux reports 100 ticks a second.
const TICK: Duration = Duration::from_millis(10);

const CPU: Def<1> =
    Def::new("process.cpu.time", Unit::Seconds, "CPU time of the process.", ["cpu.mode"]);
const MEMORY: Def<0> =
    Def::new("process.memory.usage", Unit::Bytes, "Resident memory of the process.", []);
const OPEN: Def<0> =
    Def::new("process.open_fds", Unit::Of("file_descriptor"), "File descriptors in use.", []);
const MOST: Def<0> =
    Def::new("process.max_fds", Unit::Of("file_descriptor"), "File descriptors at the most.", []);
const START: Def<0> =
    Def::new("process.start_time", Unit::Seconds, "When the process started, since 1970.", []);

pub(super) fn observe(seen: &mut Observed) {
    if let Some((user, system, started)) = times() {
        seen.counter(&CPU, ["user"], user.as_secs_f64());
        seen.counter(&CPU, ["system"], system.as_secs_f64());
        if let Some(booted) = booted() {
            seen.gauge(&START, [], booted + started.as_secs_f64());
        }
    }
    if let Some(bytes) = memory() {
        seen.gauge(&MEMORY, [], bytes as f64);
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        seen.gauge(&OPEN, [], open.count() as f64);
    }
    if let Ok((soft, _)) = rlimit::getrlimit(rlimit::Resource::NOFILE) {
        seen.gauge(&MOST, [], soft as f64);
    }
}

/// CPU time in user and in system mode, and the time of the start since the boot.
fn times() -> Option<(Duration, Duration, Duration)> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name in brackets may contain anything, so the fields are counted from its end.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user: u32 = fields.nth(11)?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    let started: u64 = fields.nth(6)?.parse().ok()?;
    let started = Duration::from_millis(started.saturating_mul(TICK.as_millis() as u64));
    Some((TICK * user, TICK * system, started))
}

/// The boot time, in seconds since 1970.
fn booted() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

fn memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::{
        super::{Metrics, set::Value},
        *,
    };

    #[test]
    fn process_metrics_are_plausible() {
        let sets = Metrics::default().read();
        let one = |name: &str| {
            let set = sets.iter().find(|set| set.name == name).expect(name);
            match set.points[0].value {
                Value::Number(number) => number,
                Value::Histogram { .. } => panic!("{name}"),
            }
        };
        assert!(one(MEMORY.name) > 1e5, "{}", one(MEMORY.name));
        assert!(one(OPEN.name) >= 3. && one(MOST.name) > one(OPEN.name));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - one(START.name);
        assert!((-2. ..600.).contains(&age), "{age}");
        assert!(one(CPU.name) >= 0.);
    }
}
