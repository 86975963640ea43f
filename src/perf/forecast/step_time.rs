//! The time of a step, predicted from its recordings.

use super::timeline::replay;
use super::traffic::{TrafficKind, replays};
use super::work;
use crate::train::recordings::Recordings;

/// The speeds of the machine that the ranks of a run use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// Floating-point operations per second that a rank's device reaches on the products of training.
    pub flops: f64,
    /// Bytes per second that a rank can send while it receives as many.
    pub link_bytes: f64,
    /// Bytes per second between device and host.
    pub staging_bytes: f64,
    /// Seconds of an exchange of no bytes between two ranks.
    pub latency: f64,
}

/// The time of a step, in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Time of launches.
    pub compute: f64,
    /// Time of waiting for exchanges of each kind, in the order in which they occur.
    pub waits: Vec<(TrafficKind, f64)>,
    /// Time of waiting for other stages at the start and at the end of a step.
    pub bubble: f64,
    /// Time of exchanges, whether or not they overlap with launches.
    pub exchanging: f64,
}

/// Seconds of each further message of an exchange, as in MPI libraries.
const MESSAGE: f64 = 1e-6;

impl Machine {
    /// Seconds of an exchange in `rounds` of messages with each of `others`, in which this rank sends `bytes`.
    pub(super) fn exchange_seconds(&self, bytes: u64, rounds: u64, others: u64) -> f64 {
        let messages = others.saturating_sub(1) as f64 * MESSAGE;
        rounds as f64 * (self.latency + messages) + bytes as f64 / self.link_bytes
    }
}

impl StepTime {
    /// A step of `recordings` with `accumulation` micro-batches; `flops`: operations per token.
    pub(super) fn new(recordings: &Recordings, flops: f64, accumulation: u64, machine: &Machine) -> Self {
        let rank = recordings.ownership.ranks.rank;
        let tokens = f64::from(recordings.tensors.batch.tokens.cols);
        let seconds = flops * tokens / machine.flops;
        let mut shares = work::shares(recordings).into_iter();
        let mut step = Self::default();
        for (recording, times) in replays(recordings, accumulation) {
            // Launches chunk by chunk; then recordings that are replayed once per step, whose launches count for
            // nothing.
            let launches: Vec<f64> =
                shares.next().unwrap_or_default().iter().map(|share| share * seconds).collect();
            let time = |is_last| replay(recording, &launches, rank, is_last, machine);
            step.add(&time(true), 1.0);
            if times > 1 {
                step.add(&time(false), (times - 1) as f64);
            }
        }
        step
    }

    /// Seconds of a step.
    pub fn seconds(&self) -> f64 {
        self.compute + self.bubble + self.waiting()
    }

    /// Seconds in which the device waits for exchanges.
    pub fn waiting(&self) -> f64 {
        self.waits.iter().map(|(_, seconds)| seconds).sum()
    }

    fn add(&mut self, time: &Self, times: f64) {
        self.compute += times * time.compute;
        self.exchanging += times * time.exchanging;
        time.waits.iter().for_each(|(kind, seconds)| self.add_wait(*kind, times * seconds));
    }

    pub(super) fn add_wait(&mut self, kind: TrafficKind, seconds: f64) {
        match self.waits.iter_mut().find(|(of, _)| *of == kind) {
            Some((_, sum)) => *sum += seconds,
            None => self.waits.push((kind, seconds)),
        }
    }
}
