//! Exchanges with other ranks during a replay.
//!
//! WebGPU moves nothing from device to device, so bytes go through staging buffers and the host. An exchange has three stages,
//! and several are under way at a time: its sources are copied to a staging buffer and mapped; the thread that communicates
//! exchanges them; the result is copied back. The launches between an exchange and the first one that needs its result run
//! meanwhile. Buffers and host memory are allocated once.
//!
//! A replay is cut where an exchange starts and where its result is needed. Four exchanges are under way at most.

pub(super) mod point;
mod rows;

pub(super) use point::ExchangePoint;

use point::{DeviceRange, HostBytes};

use super::encoder::Encoder;
use super::gpu::Gpu;
use super::mapping::{Mapping, copy_mapped};
use super::prepare::{Prepared, Program};
use crate::error::{Error, Result};
use crate::ranks::{Pending, Ranks};
use crate::record::{Room, Started, UnderWay, stops};

/// Exchanges that are under way at a time.
const SLOTS: usize = UnderWay::<Carried>::MOST;

/// Carries out the exchanges of programs: the connection to the other ranks, and the staging buffers.
pub struct Exchanger {
    ranks: Ranks,
    free: Vec<Slot>,
    under_way: UnderWay<Carried>,
}

/// Which exchanges a replay has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanges {
    /// All: the last micro-batch of a step, and everything that is replayed once in a step.
    All,
    /// Those of every micro-batch.
    OfEveryMicroBatch,
}

/// Staging buffers and host memory of one exchange.
struct Slot {
    /// From the device.
    down: wgpu::Buffer,
    /// To the device.
    up: wgpu::Buffer,
    /// Whether `up` is mapped, or about to be.
    is_mapped: bool,
    /// The pending remapping of `up`.
    remapping: Option<Mapping>,
    bytes: HostBytes,
}

/// What an exchange that has started is carried by.
struct Carried {
    slot: Slot,
    stage: Stage,
}

enum Stage {
    /// Its sources are on their way to the host.
    Down(Mapping),
    /// The ranks exchange them.
    Exchanged(Pending<HostBytes>),
}

impl Exchanger {
    /// Exchanges that are under way at a time.
    pub const AT_ONCE: usize = SLOTS;

