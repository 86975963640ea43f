//! Encodes submissions: uploads, program replays, readbacks.

use super::buffers::Buffers;
use super::gpu::Gpu;
use super::launch::Launch;
use super::prepare::Program;
use super::slices::cut;
use crate::error::Result;
use crate::record::PersistentId;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Commands, executed in the order in which they are added.
pub struct Encoder<'gpu> {
    gpu: &'gpu Gpu,
    pub(super) commands: wgpu::CommandEncoder,
    ops: Option<(String, String)>,
}

impl<'gpu> Encoder<'gpu> {
    pub(super) fn new(gpu: &'gpu Gpu) -> Self {
        Self { gpu, commands: commands(gpu), ops: None }
    }

    /// Adds every dispatch of `program`. If it takes longer than one submission may, it is split into several, all but
    /// the last of which are submitted here. Its first replay on a GPU measures each dispatch for that purpose.
    ///
    /// # Errors
    /// A device failure.
    pub async fn replay(&mut self, program: &Program) -> Result<()> {
        let Some(budget) = self.gpu.submission_time() else {
            self.encode(program, 0..program.launches.len());
            return Ok(());
        };
        let Some(ends) = program.slices.get() else {
            let times = self.replay_measured(program).await?;
            program.slices.get_or_init(|| cut(&times, budget));
            return Ok(());
        };
        let mut start = 0;
        for &end in ends {
            if start > 0 {
                self.flush().await?;
            }
            self.encode(program, start..end);
            start = end;
        }
        Ok(())
    }

    /// Fills a persistent buffer with zeros. For an application's buffer without the usage `COPY_DST`, the submission
    /// fails.
    pub fn clear(&mut self, buffers: &Buffers, id: PersistentId) {
        match buffers.target(id) {
            Ok(range) => self.commands.clear_buffer(&range.buffer, range.start, Some(range.bytes)),
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
    async fn flush(&mut self) -> Result<()> {
        let ops = self.ops.take().map_or_else(|| "a copy".to_string(), |(a, b)| format!("{a} .. {b}"));
        let finished = std::mem::replace(&mut self.commands, commands(self.gpu)).finish();
        let index = self.gpu.queue.submit([finished]);
        self.gpu.submissions.add(index, ops);
        self.gpu.submissions.room().await?;
        self.gpu.check()
    }

    fn encode(&mut self, program: &Program, launches: Range<usize>) {
        program.encode_launches(&mut self.commands, launches.clone());
        let path = |launch: &Launch| format!("{}/{}", program.name, launch.path);
        let launches = &program.launches[launches];
        if let (Some(first), Some(last)) = (launches.first(), launches.last()) {
            let first = self.ops.take().map_or_else(|| path(first), |(first, _)| first);
            self.ops = Some((first, path(last)));
        }
    }

    /// Replays the launches one by one, and returns how long each took, submission included.
    async fn replay_measured(&mut self, program: &Program) -> Result<Vec<Duration>> {
        self.flush().await?;
        self.gpu.wait().await?;
        let mut times = Vec::with_capacity(program.launches.len());
        for (index, launch) in program.launches.iter().enumerate() {
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
