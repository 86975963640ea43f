//! Opens an adapter: requests the features and limits of its device, and tests its matrices or whether its lanes can
//! share loads.

use super::adapter::{self, AdapterReport, check_limits};
use super::fault::remember_faults;
use super::gpu::Gpu;
use super::lanes::{lanes_share_loads, subgroup_size};
use super::matrices;
use super::options::GpuOptions;
use super::pipelines::{PipelineCaching, Pipelines};
use super::vulkan::open_without_robustness;
use crate::error::{Error, Result};
use crate::kernels::Tier;

/// Size of the blocks of device memory that smaller buffers share, in bytes; a larger buffer has a block of its own.
/// wgpu's presets go up to 256 MiB: then a buffer of 130 MiB would leave nearly half of its block unused.
const BLOCK: u64 = 8 << 20;

impl Gpu {
    /// Opens an adapter with its full limits. Tests its matrices if `options` ask for them, and otherwise whether its
    /// lanes can share loads.
    ///
    /// Vulkan's loader and drivers may write to standard error meanwhile, past any logger: without a desktop session
    /// they write `XDG_RUNTIME_DIR is invalid or not set`, once for each display that Mesa looks for. The line is
    /// harmless, and setting the variable to a folder of the user's silences it. This crate itself logs to `tracing`.
    ///
    /// # Errors
    /// No adapter; none of that name or number; an adapter that cannot be opened, or cannot run the tier of `options`.
    pub async fn request(options: &GpuOptions) -> Result<Self> {
        let instance = adapter::instance(options.validation);
        let adapter = adapter::choose(&instance, options).await?;
        let report = AdapterReport::of(&adapter);
        if let Some(notice) = adapter::fxc_notice(&report).await {
            tracing::warn!("{notice}");
        }
        if let Some(gpu) = Self::with_matrices(&adapter, options).await? {
            return Ok(gpu);
        }
        if options.splits_f32 {
            let tier = options.tier.unwrap_or(report.preferred_tier()).name();
            tracing::warn!(
                "context.f32_products changes nothing on tier {tier}, only on matrix; {} has {}",
                report.name,
                report.matrix_shapes()
            );
        }
        // Of the other tiers only software uses subgroups, and requesting the feature changes how GPU drivers compile
        // every kernel.
        let lanes = if report.is_software { subgroup_size(&adapter) } else { 1 };
        let shares_loads = lanes > 1 && report.shuffles_fast(lanes);
        let of_lanes = if shares_loads { wgpu::Features::SUBGROUP } else { wgpu::Features::empty() };
        let mut gpu = Self::open(&adapter, options, of_lanes).await?;
        gpu.capabilities.software_workgroup = if lanes > 1 { lanes } else { 8 };
        if shares_loads {
            match lanes_share_loads(&gpu, lanes).await {
                Ok(true) => gpu.capabilities = gpu.capabilities.with_lanes(lanes),
                Ok(false) => tracing::warn!(
                    "{}: a workgroup of {lanes} is not one subgroup; kernels run without shuffles",
                    report.name
                ),
                Err(error) => {
                    tracing::warn!(
                        "{}: the subgroup probe failed ({error}); kernels run without shuffles",
                        report.name
                    );
                    gpu = Self::open(&adapter, options, wgpu::Features::empty()).await?;
                }
            }
        }
        Ok(gpu)
    }

    /// Opens the adapter for [`Tier::Matrix`], if `options` ask for the tier and the matrices pass a test; otherwise
    /// `None`.
    ///
    /// # Errors
    /// The tier is forced, and the adapter has no matrices for it or fails the test.
    async fn with_matrices(adapter: &wgpu::Adapter, options: &GpuOptions) -> Result<Option<Self>> {
        let report = AdapterReport::of(adapter);
        let is_forced = options.tier == Some(Tier::Matrix);
        if !is_forced && (options.tier.is_some() || report.is_software || !options.tries_matrices) {
            return Ok(None);
        }
        let refused = |why: String| match is_forced {
            true => Err(Error::NoAdapter(format!(
                "{} cannot run tier matrix: {why}; leave out context.tier, or choose another adapter",
                report.name
            ))),
            false => Ok(None),
        };
        let found = match matrices::usable(adapter, &report) {
            Ok(found) if !is_forced && !found.are_preferred() => return Ok(None),
            Ok(found) => found,
            Err(why) => return refused(why),
        };
        let fault = match Self::open(adapter, options, matrices::FEATURES).await {
            Ok(mut gpu) => match matrices::first_fault(&gpu, found).await {
                None => {
                    gpu.capabilities = gpu.capabilities.with_matrices(found);
                    return Ok(Some(gpu));
                }
                Some(fault) => fault,
            },
            Err(error) => error.to_string(),
        };
        if !is_forced {
            tracing::warn!("{}: its matrices are not used: {fault}", report.name);
        }
        refused(format!("its matrices are not used: {fault}"))
    }

