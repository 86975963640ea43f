//! The bytes that a rank sends in a step, by kind.

use crate::record::{Collective, Exchange, Recording};
use crate::train::recordings::Recordings;
use std::fmt;

/// The kinds of data that ranks exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficKind {
    /// Sums of gradients.
    Gradients,
    /// Weights, from the ranks that update them or keep them.
    Weights,
    /// Rows of tokens on their way to experts, and gradients of experts' results on their way back to the experts.
    RowsToExperts,
    /// Rows on their way back from experts, and their gradients.
    RowsFromExperts,
    /// Gradients and weights of the copies of hot experts.
    HotCopies,
    /// Counts of rows, partial sums of the norm, losses and tallies.
    Counts,
    /// Matrices that Muon orthogonalises, between ranks that share them.
    Directions,
    /// Sums and rows of activations between the ranks that share matrices.
    PartsOfMatrices,
    /// Activations and their gradients between stages.
    Stages,
}

/// The traffic of one kind that a rank sends in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// The kind of data.
    pub kind: TrafficKind,
    /// Bytes that the rank sends. It receives about as many.
    pub bytes: u64,
    /// Number of messages exchanged with each other member of a group.
    pub exchanges: u64,
}

impl TrafficKind {
    /// The kind of an exchange.
    pub(super) fn of(exchange: &Exchange) -> Self {
        let is_part = |name| exchange.path.split('.').any(|part| part == name);
        match exchange.collective {
            _ if is_part("hot_copies") => Self::HotCopies,
            _ if is_part("repeated") => Self::Gradients,
            _ if ["enter", "leave", "own_rows", "all_rows", "slice", "parts"].into_iter().any(is_part) => {
                Self::PartsOfMatrices
            }
            Collective::Rows { to_experts: true, .. } => Self::RowsToExperts,
            Collective::Rows { to_experts: false, .. } => Self::RowsFromExperts,
            Collective::AllToAll { .. } => Self::Directions,
            Collective::Send { .. } | Collective::Receive { .. } => Self::Stages,
            Collective::ReduceScatter { .. } => Self::Gradients,
            Collective::AllReduce { .. } if is_part("gradients") => Self::Gradients,
            Collective::AllGather { .. } if is_part("weights") || is_part("copies") => Self::Weights,
            Collective::AllReduce { .. } | Collective::AllGather { .. } => Self::Counts,
        }
    }
}

impl fmt::Display for TrafficKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Gradients => "sums of gradients",
            Self::Weights => "gathered weights",
            Self::RowsToExperts => "rows to experts",
            Self::RowsFromExperts => "rows from experts",
            Self::HotCopies => "copies of hot experts",
            Self::Directions => "directions of Muon",
            Self::Counts => "counts, losses and the norm",
            Self::PartsOfMatrices => "tensor parallel activations",
            Self::Stages => "rows between stages",
        })
    }
}

/// The traffic of a rank in a step of `accumulation` micro-batches by `recordings`, by kind; kinds without traffic are
/// left out. Exact except for the rows of experts.
pub fn traffic(recordings: &Recordings, accumulation: u64) -> Vec<Traffic> {
    let rank = recordings.ownership.ranks.rank;
    let mut kinds: Vec<Traffic> = Vec::new();
    for (recording, replays) in replays(recordings, accumulation) {
        for exchange in &recording.exchanges {
            let Some(place) = exchange.group.place(rank) else { continue };
            let times = if exchange.once_per_step { 1 } else { replays };
            let (bytes, exchanges) = exchange.sent_by(place);
            add(&mut kinds, TrafficKind::of(exchange), times * bytes, times * exchanges);
        }
    }
    kinds.sort_by_key(|one| one.kind);
    kinds
}

/// Bytes of rows that a rank would send in a step of `accumulation` micro-batches in addition to [`traffic`] if there
/// were no copies of hot experts: the share of these rows that is for experts of other ranks.
pub fn kept_bytes(recordings: &Recordings, accumulation: u64) -> u64 {
    let rows = recordings.hot_copies.as_ref().map_or(0, |copies| u64::from(copies.rows()));
    let rank = recordings.ownership.ranks.rank;
    let mut sum = 0;
    for (recording, replays) in replays(recordings, accumulation) {
        for Exchange { collective, group, .. } in &recording.exchanges {
            if let (Collective::Rows { row_bytes, .. }, true) = (collective, group.place(rank).is_some()) {
                let size = group.size() as u64;
                sum += replays * (rows * row_bytes * (size - 1) / size);
            }
        }
    }
    sum
}

/// The recordings that a step replays, each with its number of replays; of monitors those that every step replays.
pub(super) fn replays(recordings: &Recordings, accumulation: u64) -> Vec<(&Recording, u64)> {
    let copy = recordings.copy.iter().map(|copy| (copy, 1));
    let micro_steps = recordings.chunks().map(|recording| (recording, accumulation));
    let monitors = recordings.monitors.of_every_step().map(|recording| (recording, 1));
    micro_steps.chain([(&recordings.update, 1)]).chain(copy).chain(monitors).collect()
}

fn add(kinds: &mut Vec<Traffic>, kind: TrafficKind, bytes: u64, exchanges: u64) {
    match kinds.iter_mut().find(|one| one.kind == kind) {
        Some(one) => (one.bytes, one.exchanges) = (one.bytes + bytes, one.exchanges + exchanges),
        None => kinds.push(Traffic { kind, bytes, exchanges }),
    }
}
