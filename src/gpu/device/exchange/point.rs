//! Exchange points of prepared programs: which ranges are copied to the host and back, and what the ranks do in between.

use super::rows::RowMap;
use crate::device::launch::BufferTable;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::ranks::collectives::{Reduction, all_gather, all_reduce, all_to_all, reduce_scatter};
use crate::ranks::{Group, Transport};
use crate::record::{Collective, Exchange, Room, Span};
use std::ops::Range;
use std::sync::Arc;

/// An exchange of a program.
pub(in crate::gpu::device) struct ExchangePoint {
    /// It starts before the launch with this index.
    pub at: usize,
    /// Its result is needed before the launch with this index.
    pub needed: usize,
    /// The last earlier point, by its index, that must have ended before this one starts.
    pub after: Option<usize>,
    /// Whether only the last micro-batch of a step has it.
    pub once_per_step: bool,
    /// What is copied to the host, one range after the other.
    pub sources: Vec<DeviceRange>,
    /// What is copied back.
    pub results: Vec<DeviceRange>,
    /// What it takes on the way.
    pub room: Room,
    /// What the ranks do with the bytes.
    pub work: Arc<Work>,
}

/// A range of a buffer on the device.
pub(in crate::gpu::device) struct DeviceRange {
    pub buffer: wgpu::Buffer,
    pub start: u64,
    pub bytes: u64,
}

/// What the ranks of a group do with bytes on the host.
pub(in crate::gpu::device) struct Work {
    group: Group,
    kind: Operation,
}

enum Operation {
    /// Reduces runs of bytes with elements of one type each.
    AllReduce(Vec<(Range<usize>, Reduction)>),
    /// Adds the parts and keeps one's own.
    ReduceScatter(Vec<Range<usize>>, Reduction),
    /// Gathers the parts.
    AllGather(Vec<Range<usize>>),
    /// Sends each rank a part and receives one from each.
    AllToAll { sent: Vec<Range<usize>>, received: Vec<Range<usize>> },
    /// Moves rows; the sources are `offsets_bytes` bytes of offsets, and the rows.
    Rows { offsets_bytes: usize, experts: usize, row_bytes: usize, to_experts: bool },
    /// Sends the sources to a rank.
    Send(usize),
    /// Receives the results from a rank.
    Receive(usize),
}

/// Bytes of an exchange on the host. They are allocated once.
#[derive(Debug, Default)]
pub(in crate::gpu::device) struct HostBytes {
    /// What was copied from the device.
    pub sources: Vec<u8>,
    /// What is copied back.
    pub results: Vec<u8>,
    /// What other ranks sent.
    pub received: Vec<u8>,
}

impl ExchangePoint {
    /// The point of `exchange` in a program with these buffers.
    ///
    /// # Errors
    /// A span without a buffer, or elements that cannot be added.
    pub fn new(exchange: &Exchange, places: &BufferTable<'_>) -> Result<Self> {
        let ranges = |spans: &[Span]| -> Result<Vec<DeviceRange>> {
            let spans = spans.iter().filter(|span| span.bytes > 0);
            spans.map(|span| device_range(span, &exchange.path, places)).collect()
        };
        let Exchange { path, collective, .. } = exchange;
        let work = Work::of(exchange).ok_or_else(|| {
            Error::Device(format!("{path}: {} adds no quantised elements", collective.name()))
        })?;
        Ok(Self {
            at: exchange.at,
            needed: exchange.needed,
            after: exchange.after,
            once_per_step: exchange.once_per_step,
            sources: ranges(&collective.sources())?,
            results: ranges(&collective.results())?,
            room: exchange.room(),
            work: Arc::new(work),
        })
    }
}

/// The other side of an exchange between stages.
pub(in crate::gpu::device) enum Destination {
    To(usize),
    From(usize),
    /// It is among a group.
    None,
}

impl ExchangePoint {
    /// With whom it is, between stages.
    pub fn destination(&self) -> Destination {
        match self.work.kind {
            Operation::Send(to) => Destination::To(to),
            Operation::Receive(from) => Destination::From(from),
            _ => Destination::None,
        }
    }

    /// Whether it is between stages of a pipeline.
    pub fn is_between_stages(&self) -> bool {
        !matches!(self.destination(), Destination::None)
    }

    /// Whether it belongs to the second half of a program that is cut before launch `cut`.
    pub fn is_after(&self, cut: usize) -> bool {
        self.at > cut || (self.at == cut && !matches!(self.destination(), Destination::To(_)))
    }
}

