//! Exchange points: places between the dispatches of a recording where ranks exchange the contents of buffers.
//!
//! A recording says what is exchanged, how and with whom; the device cuts its replay there. Other dispatches run
//! between the place where an exchange starts and the first dispatch that needs its result.
//!
//! Like dispatches, exchanges are plain data: they are in the golden text of a recording, in its memory plan and in
//! forecasts, and writing them needs no transport. A group of one rank records none, so a run of one rank replays the
//! same dispatches as without exchanges.
//!
//! `Exchange::resolve` finds where a result is needed: at the first later dispatch that uses the buffers it is written
//! to. So an op that is recorded between an exchange and the reader of its result overlaps with the exchange. Sums of
//! gradients start directly after the last dispatch that adds to them, which is also found in the recording
//! (`Recorder::exchange_once_complete`).
//!
//! | collective | what it exchanges |
//! |---|---|
//! | `AllReduce` | sums of gradients; of losses, tallies and norms; of the parts of a divided product; the largest attention scores |
//! | `ReduceScatter` | sums of gradients, and of such parts where ranks share tokens, of which each keeps its own |
//! | `AllGather` | what each rank has updated; partial sums of the norm; offsets of experts' rows; rows of shared tokens |
//! | `AllToAll` | directions of Muon on their way to the rank that orthogonalises a matrix, and back |
//! | `Rows` | rows on their way to the ranks of their experts, and back: as many as the devices have counted |
//! | `Send`, `Receive` | rows of the residual stream and their gradients, between stages of a pipeline |

use super::recording::Dispatch;
use super::span::Span;
use super::tensor::BufferId;
use crate::element::Element;
use crate::ranks::Group;
use crate::ranks::collectives::{all_reduce_scratch, all_reduce_sent};
use std::fmt;
use std::ops::Range;

/// One exchange among the ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Path of the exchanged tensors: `gradients.0.3`.
    pub path: String,
    /// The spans that are exchanged, and how.
    pub collective: Collective,
    /// The ranks that take part. All of them have this exchange at the same place.
    pub group: Group,
    /// Whether only the last micro-batch of a step includes it.
    pub once_per_step: bool,
    /// The exchange starts before the dispatch with this index.
    pub at: usize,
    /// The result has arrived before the dispatch with this index; the number of dispatches if none needs it.
    pub needed: usize,
    /// The last earlier exchange, by its index, that must have ended before this one starts.
    pub after: Option<usize>,
}

/// How ranks exchange spans of their buffers. Sums are added in the order of the ranks, so every rank has the same bits
/// in every run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collective {
    /// The sum of each span over the ranks, or the maximum of each element.
    AllReduce {
        /// The spans that are added.
        addends: Vec<Span>,
        /// Receives the sums, one span for each addend; they may be the addends themselves.
        sums: Vec<Span>,
        /// Whether the maximum is taken instead of the sum; elements are then u32.
        takes_largest: bool,
    },
    /// `own` becomes this rank's part of the sum of `whole` over the ranks.
    ReduceScatter {
        /// The addends of all parts.
        whole: Span,
        /// The sum of this rank's part; it may be that range of `whole`.
        own: Span,
        /// The part of each rank in `whole`, in bytes.
        parts: Vec<Range<u64>>,
    },
    /// `whole` receives the parts of all ranks.
    AllGather {
        /// This rank's part; it may be that range of `whole`.
        own: Span,
        /// Receives all parts.
        whole: Span,
        /// The part of each rank in `whole`, in bytes.
        parts: Vec<Range<u64>>,
    },
    /// Each rank sends spans to each rank, and receives as many bytes as the other one sends to it.
    AllToAll {
        /// The spans for each rank of the group, this one included; there may be none.
        sent: Vec<Vec<Span>>,
        /// The spans that each rank's bytes are written to.
        received: Vec<Vec<Span>>,
    },
    /// Rows sorted by expert go to the ranks that hold their experts, or return from there. The ranks hold equally many
    /// experts each, in order; rows for one expert are in the order of the ranks that they come from.
    Rows {
        /// The offsets of all ranks, row by row: u32, the first row of each expert, and the end. The ranks read here
        /// how many rows move.
        offsets: Span,
        /// Number of experts.
        experts: u32,
        /// The rows.
        rows: Span,
        /// Bytes of a row.
        row_bytes: u64,
        /// Receives the rows that arrive, however many there are.
        moved: Span,
        /// Whether rows go to their experts.
        to_experts: bool,
    },
    /// A span goes to one rank, which receives it into a span of the same length.
    Send {
        /// The span that is sent.
        sent: Span,
        /// To this rank.
        to: usize,
    },
    /// A span comes from one rank.
    Receive {
        /// Receives it.
        received: Span,
        /// From this rank.
        from: usize,
    },
}

