//! Exchanges with other ranks during a replay.
//!
//! WebGPU moves nothing from device to device, so bytes go through staging buffers and the host. An exchange has three
//! stages, and several exchanges are under way at a time: its sources are copied to a staging buffer and mapped; the
//! communication thread exchanges them; the result is copied back. Meanwhile the device runs the launches before the
//! first one that needs the result. Buffers and host memory are allocated once.
//!
//! A replay is cut where an exchange starts and where its result is needed. At most four exchanges are under way. Rows
//! between stages of a pipeline are exchanged between replays, by the schedule of the stages (`pipeline_mailbox.rs`).

pub(super) mod on_host;
mod pipeline_mailbox;
mod rows;

use on_host::{HostBytes, carry_out, head, used};
use pipeline_mailbox::PipelineMailbox;

use super::encoder::Encoder;
use super::gpu::Gpu;
use super::mapping::{Mapping, copy_mapped};
use super::prepare::{Prepared, Program, Replayed};
use super::staging::ToDevice;
use crate::error::{Error, Result};
use crate::ranks::pipeline::{Half, Turn};
use crate::ranks::{Pending, Ranks};
use crate::record::{Collective, Exchange, Room, Started, UnderWay, stops};

/// Most exchanges that are under way at a time.
const SLOTS: usize = UnderWay::<Slot>::MOST;

/// Carries out the exchanges of programs: owns the connection to the other ranks and the staging buffers.
pub struct Exchanger {
    ranks: Ranks,
    free: Vec<Slot>,
    under_way: UnderWay<Slot>,
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

/// Staging buffers and host memory of one exchange, and how far it is.
struct Slot {
    /// Receives the sources from the device.
    down: wgpu::Buffer,
    up: ToDevice,
    bytes: HostBytes,
    stage: Stage,
}

enum Stage {
    /// The slot is free.
    Free,
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
        let exchanges = prepared.programs.iter().flat_map(|program| &program.exchanges);
        let (between, others): (Vec<_>, Vec<_>) =
            exchanges.partition(|exchange| exchange.collective.is_between_stages());
        let rooms = between.iter().map(|exchange| exchange.room());
        let passed = rooms.map(|room| room.down.max(room.up)).max();
        let passing = PipelineMailbox::new(gpu, waiting, passed.unwrap_or(0)).await?;
        let room = others.iter().fold(Room::default(), |room, exchange| room.or(exchange.room()));
        let mut free = Vec::new();
        for _ in 0..SLOTS.min(others.len()) {
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
        let program = program.filter(|_| turn.receives);
        let received = program.and_then(|program| Some((program, program.receives(part)?)));
        self.passing.pass(encoder, &self.ranks, &turn.sends, received).await
    }

    /// The launches before which the replay of a part stops for exchanges: ascending indices.
    pub(super) fn stops(program: &Program, part: Replayed, which: Exchanges) -> Vec<usize> {
        let exchanges = program.exchanges_of(part).filter(|(_, exchange)| is_among(exchange, which));
        stops(exchanges.map(|(_, exchange)| (exchange.at, program.needed(exchange))))
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
        let starting = program.exchanges_of(part).filter(|(_, exchange)| exchange.at == stop);
        for (index, exchange) in starting.filter(|(_, exchange)| is_among(exchange, which)) {
            match (&exchange.collective, half) {
                (Collective::Send { to, .. }, Some(half)) => {
                    self.passing.post(encoder, half, *to, (program, exchange)).await?;
                }
                (Collective::Receive { .. }, Some(_)) => {} // received before
                (Collective::Send { .. } | Collective::Receive { .. }, None) => {
                    let why =
                        "exchanges rows between stages, and is replayed without a half of their schedule";
                    return Err(Error::Device(format!("{} {why}", program.name)));
                }
                _ => {
                    self.end_first(encoder, program, self.under_way.before(exchange.after)).await?;
                    self.start(encoder, program, (index, exchange)).await?;
                }
            }
        }
        self.end_first(encoder, program, self.under_way.due(stop)).await
    }

    async fn start(
        &mut self,
        encoder: &mut Encoder<'_>,
        program: &Program,
        (index, exchange): (usize, &Exchange),
    ) -> Result<()> {
        let Some(mut slot) = self.free.pop() else {
            return Err(Error::Device("there is no staging buffer for an exchange".into()));
        };
        copy_sources(encoder, program, exchange, &slot.down);
        encoder.flush().await?;
        let room = exchange.room();
        slot.bytes.fit(&room);
        let mapping = Mapping::request(encoder.gpu(), &slot.down, wgpu::MapMode::Read, room.down.max(4));
        slot.stage = Stage::Down(mapping);
        self.under_way.start(Started { index, needed: program.needed(exchange), what: slot });
        Ok(())
    }

    /// Ends the oldest `count` exchanges that are under way.
    async fn end_first(&mut self, encoder: &mut Encoder<'_>, program: &Program, count: usize) -> Result<()> {
        let gpu = encoder.gpu();
        self.hand_over(gpu, program, count).await?;
        let first: Vec<Started<Slot>> = self.under_way.end(count).collect();
        if first.is_empty() {
            return Ok(());
        }
        let mut ended = Vec::with_capacity(count);
        for Started { index, what: mut slot, .. } in first {
            let Stage::Exchanged(exchanged) = std::mem::replace(&mut slot.stage, Stage::Free) else {
                return Err(Error::Device("an exchange ended before it was made".into()));
            };
            slot.bytes = exchanged.await?;
            let results = program.ranges(program.exchanges[index].collective.results());
            slot.up.copy(gpu, encoder, &slot.bytes.results, results).await?;
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
            let Started { index, what: slot, .. } = exchange;
            let Stage::Down(mapping) = &mut slot.stage else { continue };
            if mapping.done_at()?.is_none() {
                if place >= count {
                    break;
                }
                mapping.arrived(gpu).await?;
            }
            let mut bytes = std::mem::take(&mut slot.bytes);
            let exchange = program.exchanges[*index].clone();
            let (rank, head) = (self.ranks.rank(), head(&exchange.collective));
            copy_mapped(&slot.down, &mut bytes.sources, head, |head| used(&exchange, rank, head))?;
            let exchanged = self.ranks.run(move |transport| {
                carry_out(&exchange, transport, &mut bytes)?;
                Ok(bytes)
            });
            slot.stage = Stage::Exchanged(exchanged);
        }
        Ok(())
    }
}

impl Slot {
    async fn new(gpu: &Gpu, room: &Room) -> Result<Self> {
        let read = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        Ok(Self {
            down: gpu.buffer("exchange, from the device", room.down.max(16), read, Vec::new).await?,
            up: ToDevice::new(gpu, "exchange, to the device", room.up).await?,
            bytes: HostBytes::new(room),
            stage: Stage::Free,
        })
    }
}

fn is_among(exchange: &Exchange, which: Exchanges) -> bool {
    which == Exchanges::All || !exchange.once_per_step
}

/// Adds copies of the sources of `exchange` to `down`, one after the other.
fn copy_sources(encoder: &mut Encoder<'_>, program: &Program, exchange: &Exchange, down: &wgpu::Buffer) {
    let mut at = 0;
    for range in program.ranges(exchange.collective.sources()) {
        encoder.copy(range.buffer, range.start, down, at, range.bytes);
        at += range.bytes;
    }
}
