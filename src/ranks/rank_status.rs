//! What each rank reports to the others after a step: which results have arrived, and whether the run must end or save.
//!
//! Results of a step reach the host of each rank at a different moment, and a signal reaches one rank only. Ranks that
//! acted on them at once would leave the others waiting. So ranks exchange their status after each step: every rank
//! reports to the first one which step has arrived, whether it was interrupted and whether something failed, and is
//! told the combined status of all. Steps are judged and reported once they have arrived on all ranks. The combined
//! status is awaited after the next step. It has arrived by then, because exchanges are made in order, so this costs
//! nothing but its messages.

use crate::error::Result;
use crate::ranks::collectives::broadcast;
use crate::ranks::{Group, Pending, Ranks, Transport, gather_at_first};
use bytemuck::{Pod, Zeroable};

/// Number of steps whose times a report contains: more than arrive between two reports.
const LAPS: usize = 10;

/// The report of a rank, or the combined status of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct RankStatus {
    /// The last step whose results have arrived; for all ranks, the last one that has arrived everywhere.
    pub arrived: u64,
    /// A hash of the rank's data; 0 until all were read. For all ranks, the first rank's.
    pub data_hash: u64,
    /// A bit for each [`Flag`]; for all ranks, those that any rank has set.
    flags: u64,
    /// The times of the steps up to `arrived` in milliseconds, the last one first.
    laps: [f32; LAPS],
}

/// Events on a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flag {
    /// The rank was asked to end the run.
    Interrupted,
    /// The rank found a fault in the data; the work done before is good.
    DataFault,
    /// The rank's data are not those of the checkpoint that the run continues; for all ranks also, they are not those
    /// of the first rank.
    OtherData,
    /// A checkpoint is due by the clock, which only the first rank has.
    SaveDue,
}

/// The reports of all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunStatus {
    /// The combined status.
    pub all: RankStatus,
    /// The reports by rank, on the first rank.
    reports: Vec<RankStatus>,
}

/// The exchanges of status of a run.
pub(crate) struct StatusExchange {
    ranks: Ranks,
    /// The exchange after the last step.
    under_way: Option<Pending<RunStatus>>,
}

impl RankStatus {
    /// Sets `flag` if `is_so`.
    pub fn raise_if(&mut self, flag: Flag, is_so: bool) {
        self.flags |= u64::from(is_so) << flag as u32;
    }

    /// Whether `flag` is set.
    pub fn has(&self, flag: Flag) -> bool {
        self.flags >> flag as u32 & 1 == 1
    }

    /// The hash of the data, once it is known.
    pub fn data_hash(&self) -> Option<u64> {
        Some(self.data_hash).filter(|hash| *hash != 0)
    }

    /// Adds the time of the next step to have arrived.
    pub fn add(&mut self, step: u64, step_ms: f64) {
        self.arrived = step;
        self.laps.rotate_right(1);
        self.laps[0] = step_ms as f32;
    }
}

impl RunStatus {
    /// The status of a run of one rank.
    pub fn of_one(report: RankStatus) -> Self {
        Self::of(vec![report])
    }

    fn of(reports: Vec<RankStatus>) -> Self {
        let data_hash = reports.first().map_or(0, |first| first.data_hash);
        let is_unlike = |report: &RankStatus| ![0, data_hash].contains(&report.data_hash);
        let mut all = RankStatus {
            arrived: reports.iter().map(|report| report.arrived).min().unwrap_or(0),
            data_hash,
            flags: reports.iter().fold(0, |flags, report| flags | report.flags),
            ..RankStatus::default()
        };
        all.raise_if(Flag::OtherData, data_hash != 0 && reports.iter().any(is_unlike));
        Self { all, reports }
    }

    /// The time of `step` on each rank in milliseconds; NaN for a rank that no longer knows.
    pub fn step_ms(&self, step: u64) -> Vec<f32> {
        let lap = |report: &RankStatus| {
            let ago = report.arrived.checked_sub(step).and_then(|ago| usize::try_from(ago).ok());
            ago.and_then(|ago| report.laps.get(ago)).copied().unwrap_or(f32::NAN)
        };
        self.reports.iter().map(lap).collect()
    }
}

