//! Prepares recordings for replay: compiles pipelines, allocates buffers, creates bind groups.

use super::buffers::Buffers;
use super::exchange::on_host::check_sums;
use super::fault::one_line;
use super::gpu::Gpu;
use super::launch::{BufferTable, Launch};
use super::pipelines::Pipeline;
use crate::error::{Error, Result};
use crate::gpu::device::submission_split::Slices;
use crate::kernels::Kernel;
use crate::ranks::pipeline::{Direction, Half};
use crate::record::{BufferId, Collective, Exchange, LARGEST, MemoryPlan, Recording, Span};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A prepared recording. A replay only has to encode it.
pub struct Program {
    pub(super) name: &'static str,
    pub(super) launches: Vec<Launch>,
    pub(super) exchanges: Vec<Arc<Exchange>>,
    /// The buffers that exchanges read or write, and the byte at which the data of each start.
    exchanged: HashMap<BufferId, (wgpu::Buffer, u64)>,
    /// How replays are split into submissions.
    pub(super) slices: Arc<Slices>,
    /// The first launch of its second half, if the program is replayed in two halves.
    cut: Option<usize>,
}

/// The part of a program that is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replayed {
    Whole,
    First,
    Second,
}

impl Replayed {
    /// The part that computes `half`, of a program that is cut.
    pub fn of(half: Half) -> Self {
        match half.direction {
            Direction::Forward => Self::First,
            Direction::Backward => Self::Second,
        }
    }
}

/// A range of a buffer on the device.
pub(super) struct DeviceRange<'a> {
    pub buffer: &'a wgpu::Buffer,
    pub start: u64,
    pub bytes: u64,
}

/// Guard zones around pool buffers, for tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guard {
    /// None: training.
    #[default]
    Off,
    /// 256 bytes of NaN before and after each pool buffer, and NaN as its initial contents, so that tests detect
    /// kernels that read uninitialised memory or write out of bounds.
    Nan,
}

impl Guard {
    fn bytes(self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Nan => 256,
        }
    }
}

/// Programs, and the pool of buffers that they share.
pub struct Prepared {
    /// One program for each recording, in the same order.
    pub programs: Vec<Program>,
    pub(super) pool: Vec<wgpu::Buffer>,
    pub(super) plan: MemoryPlan,
    pub(super) guard: Guard,
}

impl Program {
    /// The recording's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Number of dispatches that a replay encodes.
    pub fn launches(&self) -> usize {
        self.launches.len()
    }

    /// Has the next replay timed, without waiting for it, and cuts later replays into submissions by the new times. To
    /// be called when the device has worked for a while: the first replay measured it when it was idle.
    pub fn measure_again(&self) {
        self.slices.measure_again();
    }

    /// How often the program was split into submissions by measured times; 0 if submissions have no time limit.
    pub fn cuts(&self) -> usize {
        self.slices.cuts()
    }

    /// Adds every dispatch to `commands`, in a compute pass of its own. Nothing is submitted, and no thread is started:
    /// the application finishes the encoder and submits it to the queue of the same device.
    ///
    /// How long the submission may take is the application's concern; [`Encoder::replay`](super::Encoder::replay)
    /// splits long programs.
    ///
    /// # Examples
    ///
    /// See `examples/own_device.rs`.
    pub fn encode(&self, commands: &mut wgpu::CommandEncoder) {
        self.encode_launches(commands, 0..self.launches.len());
    }

    /// The launches of a part; all of them if the program is not cut.
    pub(super) fn range(&self, part: Replayed) -> Range<usize> {
        let all = self.launches.len();
        match (part, self.cut) {
            (Replayed::First, Some(cut)) => 0..cut,
            (Replayed::Second, Some(cut)) => cut..all,
            _ => 0..all,
        }
    }

    /// The exchanges of a part, with their indices.
    pub(super) fn exchanges_of(&self, part: Replayed) -> impl Iterator<Item = (usize, &Exchange)> {
        let is_of = move |exchange: &Exchange| match (part, self.cut) {
            (Replayed::First, Some(cut)) => !exchange.is_after(cut),
            (Replayed::Second, Some(cut)) => exchange.is_after(cut),
            _ => true,
        };
        let exchanges = self.exchanges.iter().map(|exchange| &**exchange).enumerate();
        exchanges.filter(move |(_, exchange)| is_of(exchange))
    }

    /// The launch that needs the result of `exchange`; a half ends the exchanges that it starts.
    pub(super) fn needed(&self, exchange: &Exchange) -> usize {
        let end = self.cut.filter(|cut| !exchange.is_after(*cut));
        end.map_or(exchange.needed, |cut| exchange.needed.min(cut))
    }

