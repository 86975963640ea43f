//! Prepares recordings for replay: compiles pipelines, allocates buffers, creates bind groups.

use super::gpu::Gpu;
use super::pipelines::Pipeline;
use crate::error::{Error, Result};
use crate::kernels::{Access, Kernel};
use crate::record::{BufferId, Consumer, Dispatch, MemoryPlan, Persistents, Recording};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

/// The persistent buffers, by id. Zero-filled on creation.
pub struct Buffers {
    pub(super) buffers: Vec<wgpu::Buffer>,
}

/// A prepared recording: a replay only encodes.
pub struct Program {
    pub(super) name: &'static str,
    pub(super) launches: Vec<Launch>,
    /// End of each submission, as launch indices, once the first replay has been measured.
    pub(super) slices: OnceLock<Vec<usize>>,
}

pub(super) struct Launch {
    pub pipeline: Arc<Pipeline>,
    pub bind_group: wgpu::BindGroup,
    pub grid: Grid,
    pub path: String,
    pub kernel: Kernel,
}

pub(super) enum Grid {
    /// Workgroups along x, y and z.
    Direct([u32; 3]),
    /// Read by the device from a buffer, at this byte offset.
    Indirect(wgpu::Buffer, u64),
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

/// Programs and the pool they share.
pub struct Prepared {
    /// One program for each recording, in the same order.
    pub programs: Vec<Program>,
    pub(super) pool: Vec<wgpu::Buffer>,
    pub(super) plan: MemoryPlan,
    pub(super) guard: Guard,
}

impl Program {
    /// Number of dispatches that a replay encodes.
    pub fn launches(&self) -> usize {
        self.launches.len()
    }
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
    /// Allocates the persistent buffers.
    ///
    /// # Errors
    /// A buffer over the size limit, or out of memory: the message names the buffer and the largest of the list.
    pub async fn make_persistent(&self, list: &Persistents) -> Result<Buffers> {
        let consumers = || {
            let all = list.buffers().iter();
            let mut all: Vec<Consumer> =
                all.map(|(label, bytes)| Consumer { label: label.clone(), bytes: *bytes }).collect();
            all.sort_by_key(|c| std::cmp::Reverse(c.bytes));
            all
        };
        let mut buffers = Vec::with_capacity(list.buffers().len());
        for (label, bytes) in list.buffers() {
            buffers.push(self.storage(label, *bytes, consumers).await?);
        }
        Ok(Buffers { buffers })
    }

    /// Prepares recordings that never run concurrently; they share one pool.
    ///
    /// # Errors
    /// A shader that does not compile, a buffer over the size limit, out of memory, or a device failure.
    pub async fn prepare(
        &self,
        recordings: &[&Recording],
        buffers: &Buffers,
        guard: Guard,
    ) -> Result<Prepared> {
        let kernels: Vec<&Kernel> =
            recordings.iter().flat_map(|r| r.dispatches.iter().map(|d| &d.kernel)).collect();
        let pipelines = self.pipelines.get(self, &kernels)?;
        let plan = MemoryPlan::new(recordings);
        let consumers = || MemoryPlan::largest(recordings, 5);
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
        let mut launches = Vec::with_capacity(recording.dispatches.len());
        let mut params_at = 0;
        for dispatch in &recording.dispatches {
            let pipeline = pipelines[&dispatch.kernel].clone();
            let locate = |buffer: BufferId| match buffer {
                BufferId::Persistent(id) => Some((&buffers.buffers[id.0 as usize], 0)),
                transient => prepared.place(index, transient),
            };
            let bind_group = self.bind_group(dispatch, &pipeline, &params, params_at, locate)?;
            params_at += dispatch.params_slot();
            let grid = match dispatch.arguments {
                None => Grid::Direct(dispatch.grid),
                Some(arguments) => {
                    let fault = || dispatch.fault("its indirect arguments have no buffer");
                    let (buffer, start) = locate(arguments.buffer).ok_or_else(fault)?;
                    Grid::Indirect(buffer.clone(), start + arguments.offset)
                }
            };
            launches.push(Launch {
                pipeline,
                bind_group,
                grid,
                path: dispatch.path.clone(),
                kernel: dispatch.kernel.clone(),
            });
        }
        Ok(Program { name: recording.name, launches, slices: OnceLock::new() })
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
        let buffer = self.buffer("params", bytes.len() as u64, usage, Vec::new).await?;
        self.queue.write_buffer(&buffer, 0, &bytes);
        Ok(buffer)
    }

    fn bind_group<'b>(
        &self,
        dispatch: &Dispatch,
        pipeline: &Pipeline,
        params: &'b wgpu::Buffer,
        params_at: u64,
        locate: impl Fn(BufferId) -> Option<(&'b wgpu::Buffer, u64)>,
    ) -> Result<wgpu::BindGroup> {
        dispatch.check_names(&pipeline.variables)?;
        let range = |buffer, offset, bytes| {
            let size = std::num::NonZeroU64::new(bytes);
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size })
        };
        let mut entries = Vec::new();
        for variable in &pipeline.variables {
            let resource = if variable.access == Access::Uniform {
                range(params, params_at, dispatch.params.len() as u64)
            } else {
                let binding = dispatch.binding_of(variable)?;
                let fault = || dispatch.fault(&format!("the tensor of `{}` has no buffer", binding.variable));
                let (buffer, start) = locate(binding.buffer).ok_or_else(fault)?;
                range(buffer, start + binding.offset, binding.bytes)
            };
            entries.push(wgpu::BindGroupEntry { binding: variable.index, resource });
        }
        Ok(self.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&dispatch.path),
            layout: &pipeline.layout,
            entries: &entries,
        }))
    }

    async fn storage(
        &self,
        label: &str,
        bytes: u64,
        largest: impl Fn() -> Vec<Consumer>,
    ) -> Result<wgpu::Buffer> {
        let limit = self.capabilities().limits.buffer_bytes;
        if bytes > limit {
            return Err(Error::Plan(format!(
                "buffer `{label}` takes {bytes} bytes, more than the limit of {limit}; make the batch or the model smaller"
            )));
        }
        let copied = wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        // INDIRECT on all of them: pool buffers are assigned by lifetime, so any of them may hold indirect arguments.
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::INDIRECT | copied;
        self.buffer(label, bytes, usage, largest).await
    }

    pub(super) async fn buffer(
        &self,
        label: &str,
        bytes: u64,
        usage: wgpu::BufferUsages,
        largest: impl Fn() -> Vec<Consumer>,
    ) -> Result<wgpu::Buffer> {
        let size = bytes.next_multiple_of(4);
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        });
        if scope.pop().await.is_some() {
            let listed: Vec<String> = largest()
                .iter()
                .take(5)
                .map(|c| format!("{} {:.1} MiB", c.label, c.bytes as f64 / 1048576.0))
                .collect();
            return Err(Error::Device(format!(
                "out of memory allocating `{label}` of {bytes} bytes; the largest consumers: {}; make the \
                 batch or the model smaller",
                listed.join(", ")
            )));
        }
        Ok(buffer)
    }
}
