//! Splits programs into submissions below a time limit.
//!
//! A GPU that drives a display is reset by its watchdog when one submission occupies it for about two seconds. Kernel
//! times depend on the adapter, so the first replay measures them: each launch is submitted alone and waited for. Later
//! replays are split by those times and wait for nothing.
//!
//! The first replay finds the device at its idle clocks, and its times include the round trip of each launch to the
//! device. When the device has worked for a while, [`Slices::measure_again`] has the next replay timed by when its
//! submissions complete, which the polling thread sees anyway, so nothing is waited for. The times of the launches in a
//! submission are scaled so that their sum is the submission's time, and the program is cut once more.
//!
//! A submission is limited to 0.2 s; the trainer asks for the second measurement after 20 steps.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Longest submission on a GPU: a tenth of the watchdog's limit, as a margin for lower clocks and launches that take
/// longer than measured.
pub(super) const SUBMISSION_TIME: Duration = Duration::from_millis(200);

/// Where a program is cut.
#[derive(Default)]
pub(super) struct Slices(Mutex<State>);

#[derive(Default)]
struct State {
    budget: Duration,
    /// How long each launch takes; empty before the first replay.
    times: Vec<Duration>,
    /// The end of each submission, as launch indices.
    ends: Arc<[usize]>,
    /// How often the program was cut.
    cuts: usize,
    /// The first launch that is still to be timed.
    untimed: usize,
    /// Number of launches whose times have not arrived.
    awaited: usize,
}

/// The launches of a program in a submission that is timed.
pub(super) struct Timed {
    slices: Arc<Slices>,
    launches: Range<usize>,
    /// The time they should take by the times measured so far.
    expected: Duration,
}

impl Slices {
    /// The end of each submission; `None` before the first replay.
    pub fn ends(&self) -> Option<Arc<[usize]>> {
        let state = self.state();
        (state.cuts > 0).then(|| state.ends.clone())
    }

    /// How often the program was cut.
    pub fn cuts(&self) -> usize {
        self.state().cuts
    }

    /// Adds the `times` of the launches that follow those measured so far. Once all of the `all` launches have times,
    /// cuts the program into submissions of at most `budget`.
    pub fn start(&self, times: Vec<Duration>, all: usize, budget: Duration) {
        let mut state = self.state();
        if state.cuts == 0 {
            state.times.extend(times);
            (state.untimed, state.budget) = (state.times.len(), budget);
            if state.times.len() == all {
                state.cut();
            }
        }
    }

    /// Has the next replay timed, and the program cut once more by the result.
    pub fn measure_again(&self) {
        let mut state = self.state();
        if state.awaited == 0 {
            (state.untimed, state.awaited) = (0, state.times.len());
        }
    }

    /// A record of `launches`, which are about to be submitted, if they are to be timed.
    pub fn timed(self: &Arc<Self>, launches: Range<usize>) -> Option<Timed> {
        let mut state = self.state();
        if state.awaited == 0 || launches.start != state.untimed {
            return None; // they belong to a replay after the timed one
        }
        state.untimed = launches.end;
        let expected = state.times[launches.clone()].iter().sum();
        Some(Timed { slices: self.clone(), launches, expected })
    }

    /// Scales the times of `launches`; when all times have arrived, cuts the program by them.
    fn scale(&self, launches: Range<usize>, factor: f64) {
        let mut state = self.state();
        state.awaited -= launches.len();
        state.times[launches].iter_mut().for_each(|time| *time = time.mul_f64(factor));
        if state.awaited == 0 {
            state.cut();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn cut(&mut self) {
        self.ends = cut(&self.times, self.budget).into();
        self.cuts += 1;
    }
}

impl Timed {
    /// Notes that one submission with the launches of `all` took `time`.
    pub fn note(all: Vec<Self>, time: Duration) {
        let expected: Duration = all.iter().map(|timed| timed.expected).sum();
        let factor = time.as_secs_f64() / expected.as_secs_f64().max(f64::MIN_POSITIVE);
        all.into_iter().for_each(|Self { slices, launches, .. }| slices.scale(launches, factor));
    }
}

/// End indices of the slices of launches: each slice takes at most `budget`, unless it is a single launch.
fn cut(times: &[Duration], budget: Duration) -> Vec<usize> {
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

    fn ms(times: &[u64]) -> Vec<Duration> {
        times.iter().map(|&ms| Duration::from_millis(ms)).collect()
    }

    /// All times fell, one of them by less than the others.
    #[test]
    fn a_program_is_cut_once_more_by_what_its_submissions_took() {
        let slices = Arc::new(Slices::default());
        assert_eq!(slices.ends(), None);
        slices.start(ms(&[60, 60, 60, 60, 120]), 5, Duration::from_millis(120));
        assert_eq!(slices.ends().as_deref(), Some(&[2, 4, 5][..]));
        assert!(slices.timed(0..2).is_none(), "nothing is timed unless it is asked for");
        slices.measure_again();
        let [first, second] = [0..2, 2..4].map(|launches| slices.timed(launches).expect("timed"));
        assert!(slices.timed(0..2).is_none(), "the next replay may start before the times of this one come");
        let third = slices.timed(4..5).expect("timed");
        Timed::note(vec![first], Duration::from_millis(30));
        Timed::note(vec![second], Duration::from_millis(30));
        assert_eq!((slices.cuts(), slices.ends().as_deref()), (1, Some(&[2, 4, 5][..])));
        Timed::note(vec![third], Duration::from_millis(108));
        assert_eq!(slices.0.lock().expect("times").times, ms(&[15, 15, 15, 15, 108]));
        assert_eq!((slices.cuts(), slices.ends().as_deref()), (2, Some(&[4, 5][..])));
        assert!(slices.timed(0..4).is_none(), "once is enough");
    }

    /// Two programs that share a submission are scaled alike.
    #[test]
    fn programs_in_one_submission_share_its_time() {
        let programs = [[10, 30], [20, 60]].map(|times| {
            let slices = Arc::new(Slices::default());
            slices.start(ms(&times), times.len(), Duration::from_millis(30));
            slices.measure_again();
            slices
        });
        let timed = programs.iter().map(|slices| slices.timed(0..2).expect("timed")).collect();
        Timed::note(timed, Duration::from_millis(60));
        let times = programs.map(|slices| slices.0.lock().expect("times").times.clone());
        assert_eq!(times, [ms(&[5, 15]), ms(&[10, 30])]);
    }

    /// A device that became slower gets shorter submissions.
    #[test]
    fn a_slower_device_is_cut_more_often() {
        let slices = Arc::new(Slices::default());
        slices.start(ms(&[10, 10, 10]), 3, Duration::from_millis(40));
        assert_eq!(slices.ends().as_deref(), Some(&[3][..]));
        slices.measure_again();
        Timed::note(vec![slices.timed(0..3).expect("timed")], Duration::from_millis(90));
        assert_eq!(slices.ends().as_deref(), Some(&[1, 2, 3][..]));
    }
}