    /// Where `spans` of an exchange are on the device.
    pub(super) fn ranges(&self, spans: Vec<Span>) -> impl Iterator<Item = DeviceRange<'_>> {
        spans.into_iter().filter(|span| span.bytes > 0).map(move |span| {
            let (buffer, start) = &self.exchanged[&span.buffer];
            DeviceRange { buffer, start: start + span.offset, bytes: span.bytes }
        })
    }

    /// The exchange with which a part begins, if it receives rows of another stage.
    pub(super) fn receives(&self, part: Replayed) -> Option<&Exchange> {
        let mut exchanges = self.exchanges_of(part).map(|(_, exchange)| exchange);
        exchanges.find(|exchange| matches!(exchange.collective, Collective::Receive { .. }))
    }

    pub(super) fn encode_launches(&self, commands: &mut wgpu::CommandEncoder, launches: Range<usize>) {
        let mut pass = commands.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some(self.name),
            timestamp_writes: None,
        });
        self.launches[launches].iter().for_each(|launch| launch.encode(&mut pass));
    }
}

impl Prepared {
    /// Total bytes of the pool.
    pub fn pool_bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// Location of a transient of recording `index`: its pool buffer and the byte offset of its data.
    pub(super) fn place(&self, index: usize, buffer: BufferId) -> Option<(&wgpu::Buffer, u64)> {
        let BufferId::Transient(id) = buffer else { return None };
        let slot = self.plan.assignments[index][id.0 as usize]?;
        Some((&self.pool[slot], self.guard.bytes()))
    }
}

impl Gpu {
    /// Prepares recordings that never run concurrently; they share one pool.
    ///
    /// # Errors
    /// A shader that does not compile, one whose bindings or params differ from those of the recording, a dispatch that
    /// reads and writes ranges of one buffer, a buffer over the size limit, out of memory, or a device failure.
    pub async fn prepare(
        &self,
        recordings: &[&Recording],
        buffers: &Buffers,
        guard: Guard,
    ) -> Result<Prepared> {
        let kernels: Vec<&Kernel> =
            recordings.iter().flat_map(|r| r.dispatches.iter().map(|d| &d.kernel)).collect();
        let pipelines = self.pipelines.get(self, &kernels).await?;
        let plan = MemoryPlan::new(recordings);
        let consumers = || MemoryPlan::largest(recordings, LARGEST);
        let mut pool = Vec::with_capacity(plan.buffers.len());
        for (i, bytes) in plan.buffers.iter().enumerate() {
            pool.push(self.storage(&format!("pool {i}"), bytes + 2 * guard.bytes(), consumers).await?);
        }
        let mut prepared = Prepared { programs: Vec::new(), pool, plan, guard };
        if guard == Guard::Nan {
            for buffer in &prepared.pool {
                self.queue.write_buffer(buffer, 0, &vec![0xff; buffer.size() as usize]);
            }
        }
        for (index, recording) in recordings.iter().enumerate() {
            let program = self.program(index, recording, buffers, &prepared, &pipelines).await?;
            prepared.programs.push(program);
        }
        self.queue.submit([]); // flushes the params written above
        self.check()?;
        Ok(prepared)
    }

    async fn program(
        &self,
        index: usize,
        recording: &Recording,
        buffers: &Buffers,
        prepared: &Prepared,
        pipelines: &HashMap<Kernel, Arc<Pipeline>>,
    ) -> Result<Program> {
        let params = self.params(recording).await?;
        let refused = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let table = BufferTable { buffers, prepared, index, params: &params };
        let mut params_at = 0;
        let launches: Result<Vec<Launch>> = recording
            .dispatches
            .iter()
            .map(|dispatch| {
                let launch = table.launch(self, dispatch, &pipelines[&dispatch.kernel], params_at);
                params_at += dispatch.params_slot();
                launch
            })
            .collect();
        let refusal = refused.pop(); // here, because a scope must not be held across an await
        let launches = launches?;
        if let Some(error) = refusal.await {
            let (name, error) = (recording.name, one_line(&error.to_string()));
            return Err(Error::Device(format!("{} refuses {name}: {error}", self.report().name)));
        }
        let mut exchanged = HashMap::new();
        for exchange in &recording.exchanges {
            check_sums(exchange)?;
            let Exchange { path, collective, .. } = exchange;
            let spans = collective.sources().into_iter().chain(collective.results());
            for span in spans.filter(|span| span.bytes > 0) {
                let nowhere = || Error::Device(format!("{path}: what is exchanged has no buffer"));
                let (buffer, start) = table.place(span.buffer).ok_or_else(nowhere)?;
                exchanged.insert(span.buffer, (buffer.clone(), start));
            }
        }
        let exchanges = recording.exchanges.iter().cloned().map(Arc::new).collect();
        let Recording { name, cut, .. } = *recording;
        Ok(Program { name, launches, exchanges, exchanged, slices: Arc::default(), cut })
    }

    /// One uniform buffer with all params structs of a recording.
    async fn params(&self, recording: &Recording) -> Result<wgpu::Buffer> {
        let mut bytes = Vec::new();
        for dispatch in &recording.dispatches {
            let end = bytes.len() + dispatch.params_slot() as usize;
            bytes.extend(&dispatch.params);
            bytes.resize(end, 0);
        }
        bytes.resize(bytes.len().max(16), 0);
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let largest = || MemoryPlan::largest(&[recording], LARGEST);
        let buffer = self.buffer("params", bytes.len() as u64, usage, largest).await?;
        self.queue.write_buffer(&buffer, 0, &bytes);
        Ok(buffer)
    }
}
