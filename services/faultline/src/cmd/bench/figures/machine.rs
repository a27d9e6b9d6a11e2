//! The CPU utilization of the whole machine from /proc/stat. With all processes on one machine it
//! shows whether the CPU is the limit.

use std::{
    fs,
    ops::{Add, Sub},
};

/// The busy and the total CPU time of all cores since boot, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct CpuTime {
    busy: f64,
    all: f64,
}

impl CpuTime {
    /// The current counters; zero without /proc.
    pub(crate) fn now() -> Self {
        fs::read_to_string("/proc/stat").ok().and_then(|stat| Self::read(&stat)).unwrap_or_default()
    }

    fn read(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<f64> = line.split_whitespace().filter_map(|t| t.parse().ok()).collect();
        // The first two include guest time; the fourth and fifth are idle time and I/O wait.
        let all = ticks.iter().take(8).sum();
        Some(Self { busy: all - ticks.get(3)? - ticks.get(4)?, all })
    }

    /// The share of busy time, from 0 to 1.
    pub(crate) fn share(self) -> Option<f64> {
        (self.all > 0.0).then(|| self.busy / self.all)
    }

    pub(crate) fn cell(self) -> String {
        self.share().map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0))
    }
}

impl Sub for CpuTime {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { busy: self.busy - before.busy, all: self.all - before.all }
    }
}

impl Add for CpuTime {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { busy: self.busy + other.busy, all: self.all + other.all }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_excludes_idle_time_and_io_wait() {
        let before = CpuTime::read("cpu  10 0 10 60 20 0 0 0 5 0\ncpu0 1 2 3").unwrap();
        let after = CpuTime::read("cpu  40 0 20 110 30 0 0 0 9 0\n").unwrap();
        assert_eq!((after - before).share(), Some(0.4));
        assert_eq!((after - before).cell(), "40 %");
        assert_eq!(CpuTime::default().cell(), "-");
        assert_eq!(CpuTime::read("intr 1"), None);
    }
}
