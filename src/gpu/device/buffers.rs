//! Persistent buffers: allocated here, or ranges of an application's own.

use super::fault::SMALLER;
use super::gpu::Gpu;
use crate::error::{Error, Result};
use crate::record::{BufferId, Consumer, LARGEST, PersistentId, Persistents};

/// The persistent buffers, by id. Those allocated here are zero-filled.
pub struct Buffers {
    ranges: Vec<BufferRange>,
}

/// A range of a buffer that holds one persistent buffer.
pub(super) struct BufferRange {
    pub buffer: wgpu::Buffer,
    /// Byte offset in `buffer`.
    pub start: u64,
    /// Length in bytes, a multiple of 4.
    pub bytes: u64,
    label: String,
}

impl Buffers {
    /// The range that holds the persistent buffer `id`.
    pub(super) fn range(&self, id: PersistentId) -> &BufferRange {
        &self.ranges[id.0 as usize]
    }

    /// The range that holds the persistent buffer `id`, as a source of copies.
    pub(super) fn source(&self, id: PersistentId) -> Result<&BufferRange> {
        self.range(id).allowing(wgpu::BufferUsages::COPY_SRC, "COPY_SRC")
    }

    /// The range that holds the persistent buffer `id`, as a target of copies and writes.
    pub(super) fn target(&self, id: PersistentId) -> Result<&BufferRange> {
        self.range(id).allowing(wgpu::BufferUsages::COPY_DST, "COPY_DST")
    }
}

impl BufferRange {
    fn allowing(&self, usage: wgpu::BufferUsages, name: &str) -> Result<&Self> {
        match self.buffer.usage().contains(usage) {
            true => Ok(self),
            false => Err(Error::Device(format!(
                "buffer `{}` lacks the usage {name}; create it with wgpu::BufferUsages::{name} too",
                self.label
            ))),
        }
    }
}

impl Gpu {
    /// Allocates the persistent buffers.
    ///
    /// # Errors
    /// A buffer over the size limit, or out of memory: the message names the buffer and the largest of the list.
    pub async fn make_persistent(&self, list: &Persistents) -> Result<Buffers> {
        self.bind_persistent(list, &[]).await
    }

