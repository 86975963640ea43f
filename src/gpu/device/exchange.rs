//! Exchanges with other ranks during a replay.
//!
//! WebGPU moves nothing from device to device, so bytes go through staging buffers and the host. An exchange has three
//! stages, and several exchanges are under way at a time: its sources are copied to a staging buffer and mapped; the
//! communication thread exchanges them; the result is copied back. Meanwhile the device runs the launches before the
//! first one that needs the result. Buffers and host memory are allocated once.
//!
//! A replay is cut where an exchange starts and where its result is needed. At most four exchanges are under way. Rows
//! between stages of a pipeline are exchanged between replays, by the schedule of the stages (`pipeline_mailbox.rs`).

mod pipeline_mailbox;
pub(super) mod point;
mod rows;
mod staging;

pub(super) use point::ExchangePoint;

use pipeline_mailbox::PipelineMailbox;
use point::{HostBytes, carry_out, head, used};
use staging::ToDevice;

use super::encoder::Encoder;
use super::gpu::Gpu;
use super::mapping::{Mapping, copy_mapped};
use super::prepare::{Prepared, Program, Replayed};
use crate::error::{Error, Result};
use crate::ranks::pipeline::{Half, Turn};
use crate::ranks::{Pending, Ranks};
use crate::record::{Room, Started, UnderWay, stops};

/// Most exchanges that are under way at a time.
const SLOTS: usize = UnderWay::<Carried>::MOST;

/// Carries out the exchanges of programs: owns the connection to the other ranks and the staging buffers.
pub struct Exchanger {
    ranks: Ranks,
    free: Vec<Slot>,
    under_way: UnderWay<Carried>,
    passing: PipelineMailbox,
}

/// Which exchanges of a program a replay carries out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanges {
    /// All: for the last micro-batch of a step, and for programs that are replayed once per step.
    All,
    /// Only the exchanges that every micro-batch has.
    OfEveryMicroBatch,
}

/// Staging buffers and host memory of one exchange.
struct Slot {
    /// Receives the sources from the device.
    down: wgpu::Buffer,
    up: ToDevice,
    bytes: HostBytes,
}

/// An exchange that has started: its memory and its stage.
struct Carried {
    slot: Slot,
    stage: Stage,
}

enum Stage {
    /// The sources are on their way to the host.
    Down(Mapping),
    /// The communication thread exchanges them with the other ranks.
    Exchanged(Pending<HostBytes>),
}

impl Exchanger {
    /// An exchanger with staging buffers for the exchanges of `prepared`. `waiting`: the most results of a stage that
    /// wait to be sent.
    ///
    /// # Errors
    /// Out of memory.
    pub async fn new(gpu: &Gpu, ranks: Ranks, prepared: &Prepared, waiting: usize) -> Result<Self> {
        let points = prepared.programs.iter().flat_map(|program| &program.points);
        let (between, points): (Vec<_>, Vec<_>) = points.partition(|point| point.is_between_stages());
        let passed = between.iter().map(|point| point.room.down.max(point.room.up)).max();
        let passing = PipelineMailbox::new(gpu, waiting, passed.unwrap_or(0)).await?;
        let room = points.iter().fold(Room::default(), |room, point| room.or(point.room));
        let mut free = Vec::new();
        for _ in 0..SLOTS.min(points.len()) {
            free.push(Slot::new(gpu, &room).await?);
        }
        Ok(Self { ranks, free, under_way: UnderWay::new(), passing })
    }

    /// Bytes of staging buffers for `exchanges` that take at most `room` each.
    pub fn staging_bytes(exchanges: usize, room: &Room) -> u64 {
        SLOTS.min(exchanges) as u64 * (room.down + room.up)
    }

    /// Bytes of staging buffers for at most `waiting` results of a stage, of `bytes` each. Host memory takes as many
    /// bytes again.
    pub fn passing_bytes(waiting: usize, bytes: u64) -> u64 {
        PipelineMailbox::staging_bytes(waiting, bytes)
    }

    /// Bytes of host memory for `exchanges` that take at most `room` each.
    pub fn host_bytes(exchanges: usize, room: &Room) -> u64 {
        SLOTS.min(exchanges) as u64 * (room.down + room.up + room.received)
    }

    /// The connection to the other ranks.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Exchanges the rows between stages at the start of `turn`, in which `program` computes.
    ///
    /// # Errors
    /// A device failure; a rank that has ended.
    pub async fn pass(
        &mut self,
        encoder: &mut Encoder<'_>,
        turn: &Turn,
        program: Option<&Program>,
    ) -> Result<()> {
        let part = turn.half.map_or(Replayed::Whole, Replayed::of);
        let receives = |program: &&Program| turn.receives && program.receives(part).is_some();
        let point = program.filter(receives).and_then(|program| program.receives(part));
        self.passing.pass(encoder, &self.ranks, &turn.sends, point).await
    }

    /// The launches before which the replay of a part stops for exchanges: ascending indices.
    pub(super) fn stops(program: &Program, part: Replayed, which: Exchanges) -> Vec<usize> {
        let points = program.points_of(part).filter(|(_, point)| is_among(point, which));
        stops(points.map(|(_, point)| (point.exchange.at, point.needed)))
    }

    /// Starts the exchanges that are due before launch `stop`, and ends those whose results that launch needs. Rows for
    /// another stage wait as the result of `half`.
    pub(super) async fn stop(
        &mut self,
        encoder: &mut Encoder<'_>,
        (program, part): (&Program, Replayed),
        half: Option<Half>,
        which: Exchanges,
        stop: usize,
    ) -> Result<()> {
        let starting = program.points_of(part).filter(|(_, point)| point.exchange.at == stop);
        for (index, point) in starting.filter(|(_, point)| is_among(point, which)) {
            match half.filter(|_| point.is_between_stages()) {
                Some(half) if !point.sources.is_empty() => self.passing.post(encoder, half, point).await?,
                Some(_) => {} // received before
                None if point.is_between_stages() => {
                    let why =
                        "exchanges rows between stages, and is replayed without a half of their schedule";
                    return Err(Error::Device(format!("{} {why}", program.name)));
                }
                None => {
                    self.end_first(encoder, program, self.under_way.before(point.exchange.after)).await?;
                    self.start(encoder, index, point).await?;
                }
            }
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

    /// Ends the oldest `count` exchanges that are under way.
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
            let Slot { up, bytes, .. } = &mut slot;
            up.copy(gpu, encoder, &bytes.results, &program.points[index].results).await?;
            ended.push(slot);
        }
        encoder.flush().await?;
        for mut slot in ended {
            slot.up.recycle(gpu);
            self.free.push(slot);
        }
        Ok(())
    }

    /// Hands sources that have reached the host to the communication thread, in order; waits for those of the oldest
    /// `count` exchanges.
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
            let exchange = program.points[*index].exchange.clone();
            let (rank, head) = (self.ranks.rank(), head(&exchange.collective));
            copy_mapped(&slot.down, &mut bytes.sources, head, |head| used(&exchange, rank, head))?;
            let exchanged = self.ranks.run(move |transport| {
                carry_out(&exchange, transport, &mut bytes)?;
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
        Ok(Self {
            down: gpu.buffer("exchange, from the device", room.down.max(16), read, Vec::new).await?,
            up: ToDevice::new(gpu, room.up).await?,
            bytes: HostBytes::new(room),
        })
    }
}

fn is_among(point: &ExchangePoint, which: Exchanges) -> bool {
    which == Exchanges::All || !point.exchange.once_per_step
}
