//! A sparkline: numbers over time in one line of text, the newest at the right, the highest as a
//! full block.

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Zero, which differs from a small number.
const NOTHING: char = '·';

/// At most `width` characters. With more numbers, groups are summed.
pub(crate) fn sparkline(numbers: &[u32], width: usize) -> String {
    if width == 0 || numbers.is_empty() {
        return String::new();
    }
    let together = numbers.len().div_ceil(width);
    // Groups are counted from the end, so that the newest group is complete.
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
    fn highest_number_is_a_full_block_and_zero_a_dot() {
        assert_eq!(sparkline(&[0, 1, 4, 8], 10), "·▁▄█");
        assert_eq!(sparkline(&[0, 0], 10), "··");
        assert_eq!(sparkline(&[u32::MAX, 1], 2), "█▁");
        assert_eq!((sparkline(&[], 5), sparkline(&[1], 0)), (String::new(), String::new()));
    }

    #[test]
    fn numbers_are_grouped_from_the_newest_on() {
        assert_eq!(sparkline(&[9, 1, 1, 2, 2], 2), "█▄", "9+1 and 1+2+2");
        assert_eq!(sparkline(&[1; 60], 12).chars().count(), 12);
        assert_eq!(
            sparkline(&[1; 61], 12).chars().count(),
            11,
            "every group has at most six numbers"
        );
    }
}
