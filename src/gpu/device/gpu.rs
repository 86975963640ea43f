//! An open device: queue, limits, and the errors it has reported.

use super::adapter::{self, AdapterReport};
use super::buffers::SMALLER;
use super::encoder::Encoder;
use super::lanes::{lanes_share_loads, subgroup_size};
use super::open::open;
use super::options::{GpuOptions, HANG_TIMEOUT};
use super::pipelines::{PipelineCaching, Pipelines};
use super::slices::SUBMISSION_TIME;
use super::submissions::{MAX_AHEAD, Pace, Submissions};
use crate::error::{Error, Result};
use crate::kernels::{Capabilities, Limits};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// An open adapter: device, queue, pipelines and submissions in flight.
pub struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) pipelines: Pipelines,
    pub(super) submissions: Submissions,
    report: AdapterReport,
    pub(super) capabilities: Capabilities,
    has_timestamps: bool,
    submission_time: Option<Duration>,
    pub(super) fault: Fault,
}

/// The first error that the device has reported.
#[derive(Clone, Default)]
pub(super) struct Fault(Arc<Mutex<Option<Error>>>);

/// wgpu's counters of live objects. The difference between two readings is what was created or dropped in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuCounters {
    /// Live compute pipelines.
    pub pipelines: isize,
    /// Live buffers, wgpu's internal ones included.
    pub buffers: isize,
    /// Total bytes of those buffers.
    pub buffer_bytes: isize,
    /// Live bind groups.
    pub bind_groups: isize,
}

impl Gpu {
    /// Opens an adapter with its full limits, and probes whether its lanes can share loads.
    ///
    /// # Errors
    /// No adapter, none of that name or number, or one that cannot be opened.
    pub async fn request(options: &GpuOptions) -> Result<Self> {
        let instance = adapter::instance(options.validation);
        let adapter = adapter::choose(&instance, options).await?;
        let report = AdapterReport::of(&adapter);
        if let Some(notice) = adapter::fxc_notice(&report).await {
            tracing::warn!("{notice}");
        }
        // Only the software tier uses subgroups, and requesting the feature changes how GPU drivers compile every
        // kernel.
        let lanes = if report.is_software { subgroup_size(&adapter) } else { 1 };
        let mut gpu = Self::open(&adapter, options, lanes > 1).await?;
        if lanes > 1 {
            match lanes_share_loads(&gpu, lanes).await {
                Ok(true) => gpu.capabilities.lanes = lanes,
                Ok(false) => tracing::warn!(
                    "{}: a workgroup of {lanes} is not one subgroup; kernels run without shuffles",
                    report.name
                ),
                Err(error) => {
                    tracing::warn!(
                        "{}: the subgroup probe failed ({error}); kernels run without shuffles",
                        report.name
                    );
                    gpu = Self::open(&adapter, options, false).await?;
                }
            }
        }
        Ok(gpu)
    }