    /// Persistent buffers of which some are ranges of an application's buffers: `given` pairs the buffer of a tensor
    /// with the range that holds it. The others are allocated.
    ///
    /// A range must hold the tensor's rows with their padding (`Tensor::bytes`). Replays keep the buffer alive. Ranges
    /// of one buffer can be bound together in a dispatch only if it writes none of them, because WebGPU tracks usage by
    /// buffer.
    ///
    /// # Errors
    /// As [`make_persistent`](Self::make_persistent); a buffer that is not persistent, a range that is too short or
    /// misaligned (the device's `min_storage_buffer_offset_alignment`), or a buffer without the usage `STORAGE`.
    /// Reading also needs the usage `COPY_SRC`, writing `COPY_DST`, and arguments of indirect dispatches `INDIRECT`; it
    /// is an error where one is missing.
    ///
    /// # Examples
    ///
    /// ```
    /// use gristmill::device::{Gpu, GpuOptions};
    /// use gristmill::element::Element::F32;
    /// use gristmill::record::Persistents;
    /// use gristmill::wgpu::{BufferDescriptor, BufferUsages};
    ///
    /// # fn main() -> gristmill::error::Result<()> {
    /// # pollster::block_on(async {
    /// # let instance = gristmill::wgpu::Instance::default();
    /// # let adapter = instance.request_adapter(&Default::default()).await.expect("an adapter");
    /// # let (device, queue) = adapter.request_device(&Default::default()).await.expect("a device");
    /// let gpu = Gpu::from_device(&device, &queue, &GpuOptions::default())?;
    /// let usage = BufferUsages::STORAGE | BufferUsages::COPY_DST;
    /// let buffer =
    ///     device.create_buffer(&BufferDescriptor { label: None, size: 1024, usage, mapped_at_creation: false });
    ///
    /// let mut persistents = Persistents::new();
    /// let x = persistents.tensor("x", 8, 4, F32); // 128 bytes
    /// gpu.bind_persistent(&persistents, &[(x.buffer, buffer.slice(256..384))]).await?;
    ///
    /// let short = gpu.bind_persistent(&persistents, &[(x.buffer, buffer.slice(1000..))]).await;
    /// assert!(short.err().is_some_and(|error| error.to_string().starts_with("buffer `x`")));
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub async fn bind_persistent(
        &self,
        list: &Persistents,
        given: &[(BufferId, wgpu::BufferSlice<'_>)],
    ) -> Result<Buffers> {
        let consumers = || {
            let all = list.buffers().iter();
            let mut all: Vec<Consumer> =
                all.map(|(label, bytes)| Consumer { label: label.clone(), bytes: *bytes }).collect();
            all.sort_by_key(|c| std::cmp::Reverse(c.bytes));
            all.truncate(LARGEST);
            all
        };
        let is_known = |id: BufferId| match id {
            BufferId::Persistent(id) => (id.0 as usize) < list.buffers().len(),
            BufferId::Transient(_) => false,
        };
        if let Some((id, _)) = given.iter().find(|(id, _)| !is_known(*id)) {
            let message = format!("a range was given for {id:?}, which is not among the persistent buffers");
            return Err(Error::Device(message));
        }
        let mut ranges = Vec::with_capacity(list.buffers().len());
        for (index, (label, bytes)) in list.buffers().iter().enumerate() {
            let id = BufferId::Persistent(PersistentId(index as u32));
            let slice = given.iter().find(|(given, _)| *given == id).map(|(_, slice)| slice);
            let (buffer, start) = match slice {
                Some(slice) => (self.checked(label, *bytes, slice)?, slice.offset()),
                None => (self.storage(label, *bytes, consumers).await?, 0),
            };
            ranges.push(BufferRange {
                buffer,
                start,
                bytes: bytes.next_multiple_of(4),
                label: label.clone(),
            });
        }
        Ok(Buffers { ranges })
    }

    /// Writes `data` at byte `at` of a persistent buffer. For set-up and tests: wgpu allocates a staging buffer per
    /// call, and frees it when a later submission has run. If an application's buffer lacks the usage `COPY_DST`, the
    /// next [`check`](Self::check) fails.
    pub fn write(&self, buffers: &Buffers, to: PersistentId, at: u64, data: &[u8]) {
        match buffers.target(to) {
            Ok(range) => self.queue.write_buffer(&range.buffer, range.start + at, data),
            Err(error) => self.fault(error),
        }
    }

    /// Submits all pending [`write`](Self::write)s, so that their staging buffers can be freed. Does not wait.
    pub fn submit_writes(&self) {
        self.queue.submit([]);
    }

    /// The buffer of `slice`, if it can hold the persistent buffer `label` of `bytes` bytes.
    fn checked(&self, label: &str, bytes: u64, slice: &wgpu::BufferSlice<'_>) -> Result<wgpu::Buffer> {
        let refused = |why: String| Err(Error::Device(format!("buffer `{label}`: {why}")));
        let alignment = u64::from(self.device.limits().min_storage_buffer_offset_alignment);
        if !slice.offset().is_multiple_of(alignment) {
            let offset = slice.offset();
            return refused(format!(
                "its range starts at byte {offset}; start it at a multiple of {alignment}, as the device demands"
            ));
        }
        let bytes = bytes.next_multiple_of(4);
        if slice.size() < bytes {
            let given = slice.size();
            return refused(format!(
                "its range has {given} bytes and its tensors take {bytes}; give a longer range"
            ));
        }
        if !slice.buffer().usage().contains(wgpu::BufferUsages::STORAGE) {
            return refused(
                "it lacks the usage STORAGE; create it with wgpu::BufferUsages::STORAGE too".into(),
            );
        }
        Ok(slice.buffer().clone())
    }

    /// Allocates a buffer that kernels, copies and indirect dispatches may use.
    pub(super) async fn storage(
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

    /// Allocates a buffer; one that the host writes starts mapped.
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
            mapped_at_creation: usage.contains(wgpu::BufferUsages::MAP_WRITE),
        });
        if scope.pop().await.is_some() {
            let what = format!("allocating `{label}` of {:.1} MiB", bytes as f64 / 1048576.0);
            let largest = largest();
            let remedy = match largest.as_slice() {
                [] => SMALLER.to_string(),
                largest => format!("the largest consumers: {}; {SMALLER}", Consumer::list(largest)),
            };
            return Err(Error::OutOfMemory { what, remedy });
        }
        Ok(buffer)
    }
}
