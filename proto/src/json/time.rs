//! Timestamp and Duration as text. Both have a legal range; an illegal value, which only a protobuf
//! peer can send, is printed as the nearest legal one.

use prost_types::{Duration, Timestamp};
use serde::Deserializer;

use super::{ProtoJson, Trail, read::text, write::plain};

const NANOS: i32 = 1_000_000_000;
const DAY: i64 = 86_400;
/// 0001-01-01T00:00:00Z and 9999-12-31T23:59:59Z.
const FIRST: i64 = -62_135_596_800;
const LAST: i64 = 253_402_300_799;
/// Ten thousand years.
const LONGEST: i64 = 315_576_000_000;

impl ProtoJson for Timestamp {
    fn write(&self, out: &mut Vec<u8>) {
        let (seconds, nanos) = normal(self.seconds, self.nanos);
        let (seconds, nanos) = match seconds {
            ..FIRST => (FIRST, 0),
            FIRST..=LAST => (seconds, nanos),
            _ => (LAST, NANOS - 1),
        };
        let (year, month, day) = civil(seconds.div_euclid(DAY));
        let second = seconds.rem_euclid(DAY);
        out.push(b'"');
        digits(out, year, 4);
        out.push(b'-');
        digits(out, month, 2);
        out.push(b'-');
        digits(out, day, 2);
        out.push(b'T');
        digits(out, second / 3600, 2);
        out.push(b':');
        digits(out, second / 60 % 60, 2);
        out.push(b':');
        digits(out, second % 60, 2);
        // ProtoJSON would print no fraction for zero; A2A requires milliseconds.
        match nanos {
            0 => out.extend_from_slice(b".000"),
            nanos => fraction(out, nanos),
        }
        out.extend_from_slice(b"Z\"");
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        let text = text(input, trail, "a timestamp")?;
        let read = timestamp(text.as_bytes());
        let in_utc = || timestamp(&[text.as_bytes(), b"Z"].concat());
        read.or_else(|| trail.takes_zoneless.then(in_utc).flatten()).ok_or_else(|| {
            trail.refuse("expected an RFC 3339 timestamp like 2025-01-31T10:00:00.250Z")
        })
    }
}

impl ProtoJson for Duration {
    fn write(&self, out: &mut Vec<u8>) {
        let (seconds, nanos) = normal(self.seconds, self.nanos);
        let total = i128::from(seconds) * i128::from(NANOS) + i128::from(nanos);
        let longest = i128::from(LONGEST) * i128::from(NANOS);
        let total = total.clamp(-longest, longest);
        out.push(b'"');
        if total < 0 {
            out.push(b'-');
        }
        let total = total.unsigned_abs();
        plain(out, (total / NANOS as u128) as u64);
        fraction(out, (total % NANOS as u128) as i32);
        out.extend_from_slice(b"s\"");
    }

    fn read<'de, D: Deserializer<'de>>(input: D, trail: &Trail) -> Result<Self, D::Error> {
        let text = text(input, trail, "a duration")?;
        duration(text.as_bytes())
            .ok_or_else(|| trail.refuse("expected a duration in seconds like 1.5s"))
    }
}

/// Normalises the nanoseconds to the range from zero to one second.
fn normal(seconds: i64, nanos: i32) -> (i64, i32) {
    (seconds.saturating_add(nanos.div_euclid(NANOS).into()), nanos.rem_euclid(NANOS))
}

/// Three, six or nine digits after the point, or no point.
fn fraction(out: &mut Vec<u8>, nanos: i32) {
    let (value, width) = match nanos {
        0 => return,
        nanos if nanos % 1_000_000 == 0 => (nanos / 1_000_000, 3),
        nanos if nanos % 1_000 == 0 => (nanos / 1_000, 6),
        nanos => (nanos, 9),
    };
    out.push(b'.');
    digits(out, value.into(), width);
}

fn digits(out: &mut Vec<u8>, value: i64, width: usize) {
    let start = out.len();
    out.resize(start + width, b'0');
    let mut rest = value;
    for digit in out[start..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Year, month and day of a day since 1970. Years start in March here, so the leap day is the last
/// one.
fn civil(day: i64) -> (i64, i64, i64) {
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let day = day.rem_euclid(146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

/// The inverse of `civil`.
fn day_of(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let year = year.rem_euclid(400);
    let month = (month + 9) % 12;
    era * 146_097 + 365 * year + year / 4 - year / 100 + (153 * month + 2) / 5 + day - 1 - 719_468
}

pub(crate) fn timestamp(text: &[u8]) -> Option<Timestamp> {
    let mut text = Text(text);
    let year = text.number(4)?;
    let month = text.after(b"-", 2)?;
    let day = text.after(b"-", 2)?;
    let hour = text.after(b"Tt", 2)?;
    let minute = text.after(b":", 2)?;
    let second = text.after(b":", 2)?;
    let nanos = text.fraction()?;
    let offset = match text.next()? {
        b'Z' | b'z' => 0,
        sign @ (b'+' | b'-') => {
            let hours = text.number(2)?;
            let minutes = text.after(b":", 2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            (hours * 3600 + minutes * 60) * if sign == b'+' { 1 } else { -1 }
        }
        _ => return None,
    };
    let date = day_of(year, month, day);
    // The round trip refuses days that do not exist.
    let is_legal = civil(date) == (year, month, day) && hour < 24 && minute < 60 && second < 60;
    let seconds = date * DAY + hour * 3600 + minute * 60 + second - offset;
    let is_legal = is_legal && text.0.is_empty() && (FIRST..=LAST).contains(&seconds);
    is_legal.then_some(Timestamp { seconds, nanos })
}

fn duration(text: &[u8]) -> Option<Duration> {
    let (text, sign) = match text.strip_prefix(b"-") {
        Some(text) => (text, -1),
        None => (text, 1),
    };
    let width = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut text = Text(text);
    // Twelve digits hold the longest duration, and eighteen any that can be counted.
    let seconds = if (1..=18).contains(&width) { text.number(width)? } else { return None };
    let nanos = text.fraction()?;
    let is_legal = text.0 == b"s" && (seconds < LONGEST || (seconds == LONGEST && nanos == 0));
    is_legal.then_some(Duration { seconds: seconds * sign, nanos: nanos * sign as i32 })
}

/// The unread rest of a text.
struct Text<'a>(&'a [u8]);

impl Text<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self, width: usize) -> Option<i64> {
        let (digits, rest) = self.0.split_at_checked(width)?;
        self.0 = rest;
        digits.iter().try_fold(0, |number, byte| {
            byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'))
        })
    }

    fn after(&mut self, separators: &[u8], width: usize) -> Option<i64> {
        let separator = self.next()?;
        separators.contains(&separator).then(|| self.number(width))?
    }

    /// The nanoseconds after a point, or zero without one.
    fn fraction(&mut self) -> Option<i32> {
        let Some(digits) = self.0.strip_prefix(b".") else { return Some(0) };
        let width = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if !(1..=9).contains(&width) {
            return None;
        }
        self.0 = digits;
        let number = i32::try_from(self.number(width)?).ok()?;
        Some(number * 10_i32.pow(9 - width as u32))
    }
}
