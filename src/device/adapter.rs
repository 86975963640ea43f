//! Adapter enumeration and selection.

use crate::error::{Error, Result};
use crate::kernels::Tier;

/// The backends in use. GLES is left out: its software adapter would be picked where Vulkan is merely not installed.
pub(super) const BACKENDS: wgpu::Backends =
    wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

/// Properties of an adapter, for selection and reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterReport {
    /// Name, as reported by the driver.
    pub name: String,
    /// `Vulkan`, `Metal`, `Dx12`.
    pub backend: String,
    /// Driver name and version.
    pub driver: String,
    /// Whether it is a software adapter (llvmpipe, SwiftShader, WARP).
    pub is_software: bool,
    /// Largest range of a buffer that one binding can cover, in bytes.
    pub binding_bytes: u64,
    /// Largest buffer, in bytes.
    pub buffer_bytes: u64,
    /// Dedicated memory in bytes, where the driver reports it.
    pub memory_bytes: Option<u64>,
}

impl AdapterReport {
    pub(super) fn of(adapter: &wgpu::Adapter) -> Self {
        Self::new(adapter.get_info(), &adapter.limits(), memory_bytes(adapter))
    }

    /// The adapter of a device, with the limits that the device was opened with.
    pub(super) fn of_device(device: &wgpu::Device) -> Self {
        Self::new(device.adapter_info(), &device.limits(), None)
    }

    fn new(info: wgpu::AdapterInfo, limits: &wgpu::Limits, memory_bytes: Option<u64>) -> Self {
        Self {
            name: info.name,
            backend: format!("{:?}", info.backend),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            is_software: info.device_type == wgpu::DeviceType::Cpu,
            binding_bytes: limits.max_storage_buffer_binding_size,
            buffer_bytes: limits.max_buffer_size,
            memory_bytes,
        }
    }

    /// The default tier of this adapter.
    pub fn preferred_tier(&self) -> Tier {
        if self.is_software { Tier::Software } else { Tier::Portable }
    }
}

impl std::fmt::Display for AdapterReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = if self.is_software { "software adapter" } else { "GPU" };
        write!(
            f,
            "{} ({kind}, {}, {}, {} MiB per binding)",
            self.name,
            self.backend,
            self.driver,
            self.binding_bytes >> 20
        )
    }
}

/// Fails if a limit of a device is below what the kernels use. WebGPU's default limits are enough.
pub(super) fn check_limits(name: &str, limits: &wgpu::Limits) -> Result<()> {
    let least = [
        ("max_storage_buffers_per_shader_stage", limits.max_storage_buffers_per_shader_stage, 8),
        ("max_uniform_buffers_per_shader_stage", limits.max_uniform_buffers_per_shader_stage, 1),
        ("max_bindings_per_bind_group", limits.max_bindings_per_bind_group, 9),
        ("max_compute_workgroup_storage_size", limits.max_compute_workgroup_storage_size, 16384),
        ("max_compute_invocations_per_workgroup", limits.max_compute_invocations_per_workgroup, 256),
        ("max_compute_workgroup_size_x", limits.max_compute_workgroup_size_x, 256),
        ("max_compute_workgroups_per_dimension", limits.max_compute_workgroups_per_dimension, 65535),
    ];
    match least.into_iter().find(|(_, given, needed)| given < needed) {
        None => Ok(()),
        Some((limit, given, needed)) => Err(Error::NoAdapter(format!(
            "{name} has {limit} {given}, and the kernels need {needed}; open the device with at least \
             wgpu::Limits::default(), or choose another adapter"
        ))),
    }
}

/// Size of the largest device-local heap. WebGPU does not report it; Vulkan does.
#[cfg(not(any(target_vendor = "apple", target_family = "wasm")))]
fn memory_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: only properties are queried, while `adapter` is alive.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let (instance, device) = (vulkan.shared_instance().raw_instance(), vulkan.raw_physical_device());
    // SAFETY: the physical device was enumerated from this instance, and both live as long as the adapter.
    let properties = unsafe { instance.get_physical_device_memory_properties(device) };
    let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
    heaps.iter().filter(|heap| heap.flags.as_raw() & 1 == 1).map(|heap| heap.size).max() // 1: DEVICE_LOCAL
}

#[cfg(any(target_vendor = "apple", target_family = "wasm"))]
fn memory_bytes(_: &wgpu::Adapter) -> Option<u64> {
    None
}

pub(super) fn instance() -> wgpu::Instance {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: BACKENDS,
        // Our own kernels write the arguments of indirect dispatches, so wgpu does not have to validate them on the
        // GPU.
        flags: wgpu::InstanceFlags::VALIDATION.difference(wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

/// All adapters that wgpu can use on this machine.
pub async fn list_adapters() -> Vec<AdapterReport> {
    instance().enumerate_adapters(BACKENDS).await.iter().map(AdapterReport::of).collect()
}

/// The adapter whose name contains `name`, ignoring case, or by default one of the fastest kind: discrete GPU first,
/// software adapter last.
pub(super) async fn choose(instance: &wgpu::Instance, name: Option<&str>) -> Result<wgpu::Adapter> {
    let mut adapters = instance.enumerate_adapters(BACKENDS).await;
    if adapters.is_empty() {
        return Err(Error::NoAdapter(
            "Vulkan, Metal and DX12 were tried and none has an adapter; on Linux run ./setup.sh (it installs the Vulkan \
             loader and Mesa's software Vulkan driver), elsewhere update the GPU driver"
                .into(),
        ));
    }
    let rank = |adapter: &wgpu::Adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    };
    adapters.sort_by_key(rank);
    let Some(name) = name else { return Ok(adapters.remove(0)) };
    let matches = |a: &wgpu::Adapter| a.get_info().name.to_lowercase().contains(&name.to_lowercase());
    match adapters.iter().position(matches) {
        Some(index) => Ok(adapters.remove(index)),
        None => {
            let names: Vec<String> = adapters.iter().map(|a| a.get_info().name).collect();
            Err(Error::NoAdapter(format!(
                "no adapter name contains `{name}`; set context.device_name to one of: {}",
                names.join(", ")
            )))
        }
    }
}