    /// Staging buffers for the exchanges of `prepared`.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, ranks: Ranks, prepared: &Prepared) -> Result<Self> {
        let points: Vec<_> = prepared.programs.iter().flat_map(|program| &program.points).collect();
        let room = points.iter().fold(Room::default(), |room, point| room.or(point.room));
        let mut free = Vec::new();
        for _ in 0..SLOTS.min(points.len()) {
            free.push(Slot::new(gpu, &room).await?);
        }
        Ok(Self { ranks, free, under_way: UnderWay::new() })
    }

    /// Bytes of staging buffers for so many exchanges that take at most `room` each.
    pub fn staging_bytes(exchanges: usize, room: &Room) -> u64 {
        SLOTS.min(exchanges) as u64 * (room.down + room.up)
    }

    /// The same of host memory.
    pub fn host_bytes(exchanges: usize, room: &Room) -> u64 {
        SLOTS.min(exchanges) as u64 * (room.down + room.up + room.received)
    }

    /// The connection to the other ranks.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Where a replay must stop for exchanges: launch indices, ascending.
    pub(super) fn stops(program: &Program, which: Exchanges) -> Vec<usize> {
        let points = program.points.iter().filter(|point| is_among(point, which));
        stops(points.map(|point| (point.at, point.needed)))
    }

    /// Starts the exchanges of the place before launch `stop`, and ends those whose results it needs.
    pub(super) async fn stop(
        &mut self,
        encoder: &mut Encoder<'_>,
        program: &Program,
        which: Exchanges,
        stop: usize,
    ) -> Result<()> {
        let starting = (0..).zip(&program.points).filter(|(_, point)| point.at == stop);
        for (index, point) in starting.filter(|(_, point)| is_among(point, which)) {
            self.end_first(encoder, program, self.under_way.before(point.after)).await?;
            self.start(encoder, index, point).await?;
        }
        self.end_first(encoder, program, self.under_way.due(stop)).await
    }

    async fn start(&mut self, encoder: &mut Encoder<'_>, index: usize, point: &ExchangePoint) -> Result<()> {
        let Some(mut slot) = self.free.pop() else {
            return Err(Error::Device("there is no staging buffer for an exchange".into()));
        };
        let mut at = 0;
        for range in &point.sources {
            encoder.copy(&range.buffer, range.start, &slot.down, at, range.bytes);
            at += range.bytes;
        }
        encoder.flush().await?;
        slot.bytes.fit(&point.room);
        let bytes = point.room.down.max(4);
        let stage = Stage::Down(Mapping::request(encoder.gpu(), &slot.down, wgpu::MapMode::Read, bytes));
        self.under_way.start(Started { index, needed: point.needed, what: Carried { slot, stage } });
        Ok(())
    }

    /// Ends the first `count` exchanges that are under way.
    async fn end_first(&mut self, encoder: &mut Encoder<'_>, program: &Program, count: usize) -> Result<()> {
        let gpu = encoder.gpu();
        self.hand_over(gpu, program, count).await?;
        let first: Vec<Started<Carried>> = self.under_way.end(count).collect();
        if first.is_empty() {
            return Ok(());
        }
        let mut ended = Vec::with_capacity(count);
        for Started { index, what: Carried { mut slot, stage }, .. } in first {
            let Stage::Exchanged(exchanged) = stage else {
                return Err(Error::Device("an exchange ended before it was made".into()));
            };
            slot.bytes = exchanged.await?;
            slot.upload(gpu, encoder, &program.points[index].results).await?;
            ended.push(slot);
        }
        encoder.flush().await?;
        for mut slot in ended {
            slot.recycle(gpu);
            self.free.push(slot);
        }
        Ok(())
    }

    /// Hands the sources that have reached the host to the thread that communicates, in order; waits for those of the first
    /// `count`.
    async fn hand_over(&mut self, gpu: &Gpu, program: &Program, count: usize) -> Result<()> {
        for (place, exchange) in self.under_way.iter_mut().enumerate() {
            let Started { index, what: Carried { slot, stage }, .. } = exchange;
            let Stage::Down(mapping) = stage else { continue };
            if mapping.done_at()?.is_none() {
                if place >= count {
                    break;
                }
                mapping.arrived(gpu).await?;
            }
            let mut bytes = std::mem::take(&mut slot.bytes);
            let work = program.points[*index].work.clone();
            let rank = self.ranks.rank();
            copy_mapped(&slot.down, &mut bytes.sources, work.head(), |head| work.used(rank, head))?;
            let exchanged = self.ranks.run(move |transport| {
                work.run(transport, &mut bytes)?;
                Ok(bytes)
            });
            *stage = Stage::Exchanged(exchanged);
        }
        Ok(())
    }
}

impl Slot {
    async fn new(gpu: &Gpu, room: &Room) -> Result<Self> {
        let read = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let write = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        Ok(Self {
            down: gpu.buffer("exchange, from the device", room.down.max(16), read, Vec::new).await?,
            up: gpu.buffer("exchange, to the device", room.up.max(16), write, Vec::new).await?,
            is_mapped: true,
            remapping: None,
            bytes: HostBytes::new(room),
        })
    }

    /// Requests the remapping of `up` once the copies out of it are submitted.
    fn recycle(&mut self, gpu: &Gpu) {
        if !self.is_mapped {
            let bytes = self.up.size();
            self.remapping = Some(Mapping::request(gpu, &self.up, wgpu::MapMode::Write, bytes));
            self.is_mapped = true;
        }
    }

    /// Adds the copies of the result to its ranges.
    async fn upload(&mut self, gpu: &Gpu, encoder: &mut Encoder<'_>, results: &[DeviceRange]) -> Result<()> {
        if let Some(mut remapping) = self.remapping.take()
            && remapping.done_at()?.is_none()
        {
            remapping.arrived(gpu).await?;
        }
        let result = &self.bytes.results;
        if result.is_empty() {
            return Ok(());
        }
        let view = self.up.slice(..result.len() as u64).get_mapped_range_mut();
        view.map_err(|e| Error::Device(format!("a staging buffer is not mapped: {e}")))?
            .copy_from_slice(result);
        self.up.unmap();
        self.is_mapped = false;
        let mut at = 0;
        for range in results {
            let bytes = range.bytes.min(result.len() as u64 - at); // rows may be fewer than there is room for
            encoder.copy(&self.up, at, &range.buffer, range.start, bytes);
            at += bytes;
        }
        Ok(())
    }
}

fn is_among(point: &ExchangePoint, which: Exchanges) -> bool {
    which == Exchanges::All || !point.once_per_step
}
