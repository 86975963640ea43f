//! An open device: queue, limits, and the errors it has reported.

use super::adapter::{self, AdapterReport};
use super::fault::Fault;
use super::options::{GpuOptions, HANG_TIMEOUT};
use super::pipelines::{PipelineCaching, Pipelines};
use super::submissions::{MAX_AHEAD, Pace, Submissions};
use crate::error::{Error, Result};
use crate::gpu::device::submission_split::SUBMISSION_TIME;
use crate::kernels::{Capabilities, Limits, Tier, Units};
use std::time::Duration;

/// An open adapter: device, queue, pipelines and submissions in flight.
///
/// # Examples
///
/// ```
/// use gristmill::device::{Gpu, GpuOptions};
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// let gpu = Gpu::request(&GpuOptions::default()).await?;
/// println!("{}: {}", gpu.report(), gpu.capabilities());
/// # Ok(())
/// # })
/// # }
/// ```
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

/// wgpu's counters of live objects. The difference between two readings is the number created minus the number dropped
/// in between.
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
    /// Uses an application's own device.
    ///
    /// The kernels use the limits that the device was opened with, which must be at least `wgpu::Limits::default()`.
    /// They need no feature; with `SHADER_F16`, [`try_native_f16`](Self::try_native_f16) can make kernels of f16
    /// faster. The tier follows from the kind of adapter unless `options` names one. The handlers of uncaptured errors
    /// and of a lost device stay the application's, no pipeline cache is read or written, and the polling thread starts
    /// with the first submission of this crate, if at all ([`GpuOptions::polling`]). `device_name`, `device_id` and
    /// `local_rank` of `options` are not used.
    ///
    /// # Errors
    /// A limit of the device that is below what the kernels use; [`Tier::Matrix`].
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
        if options.tier == Some(Tier::Matrix) {
            return Err(Error::NoAdapter(format!(
                "{}: tier matrix needs a device that Gpu::request opens, which tests the matrices",
                report.name
            )));
        }
        let pipelines = Pipelines::new(device, options, PipelineCaching::Off);
        Ok(Self::of(device.clone(), queue.clone(), report, pipelines, options))
    }

    /// Wraps a device and its queue; no callback reports errors to it yet.
    pub(super) fn of(
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
                units: Units::of(&report.name),
                matrices: None,
                software_workgroup: 8,
                lanes: 1,
                gathers: report.gathers() && device.features().contains(wgpu::Features::SHADER_INT64),
                native_f16: false,
                widens_in_integers: false,
                splits_f32: options.splits_f32,
            },
            submissions: Submissions::new(&device, &queue, options.polling, pace, &fault),
            submission_time: options.submission_time.or((!report.is_software).then_some(SUBMISSION_TIME)),
            device,
            queue,
            report,
            fault,
        }
    }

    /// Properties of the adapter.
    pub fn report(&self) -> &AdapterReport {
        &self.report
    }

    /// The capabilities for kernel planning.
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// Sets the number of compute units that matrix products recorded from now on are tiled for, so that all ranks use
    /// the same tiling.
    pub fn divide_for(&mut self, units: Units) {
        self.capabilities.units = units;
    }

    /// Whether timestamps are available, which [`Encoder::replay_timed`](super::Encoder::replay_timed) needs.
    pub fn has_timestamps(&self) -> bool {
        self.has_timestamps
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

    /// Bytes of the memory blocks from which wgpu suballocates buffers, if it does so itself: on Vulkan and DX12.
    #[doc(hidden)]
    pub fn reserved_bytes(&self) -> Option<u64> {
        self.device.generate_allocator_report().map(|report| report.total_reserved_bytes)
    }

    /// Keeps an error for [`check`](Self::check) to report.
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