impl HostBytes {
    /// Room for one exchange at a time.
    pub fn new(room: &Room) -> Self {
        let bytes = |bytes: u64| Vec::with_capacity(bytes as usize);
        Self { sources: bytes(room.down), results: bytes(room.up), received: bytes(room.received) }
    }

    /// Makes ready for an exchange that takes `room`.
    pub fn fit(&mut self, room: &Room) {
        self.sources.resize(room.down as usize, 0);
        self.results.resize(room.up as usize, 0);
    }
}

impl Work {
    /// What is done in `exchange`, unless it adds quantised elements.
    fn of(exchange: &Exchange) -> Option<Self> {
        Some(Self { group: exchange.group.clone(), kind: Operation::of(&exchange.collective)? })
    }

    /// Exchanges the bytes with the other ranks of the group; runs on the thread that communicates.
    ///
    /// # Errors
    /// A rank that has ended.
    pub fn run(&self, transport: &mut dyn Transport, bytes: &mut HostBytes) -> Result<()> {
        let HostBytes { sources, results, received } = bytes;
        match &self.kind {
            Operation::AllReduce(runs) => {
                results.copy_from_slice(sources);
                runs.iter().try_for_each(|(run, sum)| {
                    all_reduce(transport, &self.group, &mut results[run.clone()], *sum, received)
                })
            }
            Operation::ReduceScatter(parts, sum) => {
                reduce_scatter(transport, &self.group, sources, parts, received, results, *sum)
            }
            Operation::AllGather(parts) => {
                let Some(own) = self.group.place(transport.rank()) else { return Ok(()) };
                results[parts[own].clone()].copy_from_slice(sources);
                all_gather(transport, &self.group, results, parts)
            }
            Operation::AllToAll { sent, received: parts } => {
                all_to_all(transport, &self.group, sources, sent, results, parts)
            }
            Operation::Send(to) => transport.exchange(&[(*to, sources)], &mut []),
            Operation::Receive(from) => transport.exchange(&[], &mut [(*from, results)]),
            Operation::Rows { offsets_bytes, to_experts, .. } => {
                let Some(map) = self.row_map(transport.rank(), sources) else { return Ok(()) };
                let rows = &sources[*offsets_bytes..];
                match to_experts {
                    true => map.send_out(transport, &self.group, rows, results, received),
                    false => map.send_back(transport, &self.group, rows, results, received),
                }
            }
        }
    }
}

impl Work {
    /// How many of the bytes that were copied from the device count; `start` are the first of them, at least
    /// [`head`](Self::head).
    pub fn used(&self, rank: usize, start: &[u8]) -> Option<usize> {
        let Operation::Rows { offsets_bytes, to_experts, .. } = self.kind else { return None };
        Some(offsets_bytes + self.row_map(rank, start)?.used(to_experts))
    }

    /// Bytes at the start that say how many of the others count; 0 if all do.
    pub fn head(&self) -> usize {
        match self.kind {
            Operation::Rows { offsets_bytes, .. } => offsets_bytes,
            _ => 0,
        }
    }

    fn row_map(&self, rank: usize, sources: &[u8]) -> Option<RowMap> {
        let Operation::Rows { offsets_bytes, experts, row_bytes, .. } = self.kind else { return None };
        let place = self.group.place(rank)?;
        Some(RowMap::read(&sources[..offsets_bytes], experts, self.group.size(), place, row_bytes))
    }
}

impl Operation {
    /// What is done for `collective`, unless it adds quantised elements.
    fn of(collective: &Collective) -> Option<Self> {
        let in_host = |parts: &[Range<u64>]| {
            parts.iter().map(|part| part.start as usize..part.end as usize).collect::<Vec<_>>()
        };
        Some(match collective {
            Collective::AllReduce { takes_largest, .. } => {
                let reduction =
                    if *takes_largest { |_| Some(Reduction::LargestU32) } else { sum_of as fn(_) -> _ };
                let runs = collective
                    .runs()
                    .into_iter()
                    .map(|(run, element)| Some((run.start as usize..run.end as usize, reduction(element)?)));
                Self::AllReduce(runs.collect::<Option<_>>()?)
            }
            Collective::ReduceScatter { whole, parts, .. } => {
                Self::ReduceScatter(in_host(parts), sum_of(whole.element)?)
            }
            Collective::AllGather { parts, .. } => Self::AllGather(in_host(parts)),
            Collective::AllToAll { sent, received } => {
                Self::AllToAll { sent: one_by_one(sent), received: one_by_one(received) }
            }
            Collective::Send { to, .. } => Self::Send(*to),
            Collective::Receive { from, .. } => Self::Receive(*from),
            Collective::Rows { offsets, experts, row_bytes, to_experts, .. } => Self::Rows {
                offsets_bytes: offsets.bytes as usize,
                experts: *experts as usize,
                row_bytes: *row_bytes as usize,
                to_experts: *to_experts,
            },
        })
    }
}

