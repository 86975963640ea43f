//! Encodes submissions: uploads, program replays, readbacks.

use super::buffers::Buffers;
use super::exchange::{Exchanger, Exchanges};
use super::gpu::Gpu;
use super::launch::Launch;
use super::prepare::{Program, Replayed};
use crate::error::{Error, Result};
use crate::gpu::device::submission_split::Timed;
use crate::ranks::pipeline::Half;
use crate::record::PersistentId;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Commands, executed in the order in which they are added.
pub struct Encoder<'gpu> {
    gpu: &'gpu Gpu,
    pub(super) commands: wgpu::CommandEncoder,
    ops: Option<(String, String)>,
    /// Launches in `commands` whose time is to be measured.
    timed: Vec<Timed>,
}

impl Gpu {
    /// A new encoder, whose commands are submitted together.
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder::new(self)
    }
}

impl<'gpu> Encoder<'gpu> {
    pub(super) fn new(gpu: &'gpu Gpu) -> Self {
        Self { gpu, commands: commands(gpu), ops: None, timed: Vec::new() }
    }

    /// Adds every dispatch of `program`, which has no exchanges. If it takes longer than one submission may, it is
    /// split into several, all but the last of which are submitted here. To find the split, the first replay on a GPU
    /// measures each dispatch.
    ///
    /// # Errors
    /// A device failure.
    pub async fn replay(&mut self, program: &Program) -> Result<()> {
        if !program.exchanges.is_empty() {
            let why = "exchanges with other ranks, and is replayed without a connection to them";
            return Err(Error::Device(format!("{} {why}", program.name)));
        }
        let times = self.replay_range(program, 0..program.launches.len()).await?;
        self.note(program, times);
        Ok(())
    }

    /// Replays the part of `program` that `half` computes: one half of a program that is cut, or all of one that is
    /// not. The rows that it needs of other stages must have been [received](Exchanger::pass); the rows that others
    /// need of it wait to be sent.
    ///
    /// # Errors
    /// A device failure; a rank that has ended.
    pub async fn replay_half(
        &mut self,
        program: &Program,
        exchanger: &mut Exchanger,
        half: Half,
        which: Exchanges,
    ) -> Result<()> {
        self.replay_part(program, Replayed::of(half), exchanger, Some(half), which).await
    }

    /// Replays a program with exchanges, and carries out those that `which` names. Commands added before are submitted
    /// when the first exchange starts.
    ///
    /// # Errors
    /// A device failure; a rank that has ended.
    pub async fn replay_exchanging(
        &mut self,
        program: &Program,
        exchanger: &mut Exchanger,
        which: Exchanges,
    ) -> Result<()> {
        self.replay_part(program, Replayed::Whole, exchanger, None, which).await
    }

    async fn replay_part(
        &mut self,
        program: &Program,
        part: Replayed,
        exchanger: &mut Exchanger,
        half: Option<Half>,
        which: Exchanges,
    ) -> Result<()> {
        let Range { mut start, end } = program.range(part);
        let mut times = Vec::new();
        for stop in Exchanger::stops(program, part, which) {
            times.extend(self.replay_range(program, start..stop).await?);
            exchanger.stop(self, (program, part), half, which, stop).await?;
            start = stop;
        }
        times.extend(self.replay_range(program, start..end).await?);
        self.note(program, times);
        Ok(())
    }

    /// Adds the launches of `range`; on the first replay on a GPU returns how long each took.
    async fn replay_range(&mut self, program: &Program, range: Range<usize>) -> Result<Vec<Duration>> {
        if self.gpu.submission_time().is_none() {
            self.encode(program, range);
            return Ok(Vec::new());
        }
        let Some(ends) = program.slices.ends() else {
            return self.replay_measured(program, range).await;
        };
        let mut start = range.start;
        for end in ends.iter().copied().filter(|end| range.contains(end) && *end > range.start) {
            self.encode(program, start..end);
            self.flush().await?;
            start = end;
        }
        self.encode(program, start..range.end);
        Ok(Vec::new())
    }

    /// Cuts later replays by the times of the first one, once all of `program` has been replayed.
    fn note(&self, program: &Program, times: Vec<Duration>) {
        if let Some(budget) = self.gpu.submission_time() {
            program.slices.start(times, program.launches.len(), budget);
        }
    }

