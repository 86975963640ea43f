//! One opened device: its queue, its limits, and what went wrong on it.

use super::adapter::{self, AdapterReport};
use super::encoder::Encoder;
use super::lanes::{hear_each_other, subgroup_size};
use super::pipelines::Pipelines;
use super::slices::SUBMISSION_TIME;
use super::submissions::{MAX_AHEAD, Submissions};
use crate::error::{Error, Result};
use crate::kernels::{Capabilities, Limits, Tier};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How to open a device.
#[derive(Clone, Debug, Default)]
pub struct GpuOptions {
    /// Part of the adapter's name; the fastest kind of adapter if none.
    pub device_name: Option<String>,
    /// The tier to use instead of the adapter's preferred one.
    pub tier: Option<Tier>,
    /// Keep the shader's bounds checks and loop bounds: for tests. Off in training, where recordings prove every index.
    pub checked_shaders: bool,
    /// A lower binding limit than the adapter's: tests make small tensors span several segments with it.
    pub binding_bytes: Option<u64>,
    /// How long one submission may take: longer programs are cut, as their first replay measures. By default 0.2 s on a GPU,
    /// which may drive a display, and any time on a software adapter.
    pub submission_time: Option<Duration>,
    /// How many submissions the host may run ahead of the device, at most 3. By default 3 on a GPU, and none on a software
    /// adapter, which executes a submission while it is submitted: there is nothing to gain, and wgpu lets nobody poll while
    /// it submits, so that a result would be seen, and its time taken, a step later.
    pub ahead: Option<usize>,
}

/// An adapter, opened.
pub struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) pipelines: Pipelines,
    pub(super) submissions: Submissions,
    report: AdapterReport,
    capabilities: Capabilities,
    has_timestamps: bool,
    submission_time: Option<Duration>,
    fault: Fault,
}

/// The first error that the device reported.
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<String>>>);

/// What wgpu counts: what exists now, so a difference between two moments is what was made or dropped between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCounters {
    /// Compute pipelines alive.
    pub pipelines: isize,
    /// Buffers alive, wgpu's own included.
    pub buffers: isize,
    /// Bytes of those buffers.
    pub buffer_bytes: isize,
    /// Bind groups alive.
    pub bind_groups: isize,
}

impl Gpu {
    /// Opens an adapter with the limits it has.
    ///
    /// # Errors
    /// No adapter, none of that name, or one that cannot be opened.
    pub async fn request(options: &GpuOptions) -> Result<Self> {
        let instance = adapter::instance();
        let adapter = adapter::choose(&instance, options.device_name.as_deref()).await?;
        let report = AdapterReport::of(&adapter);
        // Only kernels for CPU adapters share between lanes; a GPU's driver would compile all others differently, too.
        let lanes = if report.is_software { subgroup_size(&adapter) } else { 1 };
        let mut gpu = Self::open(&adapter, options, lanes > 1).await?;
        if lanes > 1 {
            match hear_each_other(&gpu, lanes).await {
                Ok(true) => gpu.capabilities.lanes = lanes,
                Ok(false) => tracing::warn!(
                    "{}: a workgroup of {lanes} is no subgroup; kernels do without",
                    report.name
                ),
                Err(error) => {
                    tracing::warn!(
                        "{}: lanes cannot hear each other ({error}); kernels do without",
                        report.name
                    );
                    gpu = Self::open(&adapter, options, false).await?;
                }
            }
        }
        Ok(gpu)
    }

    async fn open(adapter: &wgpu::Adapter, options: &GpuOptions, with_subgroups: bool) -> Result<Self> {
        let report = AdapterReport::of(adapter);
        let mut wanted = wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::PIPELINE_CACHE;
        wanted.set(wgpu::Features::SUBGROUP, with_subgroups);
        let features = adapter.features() & wanted;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("gristmill"),
            required_features: features,
            required_limits: adapter.limits(),
            memory_hints: wgpu::MemoryHints::Performance,
            ..wgpu::DeviceDescriptor::default()
        };
        let opened = adapter.request_device(&descriptor).await;
        let (device, queue) =
            opened.map_err(|e| Error::NoAdapter(format!("{} could not be opened: {e}", report.name)))?;
        let fault = Fault::default();
        remember_faults(&device, &fault);
        let limits = Limits {
            binding_bytes: options.binding_bytes.unwrap_or(u64::MAX).min(report.binding_bytes).min(1 << 30),
            buffer_bytes: report.buffer_bytes.min(1 << 30),
        };
        let tier = options.tier.unwrap_or(report.preferred_tier());
        let ahead = options.ahead.unwrap_or(if report.is_software { 0 } else { MAX_AHEAD }).min(MAX_AHEAD);
        Ok(Self {
            pipelines: Pipelines::new(&device, &adapter.get_info(), features, options.checked_shaders),
            has_timestamps: features.contains(wgpu::Features::TIMESTAMP_QUERY),
            capabilities: Capabilities { tier, limits, lanes: 1 },
            submissions: Submissions::new(&device, ahead, &fault),
            submission_time: options.submission_time.or((!report.is_software).then_some(SUBMISSION_TIME)),
            device,
            queue,
            report,
            fault,
        })
    }

    /// The adapter it opened.
    pub fn report(&self) -> &AdapterReport {
        &self.report
    }

    /// What plans may use on it.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Whether [`profile`](Self::profile) works.
    pub fn has_timestamps(&self) -> bool {
        self.has_timestamps
    }

    /// Commands to be submitted together.
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder::new(self)
    }

    /// Completes when everything submitted so far has run.
    ///
    /// # Errors
    /// A device that fails.
    pub async fn wait(&self) -> Result<()> {
        self.submissions.all().await?;
        self.check()
    }

    /// How many submissions there were since it was opened.
    pub fn submissions(&self) -> u64 {
        self.submissions.count()
    }

    /// How long one submission may take, if that is limited.
    pub(super) fn submission_time(&self) -> Option<Duration> {
        self.submission_time
    }

    /// What wgpu counts at this moment.
    pub fn counters(&self) -> GpuCounters {
        let hal = self.device.get_internal_counters().hal;
        GpuCounters {
            pipelines: hal.compute_pipelines.read(),
            buffers: hal.buffers.read(),
            buffer_bytes: hal.buffer_memory.read(),
            bind_groups: hal.bind_groups.read(),
        }
    }

    /// The error that the device reported since it was opened, if any.
    pub fn check(&self) -> Result<()> {
        match self.fault.get() {
            None => Ok(()),
            Some(what) => {
                let pending = self.submissions.oldest();
                let pending =
                    pending.map_or(String::new(), |ops| format!(" (oldest unfinished work: {ops})"));
                Err(Error::Device(format!("{}: {what}{pending}", self.report.name)))
            }
        }
    }
}

impl Fault {
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the first, which is the cause of the others.
    fn keep(&self, what: &str) {
        let one_line = what.split_whitespace().collect::<Vec<_>>().join(" ");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(one_line);
    }
}

/// Errors arrive in callbacks; they are reported at the next check.
fn remember_faults(device: &wgpu::Device, fault: &Fault) {
    let slot = fault.clone();
    device.on_uncaptured_error(Arc::new(move |error| slot.keep(&format!("the device reports: {error}"))));
    let slot = fault.clone();
    device.set_device_lost_callback(move |reason, what| {
        if reason != wgpu::DeviceLostReason::Destroyed {
            slot.keep(&format!("the device was lost: {what}"));
        }
    });
}