/// Where the spans of each rank lie on the host, one after the other.
fn one_by_one(of_ranks: &[Vec<Span>]) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut range = |spans: &Vec<Span>| {
        let start = end;
        end += spans.iter().map(|span| span.bytes as usize).sum::<usize>();
        start..end
    };
    of_ranks.iter().map(&mut range).collect()
}

fn sum_of(element: Element) -> Option<Reduction> {
    match element {
        Element::F32 => Some(Reduction::SumF32),
        Element::U32 => Some(Reduction::SumU32),
        Element::F16 => Some(Reduction::SumF16),
        Element::Bf16 => Some(Reduction::SumBf16),
        Element::Nf4 | Element::Int8 => None,
    }
}

fn device_range(span: &Span, path: &str, places: &BufferTable<'_>) -> Result<DeviceRange> {
    let nowhere = || Error::Device(format!("{path}: what is exchanged has no buffer"));
    let (buffer, start) = places.place(span.buffer).ok_or_else(nowhere)?;
    Ok(DeviceRange { buffer: buffer.clone(), start: start + span.offset, bytes: span.bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::in_process;
    use crate::record::{BufferId, PersistentId};

    const RANKS: u64 = 8;

    fn span(bytes: u64, element: Element) -> Span {
        Span { buffer: BufferId::Persistent(PersistentId(0)), offset: 0, bytes, element }
    }

    /// Exchanges among eight ranks that take the most room for what they receive.
    fn exchanges() -> Vec<Exchange> {
        let floats = |bytes: u64| span(bytes, Element::F32);
        let sum = |bytes: &[u64]| Collective::sum(bytes.iter().map(|bytes| floats(*bytes)).collect());
        let (row, rows) = (16, 5);
        let part = |index: u64| 64 * index * index..64 * (index + 1) * (index + 1);
        let moved = |to_experts: bool| {
            let [few, many] = [floats(rows * row), floats(RANKS * rows * row)];
            let (rows, moved) = if to_experts { (few, many) } else { (many, few) };
            let offsets = span(RANKS * 4 * (RANKS + 1), Element::U32);
            let experts = RANKS as u32;
            Collective::Rows { offsets, experts, rows, row_bytes: row, moved, to_experts }
        };
        let collectives = [
            sum(&[4 << 10, 12 << 10]), // as much as is exchanged at once
            sum(&[20 << 10]),          // in parts
            Collective::ReduceScatter {
                whole: floats(part(RANKS - 1).end),
                own: floats(64),
                parts: (0..RANKS).map(part).collect(),
            },
            moved(true),
            moved(false),
        ];
        let exchange = |collective| Exchange {
            path: String::new(),
            collective,
            group: Group::all(RANKS as usize),
            once_per_step: false,
            at: 0,
            needed: 0,
            after: None,
        };
        collectives.into_iter().map(exchange).collect()
    }

    /// The offsets with which every rank has five rows for the expert of the first one.
    fn offsets() -> Vec<u8> {
        let row = |_| [0].into_iter().chain([5u32; RANKS as usize]);
        (0..RANKS).flat_map(row).flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn exchanges_allocate_nothing() {
        let exchanges = exchanges();
        let room = exchanges.iter().fold(Room::default(), |room, exchange| room.or(exchange.room()));
        let of_rank = |mut end: in_process::InProcess| {
            let rank = end.rank();
            let mut bytes = HostBytes::new(&room);
            let capacities =
                |bytes: &HostBytes| [&bytes.sources, &bytes.results, &bytes.received].map(Vec::capacity);
            let before = capacities(&bytes);
            for exchange in &exchanges {
                let work = Work::of(exchange).expect("sums of f32");
                bytes.fit(&exchange.room());
                if let Operation::ReduceScatter(parts, _) = &work.kind {
                    bytes.results.resize(parts[rank].len(), 0);
                }
                let offsets = offsets();
                bytes.sources[..work.head()].copy_from_slice(&offsets[..work.head()]);
                work.run(&mut end, &mut bytes).expect("an exchange");
                let name = exchange.collective.name();
                assert_eq!(capacities(&bytes), before, "rank {rank} allocates in {name}");
            }
        };
        std::thread::scope(|scope| {
            for end in in_process::connect(RANKS as usize) {
                scope.spawn(|| of_rank(end));
            }
        });
    }
}