impl StatusExchange {
    pub fn new(ranks: Ranks) -> Self {
        Self { ranks, under_way: None }
    }

    /// Exchanges status after a step, and returns the result of the exchange after the previous step. That result has
    /// arrived by then, since exchanges are made in order and this step's gradients came later. A single rank gets its
    /// own status at once.
    ///
    /// # Errors
    /// A rank that has ended.
    pub async fn after_step(&mut self, own: RankStatus) -> Result<RunStatus> {
        if self.ranks.size() == 1 {
            return Ok(RunStatus::of_one(own));
        }
        let last = self.under_way.replace(self.exchange(own));
        match last {
            Some(last) => last.await,
            None => Ok(RunStatus::default()),
        }
    }

    /// Exchanges status, and waits for the result.
    ///
    /// # Errors
    /// A rank that has ended.
    pub async fn now(&mut self, own: RankStatus) -> Result<RunStatus> {
        if self.ranks.size() == 1 {
            return Ok(RunStatus::of_one(own));
        }
        self.exchange(own).await
    }

    /// The result of the exchange after the last step, unless it has been returned.
    ///
    /// # Errors
    /// A rank that has ended.
    pub async fn last(&mut self) -> Result<Option<RunStatus>> {
        match self.under_way.take() {
            Some(last) => last.await.map(Some),
            None => Ok(None),
        }
    }

    fn exchange(&self, own: RankStatus) -> Pending<RunStatus> {
        self.ranks.run(move |transport| combine(transport, &own))
    }
}

fn combine(transport: &mut dyn Transport, own: &RankStatus) -> Result<RunStatus> {
    let all = Group::all(transport.size());
    let reports = gather_at_first(transport, bytemuck::bytes_of(own))?;
    let mut status = RunStatus::of(bytemuck::pod_collect_to_vec(&reports));
    broadcast(transport, &all, 0, bytemuck::bytes_of_mut(&mut status.all))?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::{Flag, RankStatus, RunStatus};

    #[test]
    fn what_follows_holds_for_all() {
        let mut slow = RankStatus::default();
        slow.add(3, 30.0);
        let mut fast = slow;
        fast.add(4, 40.0);
        fast.raise_if(Flag::Interrupted, true);
        fast.raise_if(Flag::DataFault, false);
        slow.raise_if(Flag::SaveDue, true);
        let status = RunStatus::of(vec![fast, slow]);
        assert_eq!(status.all.arrived, 3);
        let flags = [Flag::Interrupted, Flag::DataFault, Flag::OtherData, Flag::SaveDue];
        assert_eq!(flags.map(|flag| status.all.has(flag)), [true, false, false, true]);
        assert_eq!(status.step_ms(3), [30.0, 30.0]);
        let [fast, slow] = status.step_ms(4)[..] else { panic!("two ranks") };
        assert!(fast == 40.0 && slow.is_nan(), "{fast} {slow}");
    }

    #[test]
    fn data_are_compared_with_those_of_the_first_rank_once_both_are_known() {
        let of = |hashes: &[u64]| {
            let reports = hashes.iter().map(|hash| RankStatus { data_hash: *hash, ..RankStatus::default() });
            let status = RunStatus::of(reports.collect());
            (status.all.data_hash(), status.all.has(Flag::OtherData))
        };
        assert_eq!(of(&[0, 7, 8]), (None, false));
        assert_eq!(of(&[7, 0, 7]), (Some(7), false));
        assert_eq!(of(&[7, 0, 8]), (Some(7), true));
        let mut changed = RankStatus::default();
        changed.raise_if(Flag::OtherData, true);
        assert!(RunStatus::of(vec![RankStatus::default(), changed]).all.has(Flag::OtherData));
    }
}
