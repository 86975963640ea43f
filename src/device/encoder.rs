//! Encodes one submission: copies in, programs, copies out.

use super::gpu::Gpu;
use super::prepare::{Buffers, Program};
use crate::error::Result;
use crate::record::PersistentId;

/// Commands that run in the order they are added, as one submission.
pub struct Encoder<'gpu> {
    gpu: &'gpu Gpu,
    pub(super) commands: wgpu::CommandEncoder,
    ops: Option<(String, String)>,
}

impl<'gpu> Encoder<'gpu> {
    pub(super) fn new(gpu: &'gpu Gpu) -> Self {
        Self { gpu, commands: gpu.device.create_command_encoder(&Default::default()), ops: None }
    }

    /// Adds every dispatch of `program`.
    pub fn replay(&mut self, program: &Program) {
        let mut pass = self.commands.begin_compute_pass(&wgpu::ComputePassDescriptor {
            label: Some(program.name),
            timestamp_writes: None,
        });
        for launch in &program.launches {
            pass.set_pipeline(&launch.pipeline.pipeline);
            pass.set_bind_group(0, &launch.bind_group, &[]);
            pass.dispatch_workgroups(launch.grid[0], launch.grid[1], launch.grid[2]);
        }
        drop(pass);
        let (first, last) = program.first_and_last();
        self.ops = Some((self.ops.take().map_or(first, |(first, _)| first), last));
    }

    /// Fills a persistent buffer with zeros.
    pub fn clear(&mut self, buffers: &Buffers, id: PersistentId) {
        self.commands.clear_buffer(&buffers.buffers[id.0 as usize], 0, None);
    }

    /// Adds a copy between two buffers; sizes and offsets are multiples of 4.
    pub(super) fn copy(&mut self, from: &wgpu::Buffer, at: u64, to: &wgpu::Buffer, to_at: u64, bytes: u64) {
        self.commands.copy_buffer_to_buffer(from, at, to, to_at, Some(bytes));
    }

    /// Hands the commands to the queue. Blocks only while too much is in flight already.
    pub fn submit(self) -> Result<()> {
        let ops = self.ops.map_or_else(|| "a copy".to_string(), |(a, b)| format!("{a} .. {b}"));
        let index = self.gpu.queue.submit([self.commands.finish()]);
        self.gpu.submissions.add(self.gpu, index, ops)
    }
}