    /// Kernels on an application's own device.
    ///
    /// The kernels use the limits that the device was opened with; they need no feature (with `SHADER_F16`,
    /// [`try_native_f16`](Self::try_native_f16) can make those of f16 faster) and at least
    /// `wgpu::Limits::default()`. The tier follows from the kind of adapter unless `options` names one. The handlers of
    /// uncaptured errors and of a lost device stay the application's, no pipeline cache is read or written, and the
    /// thread that polls starts with the first submission of ours, if at all ([`GpuOptions::polling`]).
    /// `device_name`, `device_id` and `local_rank` of `options` are not used.
    ///
    /// # Errors
    /// A limit of the device that is below what the kernels use.
    ///
    /// # Examples
    ///
    /// `examples/own_device.rs` binds an application's buffers and records into its command encoder.
    ///
    /// ```
    /// use gristmill::device::{Gpu, GpuOptions};
    /// use gristmill::wgpu;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # pollster::block_on(async {
    /// let instance = wgpu::Instance::default();
    /// let adapter = instance.request_adapter(&wgpu::RequestAdapterOptions::default()).await?;
    /// let (device, queue) = adapter.request_device(&wgpu::DeviceDescriptor::default()).await?;
    /// let gpu = Gpu::from_device(&device, &queue, &GpuOptions::default())?;
    /// println!("{}: {}", gpu.report(), gpu.capabilities());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn from_device(device: &wgpu::Device, queue: &wgpu::Queue, options: &GpuOptions) -> Result<Self> {
        let report = AdapterReport::of_device(device);
        adapter::check_limits(&report.name, &device.limits())?;
        let pipelines = Pipelines::new(device, options, PipelineCaching::Off);
        Ok(Self::of(device.clone(), queue.clone(), report, pipelines, options))
    }

    async fn open(adapter: &wgpu::Adapter, options: &GpuOptions, with_subgroups: bool) -> Result<Self> {
        let (device, queue) = open(adapter, options, with_subgroups).await?;
        let pipelines = Pipelines::new(&device, options, PipelineCaching::OnDisk);
        let gpu = Self::of(device, queue, AdapterReport::of(adapter), pipelines, options);
        remember_faults(&gpu.device, &gpu.fault);
        Ok(gpu)
    }

    fn of(
        device: wgpu::Device,
        queue: wgpu::Queue,
        report: AdapterReport,
        pipelines: Pipelines,
        options: &GpuOptions,
    ) -> Self {
        let fault = Fault::default();
        let limits = Limits {
            binding_bytes: options.binding_bytes.unwrap_or(u64::MAX).min(report.binding_bytes).min(1 << 30),
            buffer_bytes: report.buffer_bytes.min(1 << 30),
        };
        let tier = options.tier.unwrap_or(report.preferred_tier());
        let pace = Pace {
            ahead: options.ahead.unwrap_or(if report.is_software { 0 } else { MAX_AHEAD }).min(MAX_AHEAD),
            hang_timeout: options.hang_timeout.unwrap_or(HANG_TIMEOUT),
        };
        Self {
            pipelines,
            has_timestamps: device.features().contains(wgpu::Features::TIMESTAMP_QUERY),
            capabilities: Capabilities {
                tier,
                limits,
                lanes: 1,
                native_f16: false,
                widens_in_integers: false,
            },
            submissions: Submissions::new(&device, &queue, options.polling, pace, &fault),
            submission_time: options.submission_time.or((!report.is_software).then_some(SUBMISSION_TIME)),
            device,
            queue,
            report,
            fault,
        }
    }

    /// The adapter.
    pub fn report(&self) -> &AdapterReport {
        &self.report
    }

    /// The capabilities for kernel planning.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Whether timestamps are available, which [`profile`](Self::profile) needs.
    pub fn has_timestamps(&self) -> bool {
        self.has_timestamps
    }

    /// A new encoder, whose commands are submitted together.
    pub fn encoder(&self) -> Encoder<'_> {
        Encoder::new(self)
    }

    /// Completes when everything submitted so far has run.
    ///
    /// # Errors
    /// A device failure.
    pub async fn wait(&self) -> Result<()> {
        self.submissions.all().await?;
        self.check()
    }

    /// Number of submissions since the device was opened.
    pub fn submissions(&self) -> u64 {
        self.submissions.count()
    }

    /// Longest duration of one submission, if limited.
    pub(super) fn submission_time(&self) -> Option<Duration> {
        self.submission_time
    }

    /// wgpu's current counters.
    pub fn counters(&self) -> GpuCounters {
        let hal = self.device.get_internal_counters().hal;
        GpuCounters {
            pipelines: hal.compute_pipelines.read(),
            buffers: hal.buffers.read(),
            buffer_bytes: hal.buffer_memory.read(),
            bind_groups: hal.bind_groups.read(),
        }
    }

    /// Bytes of the blocks of device memory out of which wgpu cuts its buffers, where it does so itself: on Vulkan and DX12.
    pub fn reserved_bytes(&self) -> Option<u64> {
        self.device.generate_allocator_report().map(|report| report.total_reserved_bytes)
    }

    /// Keeps an error that [`check`](Self::check) is to report.
    pub(super) fn fault(&self, error: Error) {
        self.fault.keep(error);
    }

    /// Fails if the device has reported an error since it was opened.
    ///
    /// # Errors
    /// The first error that was reported, with the oldest submission still in flight.
    pub fn check(&self) -> Result<()> {
        match self.fault.get() {
            None => Ok(()),
            Some(error) => {
                let pending = self.submissions.oldest();
                let pending =
                    pending.map_or(String::new(), |ops| format!(" (oldest submission in flight: {ops})"));
                let name = &self.report.name;
                Err(match error {
                    Error::OutOfMemory { what, remedy } => {
                        Error::OutOfMemory { what: format!("on {name}, {what}{pending}"), remedy }
                    }
                    error => Error::Device(format!("{name}: {error}{pending}")),
                })
            }
        }
    }
}

impl Fault {
    pub fn get(&self) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets an error that has been dealt with. A device that is lost reports the next one.
    pub fn forget(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Keeps the first error, which usually causes the others.
    fn keep(&self, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

pub(super) fn one_line(what: &str) -> String {
    what.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Stores errors that arrive in callbacks; [`Gpu::check`] reports them.
fn remember_faults(device: &wgpu::Device, fault: &Fault) {
    let slot = fault.clone();
    device.on_uncaptured_error(Arc::new(move |error| slot.keep(reported("device error", &error))));
    let slot = fault.clone();
    device.set_device_lost_callback(move |reason, what| {
        if reason != wgpu::DeviceLostReason::Destroyed {
            slot.keep(reported("device lost", &what));
        }
    });
}

/// What a callback has reported. Of a lost device, wgpu gives the cause as text alone.
fn reported(kind: &str, cause: &dyn std::fmt::Display) -> Error {
    let what = one_line(&format!("{kind}: {cause}"));
    match what.to_lowercase().contains("out of memory") {
        true => Error::OutOfMemory { what, remedy: SMALLER.to_string() },
        false => Error::Device(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words in which wgpu reports it, whether a device survives it or not.
    #[test]
    fn out_of_memory_is_told_from_other_failures() {
        let source: Box<dyn std::error::Error + Send + Sync> = "in a\nsubmission".into();
        let error = reported("device error", &wgpu::Error::OutOfMemory { source });
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
        assert_eq!(error.to_string().lines().count(), 1);
        let lost = |cause: &str| reported("device lost", &cause);
        let line = "out of memory device lost: Out of memory; make the batch or the model smaller";
        assert_eq!(lost("Out of memory").to_string(), line);
        assert!(matches!(lost("Device is lost"), Error::Device(_)));
    }
}
