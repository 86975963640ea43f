//! Exchange of token rows where experts are spread over ranks.
//!
//! Every rank places the choices of its own tokens in rows sorted by expert, so the rows for the experts of a rank are
//! consecutive. They are sent to that rank, and the results return the same way. The ranks first learn each other's
//! counts; the devices decide how many rows move, and tensors have room for the most that can.
//!
//! The order matters: ranks gather their offsets, exchange rows, and receive them by expert and then by rank, which is
//! the order that the work list needs; the host puts them in this order on the way. Only rows that arrived move. The
//! backward of each exchange is the exchange in the other direction. The shared expert is computed up to its last
//! product while rows return. Routers are on every rank, and their tallies are summed before biases and capacities
//! change.

use super::permute::{PlacementConfig, RowAllocation, Slots};
use crate::element::Element;
use crate::kernels::Kernel;
use crate::ranks::Group;
use crate::record::{Collective, Recorder, Span, Tensor};

crate::params! {
    struct Params {
        ranks: u32,
        stride: u32,
        first: u32,
        experts: u32,
    }
}

/// The ranks over which the experts of a layer are spread, evenly and in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertRanks {
    /// The ranks.
    pub group: Group,
    /// This rank's place in the group.
    pub place: usize,
}

/// The rows that ranks send each other in one layer.
#[derive(Clone, Debug)]
pub struct SpreadRows {
    /// (ranks, E + 1), u32: for each rank, the first row of each expert among its own rows, and the end.
    pub offsets: Tensor,
    /// (1, experts + 1), u32: the first row of each of this rank's experts among the rows that it receives, and the
    /// end.
    pub local_offsets: Tensor,
    /// Most rows that this rank sends.
    pub sent: u32,
    /// Most rows that this rank receives.
    pub received: u32,
    ranks: ExpertRanks,
}

/// The direction in which rows move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the ranks of the tokens to those of their experts.
    ToExperts,
    /// From the ranks of the experts back to those of the tokens.
    FromExperts,
}

impl ExpertRanks {
    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.group.size() as u32
    }

    /// Most rows that a rank receives, if each of the ranks places its choices by `config`.
    pub fn most_rows(&self, config: &PlacementConfig) -> u32 {
        let (ranks, local) = (u64::from(self.size()), u64::from(config.experts / self.size()));
        let of_each = match config.allocation {
            // Every token may choose k of this rank's experts.
            RowAllocation::Dropless { safe_tokens } => {
                let chosen = u64::from(config.tokens) * u64::from(config.chosen).min(local);
                chosen + if safe_tokens { local } else { 0 }
            }
            RowAllocation::Capacity { slots: Slots::Equal(capacity), .. } => local * u64::from(capacity),
            // Hot experts are on every rank.
            RowAllocation::Capacity { slots: Slots::HotAndCold(two), .. } => {
                local.min(u64::from(config.experts - two.hot)) * u64::from(two.cold_capacity)
            }
        };
        u32::try_from(ranks * of_each).unwrap_or(u32::MAX)
    }
}

impl SpreadRows {
    /// Gathers the `offsets` (1, E + 1) of the rows that travel, of all rows placed by `config`
    /// ([`PlacementConfig::spread_rows`]), and computes those for this rank's experts.
    #[track_caller]
    pub fn new(rec: &mut Recorder, config: &PlacementConfig, offsets: Tensor, ranks: &ExpertRanks) -> Self {
        let (size, experts) = (ranks.size(), config.experts);
        assert!(experts.is_multiple_of(size), "{experts} experts cannot be spread evenly over {size} ranks");
        assert!(offsets.cols == experts + 1, "there is an offset for each expert, and the end");
        let all = rec.tensor("offsets", size, experts + 1, Element::U32);
        let row = offsets.bytes();
        let parts = (0..u64::from(size)).map(|rank| rank * row..(rank + 1) * row).collect();
        let collective = Collective::AllGather { own: Span::of(&offsets), whole: Span::of(&all), parts };
        rec.exchange("offsets", collective, &ranks.group);
        let local_offsets = local_offsets(rec, all, ranks.place as u32);
        Self {
            offsets: all,
            local_offsets,
            sent: config.spread_rows(),
            received: ranks.most_rows(config),
            ranks: ranks.clone(),
        }
    }

    /// Moves `rows` (sent, D) to the ranks of their experts, where they arrive in `moved` (received, D), sorted by
    /// expert and then by rank; or moves rows back. Rows past the last row of the last expert are undefined.
    #[track_caller]
    pub fn exchange(&self, rec: &mut Recorder, rows: Tensor, moved: Tensor, direction: Direction) {
        let counts = match direction {
            Direction::ToExperts => (self.sent, self.received),
            Direction::FromExperts => (self.received, self.sent),
        };
        assert!(
            (rows.rows, moved.rows) == counts,
            "rows of {counts:?}, not {} and {}",
            rows.rows,
            moved.rows
        );
        assert!((rows.stride, rows.element) == (moved.stride, moved.element), "rows stay as they are");
        let collective = Collective::Rows {
            rows: Span::of(&rows),
            row_bytes: u64::from(rows.stride) * rows.element.bytes(),
            offsets: Span::of(&self.offsets),
            experts: self.offsets.cols - 1,
            moved: Span::of(&moved),
            to_experts: direction == Direction::ToExperts,
        };
        rec.exchange_early("rows", collective, &self.ranks.group);
    }
}

/// (1, experts + 1), u32: the first row of each expert of rank number `place`, with rows sorted by expert, and their
/// end. `offsets` (ranks, E + 1), u32, describe the rows that each rank sends; experts are spread evenly over the
/// ranks.
#[track_caller]
pub fn local_offsets(rec: &mut Recorder, offsets: Tensor, place: u32) -> Tensor {
    let (ranks, experts) = (offsets.rows, offsets.cols - 1);
    assert!(experts.is_multiple_of(ranks), "{experts} experts cannot be spread evenly over {ranks} ranks");
    assert!(place < ranks, "rank {place} is one of {ranks}");
    let local = experts / ranks;
    let result = rec.tensor("local_offsets", 1, local + 1, Element::U32);
    let params = Params { ranks, stride: offsets.stride, first: local * place, experts: local };
    let bindings = [offsets.bind("offsets", Element::U32), result.bind("local", Element::U32)];
    rec.dispatch(Kernel::new("spread", "local_offsets", Element::F32), &bindings, &params, [1, 1, 1]);
    result
}

impl Direction {
    /// The opposite direction.
    pub fn reversed(self) -> Self {
        match self {
            Self::ToExperts => Self::FromExperts,
            Self::FromExperts => Self::ToExperts,
        }
    }
}
