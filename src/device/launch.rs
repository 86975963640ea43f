//! Launches: dispatches with their pipeline and bind group, ready to encode.

use super::buffers::Buffers;
use super::gpu::Gpu;
use super::pipelines::Pipeline;
use super::prepare::Prepared;
use crate::error::{Error, Result};
use crate::kernels::{Access, Kernel};
use crate::record::{BufferId, Dispatch};
use std::sync::Arc;

pub(super) struct Launch {
    pub path: String,
    pub kernel: Kernel,
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

/// Where the buffers of one recording are.
pub(super) struct Places<'p> {
    pub buffers: &'p Buffers,
    pub prepared: &'p Prepared,
    /// Index of the recording.
    pub index: usize,
    /// The uniform buffer with the params structs of all its dispatches.
    pub params: &'p wgpu::Buffer,
}

impl<'p> Places<'p> {
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
        check_interface(dispatch, pipeline)?;
        Ok(Launch {
            path: dispatch.path.clone(),
            kernel: dispatch.kernel.clone(),
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
        for &(index, access) in &pipeline.bindings {
            let resource = if access == Access::Uniform {
                range(self.params, params_at, dispatch.params.len() as u64)
            } else {
                let missing = || fault(dispatch, &format!("the recording passes no binding {index}"));
                let (_, binding) = dispatch.bindings.iter().find(|(i, _)| *i == index).ok_or_else(missing)?;
                let nowhere = || fault(dispatch, &format!("binding {index} has no buffer"));
                let (buffer, start) = self.place(binding.buffer).ok_or_else(nowhere)?;
                bound.push((index, buffer, access));
                range(buffer, start + binding.offset, binding.bytes)
            };
            entries.push(wgpu::BindGroupEntry { binding: index, resource });
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
        let nowhere = || fault(dispatch, "its indirect arguments have no buffer");
        let (buffer, start) = self.place(arguments.buffer).ok_or_else(nowhere)?;
        if !buffer.usage().contains(wgpu::BufferUsages::INDIRECT) {
            let remedy = "create it with wgpu::BufferUsages::INDIRECT too";
            let what = format!("the buffer of its indirect arguments lacks the usage INDIRECT; {remedy}");
            return Err(fault(dispatch, &what));
        }
        Ok(Grid::Indirect(buffer.clone(), start + arguments.offset))
    }

    fn place(&self, buffer: BufferId) -> Option<(&'p wgpu::Buffer, u64)> {
        match buffer {
            BufferId::Persistent(id) => Some((&self.buffers.range(id).buffer, self.buffers.range(id).start)),
            transient => self.prepared.place(self.index, transient),
        }
    }
}

/// Fails unless the shader takes the bindings and the params that the recording passes.
fn check_interface(dispatch: &Dispatch, pipeline: &Pipeline) -> Result<()> {
    let is_used = |index: u32| pipeline.bindings.iter().any(|(used, _)| *used == index);
    if let Some((index, _)) = dispatch.bindings.iter().find(|(index, _)| !is_used(*index)) {
        let what = format!("the recording passes binding {index}, which the entry point does not use");
        return Err(fault(dispatch, &what));
    }
    let difference = match &pipeline.params {
        Some(layout) => layout.difference(dispatch.fields, dispatch.params.len()),
        None if dispatch.params.is_empty() => None,
        None => Some("the recording passes params, and the shader declares no uniform struct".to_string()),
    };
    difference.map_or(Ok(()), |what| Err(fault(dispatch, &what)))
}

/// Fails if `bound`, as (index, buffer, access), has a buffer that the dispatch both reads and writes: WebGPU tracks usage
/// by buffer, not by range.
fn check_usage(dispatch: &Dispatch, bound: &[(u32, &wgpu::Buffer, Access)]) -> Result<()> {
    for (written, buffer, _) in bound.iter().filter(|(_, _, access)| *access == Access::ReadWrite) {
        let read = bound.iter().find(|(_, other, access)| *access == Access::Read && other == buffer);
        if let Some((read, _, _)) = read {
            return Err(fault(
                dispatch,
                &format!(
                    "binding {read} is read and binding {written} written in one buffer, which WebGPU allows in no \
                     dispatch; place their tensors in two buffers"
                ),
            ));
        }
    }
    Ok(())
}

fn fault(dispatch: &Dispatch, what: &str) -> Error {
    let path = if dispatch.path.is_empty() { "a dispatch" } else { &dispatch.path };
    Error::Device(format!("{path} ({}): {what}", dispatch.kernel))
}
