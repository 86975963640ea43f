//! Exchange points of prepared programs: which ranges are copied to the host and back, and what the ranks do in between.

use super::rows::RowMap;
use crate::device::launch::Places;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::ranks::collectives::{Sum, all_gather, all_reduce, reduce_scatter};
use crate::ranks::{Group, Transport};
use crate::record::{Collective, Exchange, Span};
use std::ops::Range;
use std::sync::Arc;

/// An exchange of a program.
pub(in crate::device) struct ExchangePoint {
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
    /// What the ranks do with the bytes.
    pub work: Arc<Work>,
}

/// A range of a buffer on the device.
pub(in crate::device) struct DeviceRange {
    pub buffer: wgpu::Buffer,
    pub start: u64,
    pub bytes: u64,
}

/// What the ranks of a group do with bytes on the host.
pub(in crate::device) struct Work {
    group: Group,
    kind: Kind,
}

enum Kind {
    /// Adds runs of bytes with elements of one type each.
    AllReduce(Vec<(Range<usize>, Sum)>),
    /// Adds the parts and keeps one's own.
    ReduceScatter(Vec<Range<usize>>, Sum),
    /// Gathers the parts.
    AllGather(Vec<Range<usize>>),
    /// Moves rows; the sources are the offsets, so many bytes, and the rows.
    Rows { offsets_bytes: usize, experts: usize, row_bytes: usize, to_experts: bool },
    /// Sends the sources to a rank.
    Send(usize),
    /// Receives the results from a rank.
    Receive(usize),
}

/// Bytes of an exchange on the host. They are allocated once.
#[derive(Default)]
pub(in crate::device) struct HostBytes {
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
    pub fn new(exchange: &Exchange, places: &Places<'_>) -> Result<Self> {
        let ranges = |spans: &[Span]| -> Result<Vec<DeviceRange>> {
            let spans = spans.iter().filter(|span| span.bytes > 0);
            spans.map(|span| device_range(span, &exchange.path, places)).collect()
        };
        let Exchange { path, collective, group, .. } = exchange;
        let kind = Kind::of(collective).ok_or_else(|| {
            Error::Device(format!("{path}: {} adds float32 and integers only", collective.name()))
        })?;
        Ok(Self {
            at: exchange.at,
            needed: exchange.needed,
            after: exchange.after,
            once_per_step: exchange.once_per_step,
            sources: ranges(&collective.sources())?,
            results: ranges(&collective.results())?,
            work: Arc::new(Work { group: group.clone(), kind }),
        })
    }

    /// Bytes that are copied to the host, and back.
    pub fn bytes(&self) -> (u64, u64) {
        let bytes = |ranges: &[DeviceRange]| ranges.iter().map(|range| range.bytes).sum();
        (bytes(&self.sources), bytes(&self.results))
    }
}

impl Work {
    /// Exchanges the bytes with the other ranks of the group; runs on the thread that communicates.
    ///
    /// # Errors
    /// A rank that has ended.
    pub fn run(&self, transport: &mut dyn Transport, bytes: &mut HostBytes) -> Result<()> {
        let HostBytes { sources, results, received } = bytes;
        match &self.kind {
            Kind::AllReduce(runs) => {
                results.copy_from_slice(sources);
                runs.iter().try_for_each(|(run, sum)| {
                    all_reduce(transport, &self.group, &mut results[run.clone()], *sum, received)
                })
            }
            Kind::ReduceScatter(parts, sum) => {
                reduce_scatter(transport, &self.group, sources, parts, received, results, *sum)
            }
            Kind::AllGather(parts) => {
                let Some(own) = self.group.place(transport.rank()) else { return Ok(()) };
                results[parts[own].clone()].copy_from_slice(sources);
                all_gather(transport, &self.group, results, parts)
            }
            Kind::Send(to) => transport.exchange(&[(*to, sources)], &mut []),
            Kind::Receive(from) => transport.exchange(&[], &mut [(*from, results)]),
            Kind::Rows { offsets_bytes, to_experts, .. } => {
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
        let Kind::Rows { offsets_bytes, to_experts, .. } = self.kind else { return None };
        Some(offsets_bytes + self.row_map(rank, start)?.used(to_experts))
    }

    /// Bytes at the start that say how many of the others count; 0 if all do.
    pub fn head(&self) -> usize {
        match self.kind {
            Kind::Rows { offsets_bytes, .. } => offsets_bytes,
            _ => 0,
        }
    }

    fn row_map(&self, rank: usize, sources: &[u8]) -> Option<RowMap> {
        let Kind::Rows { offsets_bytes, experts, row_bytes, .. } = self.kind else { return None };
        let place = self.group.place(rank)?;
        Some(RowMap::read(&sources[..offsets_bytes], experts, self.group.size(), place, row_bytes))
    }
}

impl Kind {
    /// What is done for `collective`, unless it adds elements in 16 bits.
    fn of(collective: &Collective) -> Option<Self> {
        let in_host = |parts: &[Range<u64>]| {
            parts.iter().map(|part| part.start as usize..part.end as usize).collect::<Vec<_>>()
        };
        Some(match collective {
            Collective::AllReduce { .. } => {
                let runs = collective
                    .runs()
                    .into_iter()
                    .map(|(run, element)| Some((run.start as usize..run.end as usize, sum_of(element)?)));
                Self::AllReduce(runs.collect::<Option<_>>()?)
            }
            Collective::ReduceScatter { whole, parts, .. } => {
                Self::ReduceScatter(in_host(parts), sum_of(whole.element)?)
            }
            Collective::AllGather { parts, .. } => Self::AllGather(in_host(parts)),
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

fn sum_of(element: Element) -> Option<Sum> {
    match element {
        Element::F32 => Some(Sum::F32),
        Element::U32 => Some(Sum::U32),
        Element::F16 | Element::Bf16 => None,
    }
}

fn device_range(span: &Span, path: &str, places: &Places<'_>) -> Result<DeviceRange> {
    let nowhere = || Error::Device(format!("{path}: what is exchanged has no buffer"));
    let (buffer, start) = places.place(span.buffer).ok_or_else(nowhere)?;
    Ok(DeviceRange { buffer: buffer.clone(), start: start + span.offset, bytes: span.bytes })
}
