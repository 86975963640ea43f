//! Launches: dispatches with their pipeline and bind group, ready to encode.

use super::buffers::Buffers;
use super::gpu::Gpu;
use super::pipelines::Pipeline;
use super::prepare::Prepared;
use crate::error::Result;
use crate::kernels::{Access, Variable};
use crate::record::{BufferId, Dispatch};
use std::sync::Arc;

pub(super) struct Launch {
    pub path: String,
    pipeline: Arc<Pipeline>,
    bind_group: wgpu::BindGroup,
    grid: Grid,
}

enum Grid {
    /// Workgroups along x, y and z.
    Direct([u32; 3]),
    /// Read by the device from a buffer, at this byte offset.
    Indirect(wgpu::Buffer, u64),
}

impl Launch {
    pub fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, &self.bind_group, &[]);
        match &self.grid {
            Grid::Direct([x, y, z]) => pass.dispatch_workgroups(*x, *y, *z),
            Grid::Indirect(buffer, offset) => pass.dispatch_workgroups_indirect(buffer, *offset),
        }
    }
}

/// The buffers of one recording: persistent ones, those of the pool, and the params.
pub(super) struct BufferTable<'p> {
    pub buffers: &'p Buffers,
    pub prepared: &'p Prepared,
    /// Index of the recording.
    pub index: usize,
    /// The uniform buffer with the params structs of all its dispatches.
    pub params: &'p wgpu::Buffer,
}

impl<'p> BufferTable<'p> {
    /// The launch of `dispatch`, whose params struct is at byte `params_at`.
    ///
    /// # Errors
    /// The shader and the recording disagree about bindings or params; ranges of one buffer are read and written; a
    /// buffer of indirect arguments lacks the usage.
    pub fn launch(
        &self,
        gpu: &Gpu,
        dispatch: &Dispatch,
        pipeline: &Arc<Pipeline>,
        params_at: u64,
    ) -> Result<Launch> {
        dispatch.check_names(&pipeline.variables)?;
        dispatch.check_params(pipeline.params.as_ref())?;
        Ok(Launch {
            path: dispatch.path.clone(),
            pipeline: pipeline.clone(),
            bind_group: self.bind_group(gpu, dispatch, pipeline, params_at)?,
            grid: self.grid(dispatch)?,
        })
    }

    fn bind_group(
        &self,
        gpu: &Gpu,
        dispatch: &Dispatch,
        pipeline: &Pipeline,
        params_at: u64,
    ) -> Result<wgpu::BindGroup> {
        let range = |buffer, offset, bytes| {
            let size = std::num::NonZeroU64::new(bytes);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
        };
        let (mut entries, mut bound) = (Vec::new(), Vec::new());
        for variable in &pipeline.variables {
            let resource = if variable.access == Access::Uniform {
                range(self.params, params_at, dispatch.params.len() as u64)
            } else {
                let binding = dispatch.binding_of(variable)?;
                let nowhere =
                    || dispatch.fault(&format!("the tensor of `{}` has no buffer", binding.variable));
                let (buffer, start) = self.place(binding.buffer).ok_or_else(nowhere)?;
                bound.push((variable, buffer));
                range(buffer, start + binding.offset, binding.bytes)
            };
            entries.push(wgpu::BindGroupEntry { binding: variable.index, resource });
        }
        check_usage(dispatch, &bound)?;
        Ok(gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&dispatch.path),
            layout: &pipeline.layout,
            entries: &entries,
        }))
    }

    fn grid(&self, dispatch: &Dispatch) -> Result<Grid> {
        let Some(arguments) = dispatch.arguments else { return Ok(Grid::Direct(dispatch.grid)) };
        let nowhere = || dispatch.fault("its indirect arguments have no buffer");
        let (buffer, start) = self.place(arguments.buffer).ok_or_else(nowhere)?;
        if !buffer.usage().contains(wgpu::BufferUsages::INDIRECT) {
            let remedy = "create it with wgpu::BufferUsages::INDIRECT too";
            let what = format!("the buffer of its indirect arguments lacks the usage INDIRECT; {remedy}");
            return Err(dispatch.fault(&what));
        }
        Ok(Grid::Indirect(buffer.clone(), start + arguments.offset))
    }

    /// The buffer of `buffer`, from the pool or persistent, and the byte at which its data starts.
    pub fn place(&self, buffer: BufferId) -> Option<(&'p wgpu::Buffer, u64)> {
        match buffer {
            BufferId::Persistent(id) => Some((&self.buffers.range(id).buffer, self.buffers.range(id).start)),
            transient => self.prepared.place(self.index, transient),
        }
    }
}

/// Fails if `dispatch` both reads and writes one of the buffers that `bound` pairs with its variables: WebGPU tracks
/// usage by buffer, not by range.
fn check_usage(dispatch: &Dispatch, bound: &[(&Variable, &wgpu::Buffer)]) -> Result<()> {
    for (written, buffer) in bound.iter().filter(|(variable, _)| variable.access == Access::ReadWrite) {
        let is_read = |(variable, other): &&(&Variable, &wgpu::Buffer)| {
            variable.access == Access::Read && other == buffer
        };
        if let Some((read, _)) = bound.iter().find(is_read) {
            return Err(dispatch.fault(&format!(
                "`{}` is read and `{}` written in one buffer, which WebGPU allows in no dispatch; place their \
                 tensors in two buffers",
                read.name, written.name
            )));
        }
    }
    Ok(())
}
