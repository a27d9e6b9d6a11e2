//! Parsing of time windows such as `15m`, and their conversion to timestamps and buckets.

use std::time::{Duration, SystemTime};

use prost_types::Timestamp;

/// Parses `90s`, `15m`, `6h`, `2d`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || "say how long, such as 90s, 15m, 6h or 2d".to_owned();
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 60 * 60,
        'd' => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let count: u32 = text[..text.len() - unit.len_utf8()].parse().map_err(|_| wrong())?;
    let seconds = u64::from(count) * seconds;
    match seconds {
        // At most one year.
        1..=31_536_000 => Ok(Duration::from_secs(seconds)),
        _ => Err("1s at least, 365d at most".to_owned()),
    }
}

pub(crate) fn ago(time: Duration) -> Timestamp {
    (SystemTime::now() - time).into()
}

/// The width of a bucket in whole seconds, so that `count` buckets cover the time.
pub(crate) fn bucket_ms(time: Duration, count: u64) -> u32 {
    let seconds = time.as_secs().div_ceil(count).max(1);
    u32::try_from(seconds * 1000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_window_is_a_number_and_a_unit() {
        let seconds = |text| parse(text).map(|time| time.as_secs());
        assert_eq!((seconds("90s"), seconds("15m")), (Ok(90), Ok(900)));
        assert_eq!((seconds("6h"), seconds("2d")), (Ok(21_600), Ok(172_800)));
        for bad in ["", "5", "h", "-1h", "1.5h", "1w", "0s", "366d", "1é", "99999999999d"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(bucket_ms(Duration::from_secs(3600), 60), 60_000);
        assert_eq!(bucket_ms(Duration::from_secs(10), 60), 1000);
    }
}