    /// Fills a persistent buffer with zeros. If an application's buffer lacks the usage `COPY_DST`, the submission
    /// fails.
    pub fn clear(&mut self, buffers: &Buffers, id: PersistentId) {
        match buffers.target(id) {
            Ok(range) => self.commands.clear_buffer(&range.buffer, range.start, Some(range.bytes)),
            Err(error) => self.gpu.fault(error),
        }
    }

    /// Adds a copy between persistent buffers, from a byte of one to a byte of another; all sizes are multiples of 4
    /// bytes. If an application's buffer lacks the usage `COPY_SRC` or `COPY_DST`, the submission fails.
    pub fn copy_within(
        &mut self,
        buffers: &Buffers,
        from: (PersistentId, u64),
        to: (PersistentId, u64),
        bytes: u64,
    ) {
        match buffers.source(from.0).and_then(|source| Ok((source, buffers.target(to.0)?))) {
            Ok((source, target)) => {
                self.copy(&source.buffer, source.start + from.1, &target.buffer, target.start + to.1, bytes);
            }
            Err(error) => self.gpu.fault(error),
        }
    }

    /// Adds a copy between two buffers; size and offsets are multiples of 4 bytes.
    pub(super) fn copy(&mut self, from: &wgpu::Buffer, at: u64, to: &wgpu::Buffer, to_at: u64, bytes: u64) {
        self.commands.copy_buffer_to_buffer(from, at, to, to_at, Some(bytes));
    }

    /// Submits the commands to the queue. On a GPU the future completes at once, unless too many submissions are in
    /// flight.
    ///
    /// # Errors
    /// A device failure.
    pub async fn submit(mut self) -> Result<()> {
        self.flush().await
    }

    /// Submits the commands so far and starts a new encoder.
    pub(super) async fn flush(&mut self) -> Result<()> {
        let ops = self.ops.take().map_or_else(|| "a copy".to_string(), |(a, b)| format!("{a} .. {b}"));
        let finished = std::mem::replace(&mut self.commands, commands(self.gpu)).finish();
        let begin = Instant::now(); // a software adapter executes a submission inside the submit call
        let index = self.gpu.queue.submit([finished]);
        self.gpu.submissions.add(index, ops, begin, std::mem::take(&mut self.timed));
        self.gpu.submissions.room().await?;
        self.gpu.check()
    }

    /// The device that the commands are encoded for.
    pub(super) fn gpu(&self) -> &'gpu Gpu {
        self.gpu
    }

    fn encode(&mut self, program: &Program, launches: Range<usize>) {
        if launches.is_empty() {
            return;
        }
        program.encode_launches(&mut self.commands, launches.clone());
        self.timed.extend(program.slices.timed(launches.clone()));
        let path = |launch: &Launch| format!("{}/{}", program.name, launch.path);
        let launches = &program.launches[launches];
        if let (Some(first), Some(last)) = (launches.first(), launches.last()) {
            let first = self.ops.take().map_or_else(|| path(first), |(first, _)| first);
            self.ops = Some((first, path(last)));
        }
    }

    /// Replays the launches of `range` one by one, and returns how long each took, submission included.
    async fn replay_measured(&mut self, program: &Program, range: Range<usize>) -> Result<Vec<Duration>> {
        self.flush().await?;
        self.gpu.wait().await?;
        let mut times = Vec::with_capacity(range.len());
        for (index, launch) in range.clone().zip(&program.launches[range]) {
            let start = Instant::now();
            self.encode(program, index..index + 1);
            self.flush().await?;
            self.gpu.wait().await?;
            times.push(start.elapsed());
            if start.elapsed() > Duration::from_secs(1) && !self.gpu.report().is_software {
                tracing::warn!(
                    "one dispatch of {}/{} takes {:.1} s, and a GPU that drives a display may be reset after 2 s; use \
                     smaller micro-batches",
                    program.name,
                    launch.path,
                    start.elapsed().as_secs_f64()
                );
            }
        }
        Ok(times)
    }
}

fn commands(gpu: &Gpu) -> wgpu::CommandEncoder {
    gpu.device.create_command_encoder(&Default::default())
}
