//! Numbers over time in one line of text: the newest at the right, the highest as a full block.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Nothing happened, which is not the same as little.
const NOTHING: char = '·';

/// At most `width` characters. Where there are more numbers, several become one.
pub(crate) fn sparkline(numbers: &[u32], width: usize) -> String {
    if width == 0 || numbers.is_empty() {
        return String::new();
    }
    let together = numbers.len().div_ceil(width);
    // From the end, so that the newest has its full share.
    let mut sums: Vec<u64> =
        numbers.rchunks(together).map(|group| group.iter().map(|n| u64::from(*n)).sum()).collect();
    sums.reverse();
    let highest = sums.iter().copied().max().unwrap_or(0).max(1);
    let bar = |sum: &u64| match sum {
        0 => NOTHING,
        sum => BARS[((sum * 8).div_ceil(highest) as usize).clamp(1, 8) - 1],
    };
    sums.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_is_full_and_nothing_is_a_dot() {
        assert_eq!(sparkline(&[0, 1, 4, 8], 10), "·▁▄█");
        assert_eq!(sparkline(&[0, 0], 10), "··");
        assert_eq!(sparkline(&[u32::MAX, 1], 2), "█▁");
        assert_eq!((sparkline(&[], 5), sparkline(&[1], 0)), (String::new(), String::new()));
    }

    #[test]
    fn many_numbers_become_one_from_the_newest_on() {
        assert_eq!(sparkline(&[9, 1, 1, 2, 2], 2), "█▄", "9+1 and 1+2+2");
        assert_eq!(sparkline(&[1; 60], 12).chars().count(), 12);
        assert_eq!(sparkline(&[1; 61], 12).chars().count(), 11, "none has more than its share");
    }
}