/// Memory that exchanges need on the host, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// For bytes that come from the device.
    pub down: u64,
    /// For bytes that go back to the device.
    pub up: u64,
    /// For bytes that other ranks send, before they are added or sorted, on the rank that receives most.
    pub received: u64,
}

impl Room {
    /// Room for either of two exchanges that run one after the other.
    pub fn or(self, other: Self) -> Self {
        Self {
            down: self.down.max(other.down),
            up: self.up.max(other.up),
            received: self.received.max(other.received),
        }
    }
}

impl Collective {
    /// The sum of each of `spans` over the ranks, in place.
    pub fn sum(spans: Vec<Span>) -> Self {
        Self::sum_into(spans.clone(), spans)
    }

    /// The sum of each of `addends` over the ranks, in `sums`.
    pub fn sum_into(addends: Vec<Span>, sums: Vec<Span>) -> Self {
        Self::AllReduce { addends, sums, takes_largest: false }
    }

    /// The maximum of each u32 of `span` over the ranks, in place.
    #[track_caller]
    pub fn largest(span: Span) -> Self {
        assert!(span.element == Element::U32, "the largest is that of u32");
        Self::AllReduce { addends: vec![span], sums: vec![span], takes_largest: true }
    }

    /// The spans that are read when the exchange starts.
    pub fn sources(&self) -> Vec<Span> {
        match self {
            Self::AllReduce { addends, .. } => addends.clone(),
            Self::ReduceScatter { whole: source, .. } | Self::AllGather { own: source, .. } => vec![*source],
            Self::AllToAll { sent, .. } => sent.concat(),
            Self::Rows { offsets, rows, .. } => vec![*offsets, *rows],
            Self::Send { sent, .. } => vec![*sent],
            Self::Receive { .. } => Vec::new(),
        }
    }

    /// The spans that are written when the exchange ends.
    pub fn results(&self) -> Vec<Span> {
        match self {
            Self::AllReduce { sums, .. } => sums.clone(),
            Self::AllToAll { received, .. } => received.concat(),
            Self::ReduceScatter { own: result, .. }
            | Self::AllGather { whole: result, .. }
            | Self::Rows { moved: result, .. }
            | Self::Receive { received: result, .. } => vec![*result],
            Self::Send { .. } => Vec::new(),
        }
    }

    /// The addends of an all-reduce as they lie one after the other on the host: runs of bytes with elements of one
    /// type. Each run is one all-reduce.
    pub fn runs(&self) -> Vec<(Range<u64>, Element)> {
        let Self::AllReduce { addends, .. } = self else { return Vec::new() };
        let mut end = 0;
        let mut runs: Vec<(Range<u64>, Element)> = Vec::new();
        for span in addends {
            let start = end;
            end += span.bytes;
            match runs.last_mut() {
                Some((run, element)) if *element == span.element => run.end = end,
                _ => runs.push((start..end, span.element)),
            }
        }
        runs
    }

    /// All spans that it reads or writes.
    pub(super) fn spans_mut(&mut self) -> Vec<&mut Span> {
        match self {
            Self::AllReduce { addends, sums, .. } => addends.iter_mut().chain(sums).collect(),
            Self::ReduceScatter { whole, own, .. } | Self::AllGather { own, whole, .. } => vec![own, whole],
            Self::AllToAll { sent, received } => sent.iter_mut().chain(received).flatten().collect(),
            Self::Rows { offsets, rows, moved, .. } => vec![offsets, rows, moved],
            Self::Send { sent: span, .. } | Self::Receive { received: span, .. } => vec![span],
        }
    }

    /// Whether the exchange connects stages of a pipeline, whose schedule says when it takes place.
    pub fn is_between_stages(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Receive { .. })
    }

    /// The name of the exchange in listings.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AllReduce { .. } => "all_reduce",
            Self::ReduceScatter { .. } => "reduce_scatter",
            Self::AllGather { .. } => "all_gather",
            Self::AllToAll { .. } => "all_to_all",
            Self::Rows { to_experts: true, .. } => "rows_to_experts",
            Self::Rows { to_experts: false, .. } => "rows_from_experts",
            Self::Send { .. } => "send",
            Self::Receive { .. } => "receive",
        }
    }
}

