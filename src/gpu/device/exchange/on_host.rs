//! The part of an exchange on the host: what the ranks do with bytes between their copies from the device and back.

use super::rows::RowMap;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::ranks::collectives::{Reduction, all_gather, all_reduce, all_to_all, reduce_scatter};
use crate::ranks::{Group, Transport};
use crate::record::{Collective, Exchange, Room, Span};
use std::ops::Range;

/// Host memory of an exchange, allocated once.
#[derive(Debug, Default)]
pub(in crate::gpu::device) struct HostBytes {
    /// The bytes copied from the device.
    pub sources: Vec<u8>,
    /// The bytes to copy back.
    pub results: Vec<u8>,
    /// The bytes that other ranks sent.
    pub received: Vec<u8>,
}

impl HostBytes {
    /// Capacity for any exchange of at most `room`.
    pub fn new(room: &Room) -> Self {
        let bytes = |bytes: u64| Vec::with_capacity(bytes as usize);
        Self { sources: bytes(room.down), results: bytes(room.up), received: bytes(room.received) }
    }

    /// Resizes the buffers for an exchange that takes `room`.
    pub fn fit(&mut self, room: &Room) {
        self.sources.resize(room.down as usize, 0);
        self.results.resize(room.up as usize, 0);
    }
}

/// Exchanges the bytes with the other ranks of the group; runs on the communication thread.
///
/// Its lists of ranges are short, and are made anew each time, as those of the collectives are.
///
/// # Errors
/// A rank that has ended.
pub(super) fn carry_out(
    Exchange { group, collective, .. }: &Exchange,
    transport: &mut dyn Transport,
    bytes: &mut HostBytes,
) -> Result<()> {
    let HostBytes { sources, results, received } = bytes;
    let sum_of = |element| sum_of(element).expect("elements that were checked when the program was prepared");
    match collective {
        Collective::AllReduce { takes_largest, .. } => {
            results.copy_from_slice(sources);
            collective.runs().into_iter().try_for_each(|(run, element)| {
                let reduction = if *takes_largest { Reduction::LargestU32 } else { sum_of(element) };
                all_reduce(transport, group, &mut results[in_host(&run)], reduction, received)
            })
        }
        Collective::ReduceScatter { whole, parts, .. } => {
            let (parts, sum) = (all_in_host(parts), sum_of(whole.element));
            reduce_scatter(transport, group, sources, &parts, received, results, sum)
        }
        Collective::AllGather { parts, .. } => {
            let Some(own) = group.place(transport.rank()) else { return Ok(()) };
            let parts = all_in_host(parts);
            results[parts[own].clone()].copy_from_slice(sources);
            all_gather(transport, group, results, &parts)
        }
        Collective::AllToAll { sent, received: parts } => {
            all_to_all(transport, group, sources, &one_by_one(sent), results, &one_by_one(parts))
        }
        Collective::Send { to, .. } => transport.exchange(&[(*to, sources)], &mut []),
        Collective::Receive { from, .. } => transport.exchange(&[], &mut [(*from, results)]),
        Collective::Rows { offsets, to_experts, .. } => {
            let Some(map) = row_map(group, collective, transport.rank(), sources) else { return Ok(()) };
            let rows = &sources[offsets.bytes as usize..];
            match to_experts {
                true => map.send_out(transport, group, rows, results, received),
                false => map.send_back(transport, group, rows, results, received),
            }
        }
    }
}

/// How many of the bytes copied from the device count, or `None` if all do. `start` holds the first of them, at least
/// [`head`] bytes.
pub(super) fn used(
    Exchange { group, collective, .. }: &Exchange,
    rank: usize,
    start: &[u8],
) -> Option<usize> {
    let Collective::Rows { offsets, to_experts, .. } = collective else { return None };
    Some(offsets.bytes as usize + row_map(group, collective, rank, start)?.used(*to_experts))
}

/// Bytes at the start that say how many of the others count; 0 if all do.
pub(super) fn head(collective: &Collective) -> usize {
    match collective {
        Collective::Rows { offsets, .. } => offsets.bytes as usize,
        _ => 0,
    }
}

fn row_map(group: &Group, collective: &Collective, rank: usize, sources: &[u8]) -> Option<RowMap> {
    let Collective::Rows { offsets, experts, row_bytes, .. } = collective else { return None };
    let (offsets, place) = (&sources[..offsets.bytes as usize], group.place(rank)?);
    Some(RowMap::read(offsets, *experts as usize, group.size(), place, *row_bytes as usize))
}

fn in_host(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

fn all_in_host(parts: &[Range<u64>]) -> Vec<Range<usize>> {
    parts.iter().map(in_host).collect()
}

/// The ranges of the ranks' spans on the host, one after the other.
fn one_by_one(of_ranks: &[Vec<Span>]) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut range = |spans: &Vec<Span>| {
        let start = end;
        end += spans.iter().map(|span| span.bytes as usize).sum::<usize>();
        start..end
    };
    of_ranks.iter().map(&mut range).collect()
}

/// Refuses an exchange that adds elements of which there are no sums.
///
/// # Errors
/// Such elements.
pub(in crate::gpu::device) fn check_sums(Exchange { path, collective, .. }: &Exchange) -> Result<()> {
    let added = match collective {
        Collective::AllReduce { addends, takes_largest: false, .. } => addends.as_slice(),
        Collective::ReduceScatter { whole, .. } => std::slice::from_ref(whole),
        _ => &[],
    };
    match added.iter().map(|span| span.element).find(|element| sum_of(*element).is_none()) {
        None => Ok(()),
        Some(element) => Err(Error::Device(format!(
            "{path}: {} of {element:?}, which ranks cannot add",
            collective.name()
        ))),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::in_process;
    use crate::record::{BufferId, PersistentId};

    const RANKS: u64 = 8;

    fn span(bytes: u64, element: Element) -> Span {
        Span { buffer: BufferId::Persistent(PersistentId(0)), offset: 0, bytes, element }
    }

    /// Exchanges among eight ranks, chosen to need the most memory for received bytes.
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

    /// Offsets by which every rank has five rows for the expert of the first rank.
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
                bytes.fit(&exchange.room());
                if let Collective::ReduceScatter { parts, .. } = &exchange.collective {
                    bytes.results.resize(in_host(&parts[rank]).len(), 0);
                }
                let (offsets, head) = (offsets(), head(&exchange.collective));
                bytes.sources[..head].copy_from_slice(&offsets[..head]);
                carry_out(exchange, &mut end, &mut bytes).expect("an exchange");
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
