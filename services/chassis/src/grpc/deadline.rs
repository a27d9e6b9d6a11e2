//! The deadline of one outgoing call. tonic stops its own timer at the response headers and reports
//! expiry as CANCELLED, so the deadline is enforced here, for the body too.

use std::time::Duration;

/// The timeouts of one call, as an extension of its request. `chassis::client` enforces them and
/// sends `grpc-timeout`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// From the call to the last byte of the response.
    pub total: Option<Duration>,
    /// Between two messages of the response.
    pub idle: Option<Duration>,
}

impl Timeouts {
    pub fn total(total: Duration) -> Self {
        Self { total: Some(total), idle: None }
    }
}

/// Reads `grpc-timeout`: one to eight digits and a unit. Anything else counts as absent.
pub fn parse_grpc_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let n: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(n * 3600)),
        "M" => Some(Duration::from_secs(n * 60)),
        "S" => Some(Duration::from_secs(n)),
        "m" => Some(Duration::from_millis(n)),
        "u" => Some(Duration::from_micros(n)),
        "n" => Some(Duration::from_nanos(n)),
        _ => None,
    }
}

/// Writes `grpc-timeout` in the finest unit that fits eight digits.
pub(crate) fn format_grpc_timeout(timeout: Duration) -> String {
    let units = [
        (timeout.as_nanos(), 'n'),
        (timeout.as_micros(), 'u'),
        (timeout.as_millis(), 'm'),
        (u128::from(timeout.as_secs()), 'S'),
        (u128::from(timeout.as_secs() / 60), 'M'),
    ];
    let fits = units.into_iter().find(|(n, _)| *n <= 99_999_999);
    let (n, unit) = fits.unwrap_or((u128::from(timeout.as_secs() / 3600).min(99_999_999), 'H'));
    format!("{n}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeout_round_trips_within_its_unit() {
        for ms in [1, 200, 50_000, 3_600_000, 86_400_000] {
            let timeout = Duration::from_millis(ms);
            assert_eq!(parse_grpc_timeout(&format_grpc_timeout(timeout)), Some(timeout));
        }
        for bad in ["", "5", "S", "123456789S", "1x", "-1S", "1é"] {
            assert_eq!(parse_grpc_timeout(bad), None, "{bad}");
        }
    }
}