impl Exchange {
    /// Bytes that a rank of the group sends on average: an all-reduce is a reduce-scatter and an all-gather.
    pub fn sent_bytes(&self) -> u64 {
        let bytes = |spans: &[Span]| spans.iter().map(|span| span.bytes).sum::<u64>();
        let size = self.group.ranks.len() as u64;
        let share = |bytes: u64| bytes * (size - 1) / size;
        match &self.collective {
            Collective::AllReduce { addends, .. } => 2 * share(bytes(addends)),
            Collective::ReduceScatter { whole, .. } | Collective::AllGather { whole, .. } => {
                share(whole.bytes)
            }
            Collective::AllToAll { sent, .. } => share(bytes(&sent.concat())),
            // The rows of this rank's tokens, if all experts have equally many.
            Collective::Rows { rows, to_experts: true, .. } => share(rows.bytes),
            Collective::Rows { moved, to_experts: false, .. } => share(moved.bytes),
            Collective::Send { sent, .. } => sent.bytes,
            Collective::Receive { .. } => 0,
        }
    }

    /// Bytes that the member at `place` of the group sends, and the number of messages that it exchanges with each
    /// other member. Exact except for the rows of experts, for which all experts are assumed to be chosen equally
    /// often.
    pub fn sent_by(&self, place: usize) -> (u64, u64) {
        let size = self.group.ranks.len();
        let length = |part: &Range<u64>| part.end - part.start;
        match &self.collective {
            Collective::AllReduce { .. } => {
                let runs = self.collective.runs().into_iter();
                let sent = runs.map(|(run, _)| all_reduce_sent(length(&run) as usize, size, place));
                sent.fold((0, 0), |sum, run| (sum.0 + run.0, sum.1 + run.1))
            }
            Collective::ReduceScatter { parts, .. } => {
                (parts.iter().map(length).sum::<u64>() - length(&parts[place]), 1)
            }
            Collective::AllGather { parts, .. } => ((size as u64 - 1) * length(&parts[place]), 1),
            Collective::AllToAll { sent, .. } => {
                let bytes = |spans: &Vec<Span>| spans.iter().map(|span| span.bytes).sum::<u64>();
                (sent.iter().map(bytes).sum::<u64>() - bytes(&sent[place]), 1)
            }
            Collective::Rows { .. } | Collective::Send { .. } => (self.sent_bytes(), 1),
            Collective::Receive { .. } => (0, 0),
        }
    }

    /// Memory that it needs on the host, on the way from the device to other ranks and back.
    pub fn room(&self) -> Room {
        let bytes = |spans: Vec<Span>| spans.iter().map(|span| span.bytes).sum();
        let size = self.group.ranks.len();
        let length = |part: &Range<u64>| part.end - part.start;
        let received = match &self.collective {
            Collective::AllReduce { .. } => {
                let runs = self.collective.runs().into_iter();
                // The first member's part is the longest.
                runs.map(|(run, _)| all_reduce_scratch(length(&run) as usize, size, 0) as u64).max()
            }
            Collective::ReduceScatter { parts, .. } => {
                parts.iter().map(|part| (size as u64 - 1) * length(part)).max()
            }
            Collective::Rows { moved: arriving, to_experts: true, .. }
            | Collective::Rows { rows: arriving, to_experts: false, .. } => Some(arriving.bytes),
            Collective::AllGather { .. }
            | Collective::AllToAll { .. }
            | Collective::Send { .. }
            | Collective::Receive { .. } => None,
        };
        let (down, up) = (bytes(self.collective.sources()), bytes(self.collective.results()));
        Room { down, up, received: received.unwrap_or(0) }
    }

    /// Whether it belongs to the second half of a recording that is cut before dispatch `cut`.
    pub fn is_after(&self, cut: usize) -> bool {
        self.at > cut || (self.at == cut && !matches!(self.collective, Collective::Send { .. }))
    }

    /// The buffers that it reads or writes.
    pub fn buffers(&self) -> impl Iterator<Item = BufferId> + '_ {
        let Self { collective, .. } = self;
        collective.sources().into_iter().chain(collective.results()).map(|span| span.buffer)
    }

    /// Sets when the result is needed, and after which exchange this one starts; `earlier` are the exchanges recorded
    /// before it.
    pub(super) fn resolve(&mut self, dispatches: &[Dispatch], earlier: &[Self]) {
        let results = self.collective.results();
        let touches = |dispatch: &Dispatch| {
            dispatch.spans().any(|span| results.iter().any(|result| result.overlaps(&span)))
        };
        let following = dispatches[self.at..].iter().position(touches);
        self.needed = following.map_or(dispatches.len(), |count| self.at + count);
        let own: Vec<Span> = self.collective.sources().into_iter().chain(results).collect();
        let meets = |other: &Self| {
            other.collective.results().iter().any(|result| own.iter().any(|span| span.overlaps(result)))
        };
        self.after = earlier.iter().rposition(meets);
    }
}

impl fmt::Display for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, bytes, ranks) = (self.collective.name(), self.sent_bytes(), &self.group.ranks);
        write!(f, "{}: {name} of {bytes} bytes among {ranks:?}", self.path)
    }
}
