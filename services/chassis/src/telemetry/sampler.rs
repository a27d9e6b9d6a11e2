//! Head sampling: whether a trace is exported is decided once, where it enters the mesh. The flag
//! in its `traceparent` carries the decision to every later hop.

use std::sync::OnceLock;

static SAMPLER: OnceLock<Sampler> = OnceLock::new();

/// The sampler that `OTEL_TRACES_SAMPLER` names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sampler {
    /// The decision of the caller's trace takes precedence.
    pub(crate) parent_based: bool,
    /// The sampled part of all other traces, from 0 to 1.
    pub(crate) ratio: f64,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { parent_based: true, ratio: 1.0 }
    }
}

impl Sampler {
    /// The sampler of a standard name; `None`: the name is unknown.
    pub(super) fn named(name: &str, ratio: f64) -> Option<Self> {
        let (parent_based, rest) = match name.strip_prefix("parentbased_") {
            Some(rest) => (true, rest),
            None => (false, name),
        };
        let ratio = match rest {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => ratio,
            _ => return None,
        };
        Some(Self { parent_based, ratio })
    }

    fn decides(self, trace_id: u128, asked: Option<bool>) -> bool {
        if let Some(asked) = asked.filter(|_| self.parent_based) {
            return asked;
        }
        // The lower half of the id is random, as every implementation of OpenTelemetry takes it:
        // services that sample by the same ratio keep the same traces.
        let drawn = (trace_id as u64) >> 1;
        self.ratio >= 1.0 || drawn < (self.ratio.max(0.0) * (1_u64 << 63) as f64) as u64
    }
}

pub(super) fn set(sampler: Sampler) {
    let _ = SAMPLER.set(sampler);
}

/// Whether this trace is exported. `asked`: the caller's own decision.
pub(crate) fn decides(trace_id: u128, asked: Option<bool>) -> bool {
    SAMPLER.get().copied().unwrap_or_default().decides(trace_id, asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_sampler_names_are_supported() {
        let sampler = |name| Sampler::named(name, 0.25).unwrap();
        let id = u128::from(u64::MAX);
        assert!(sampler("always_on").decides(id, Some(false)));
        assert!(!sampler("always_off").decides(0, Some(true)));
        assert!(sampler("parentbased_always_off").decides(id, Some(true)));
        assert!(!sampler("parentbased_always_on").decides(id, Some(false)));
        assert!(sampler("parentbased_always_on").decides(id, None));
        assert!(!sampler("traceidratio").decides(id, Some(true)));
        assert!(sampler("traceidratio").decides(1, Some(false)));
        assert_eq!(Sampler::named("jaeger_remote", 1.0), None);
    }

    #[test]
    fn ratio_samples_about_that_share() {
        let sampler = Sampler::named("traceidratio", 0.25).unwrap();
        let kept = (0..10_000).filter(|_| sampler.decides(rand::random(), None)).count();
        assert!((2_200..2_800).contains(&kept), "{kept} of 10000");
    }
}
