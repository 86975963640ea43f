//! Splits programs into submissions below a time limit.
//!
//! A GPU that drives a display is reset by its watchdog when one submission occupies it for about two seconds. Kernel
//! times depend on the adapter, so the first replay measures them: each launch is submitted alone and waited for. Later
//! replays are split by those times and wait for nothing.

use std::time::Duration;

/// Longest submission on a GPU: a tenth of the watchdog's limit, as a margin for lower clocks and launches that take
/// longer than measured.
pub(super) const SUBMISSION_TIME: Duration = Duration::from_millis(200);

/// End indices of the slices of launches: each slice takes at most `budget`, unless it is a single launch.
pub(super) fn cut(times: &[Duration], budget: Duration) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut taken = Duration::ZERO;
    for (launch, &time) in times.iter().enumerate() {
        if launch > 0 && taken + time > budget {
            ends.push(launch);
            taken = Duration::ZERO;
        }
        taken += time;
    }
    ends.push(times.len());
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_ms(times: &[u64], budget: u64) -> Vec<usize> {
        let times: Vec<_> = times.iter().map(|&ms| Duration::from_millis(ms)).collect();
        cut(&times, Duration::from_millis(budget))
    }

    #[test]
    fn slices_keep_the_budget() {
        assert_eq!(cut_ms(&[1, 2, 3, 4], 100), [4]);
        assert_eq!(cut_ms(&[1, 2, 3, 4], 3), [2, 3, 4]);
        assert_eq!(cut_ms(&[5, 5, 5, 5, 5], 10), [2, 4, 5]);
    }

    #[test]
    fn a_launch_over_the_budget_is_alone() {
        assert_eq!(cut_ms(&[1, 50, 1, 1], 10), [1, 2, 4]);
        assert_eq!(cut_ms(&[50, 1], 10), [1, 2]);
        assert_eq!(cut_ms(&[], 10), [0]);
    }
}