    async fn open(adapter: &wgpu::Adapter, options: &GpuOptions, features: wgpu::Features) -> Result<Self> {
        let (device, queue) = open(adapter, options, features).await?;
        let pipelines = Pipelines::new(&device, options, PipelineCaching::OnDisk);
        let gpu = Self::of(device, queue, AdapterReport::of(adapter), pipelines, options);
        remember_faults(&gpu.device, &gpu.fault);
        Ok(gpu)
    }
}

/// Opens `adapter` with its full limits.
///
/// # Errors
/// A limit below what the kernels use; shaders that need checks on a device without them; a driver that refuses the
/// device.
async fn open(
    adapter: &wgpu::Adapter,
    options: &GpuOptions,
    needed: wgpu::Features,
) -> Result<(wgpu::Device, wgpu::Queue)> {
    let name = adapter.get_info().name;
    check_limits(&name, &adapter.limits())?;
    let mut wanted =
        wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::PIPELINE_CACHE | wgpu::Features::SHADER_F16;
    // See Capabilities::gathers.
    wanted.set(wgpu::Features::SHADER_INT64, adapter.get_info().device_type == wgpu::DeviceType::Cpu);
    // See kernels::ordered_spirv.
    let has_matrices = needed.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    let is_vulkan = adapter.get_info().backend == wgpu::Backend::Vulkan;
    wanted.set(wgpu::Features::PASSTHROUGH_SHADERS, has_matrices && is_vulkan);
    let features = adapter.features() & (wanted | needed);
    let is_experimental = features.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX);
    let experimental_features = match is_experimental {
        // SAFETY: an experimental feature may compute wrong results or lose the device; the matrices are tested first.
        true => unsafe { wgpu::ExperimentalFeatures::enabled() },
        false => wgpu::ExperimentalFeatures::disabled(),
    };
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("gristmill"),
        required_features: features,
        required_limits: adapter.limits(),
        experimental_features,
        memory_hints: wgpu::MemoryHints::Manual { suballocated_device_memory_block_size: BLOCK..BLOCK },
        ..wgpu::DeviceDescriptor::default()
    };
    if options.unchecked_buffers
        && let Some(opened) = open_unchecked(adapter, options, &descriptor)?
    {
        return Ok(opened);
    }
    let mut opened = adapter.request_device(&descriptor).await;
    if opened.is_err() && (features - needed).contains(wgpu::Features::SHADER_F16) {
        // Runs use this feature only for speed.
        let required_features = features - wgpu::Features::SHADER_F16;
        opened = adapter.request_device(&wgpu::DeviceDescriptor { required_features, ..descriptor }).await;
    }
    opened.map_err(|e| Error::NoAdapter(format!("{name} could not be opened: {e}")))
}

/// Opens `adapter` without the driver's checks of buffer accesses; `None` if it has none that can be left out.
fn open_unchecked(
    adapter: &wgpu::Adapter,
    options: &GpuOptions,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Result<Option<(wgpu::Device, wgpu::Queue)>> {
    if options.checked_shaders || options.sources.has_added() {
        return Err(Error::Plan(
            "shaders of a user, and checked ones, count on the driver's checks of buffers: leave out \
             GpuOptions::unchecked_buffers"
                .into(),
        ));
    }
    let info = adapter.get_info();
    // SAFETY: only shaders of this crate run on it, which are compiled without checks anyway and stay within their
    // bindings: tests run each of them with guard zones around every binding.
    match unsafe { open_without_robustness(adapter, descriptor) } {
        Some(Ok(opened)) => Ok(Some(opened)),
        Some(Err(error)) => Err(Error::NoAdapter(format!(
            "{} could not be opened without robust buffers: {error}; write context.robust_buffers: True",
            info.name
        ))),
        None => {
            tracing::warn!("context.robust_buffers changes nothing on {:?}, only on Vulkan", info.backend);
            Ok(None)
        }
    }
}
