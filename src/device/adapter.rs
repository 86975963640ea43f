//! Which adapters there are, and which one a run takes.

use crate::error::{Error, Result};
use crate::kernels::Tier;

/// The backends we ask for. GLES is left out: its software adapter would answer where Vulkan is merely not installed.
pub(super) const BACKENDS: wgpu::Backends =
    wgpu::Backends::VULKAN.union(wgpu::Backends::METAL).union(wgpu::Backends::DX12);

/// What is known of an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterReport {
    /// The adapter's name, as the driver gives it.
    pub name: String,
    /// `Vulkan`, `Metal`, `Dx12`.
    pub backend: String,
    /// Driver and its version.
    pub driver: String,
    /// Whether a CPU plays the GPU (llvmpipe, SwiftShader, WARP).
    pub is_software: bool,
    /// Largest range one binding can cover, in bytes.
    pub binding_bytes: u64,
    /// Largest buffer, in bytes.
    pub buffer_bytes: u64,
}

impl AdapterReport {
    pub(super) fn of(adapter: &wgpu::Adapter) -> Self {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        Self {
            name: info.name,
            backend: format!("{:?}", info.backend),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_string(),
            is_software: info.device_type == wgpu::DeviceType::Cpu,
            binding_bytes: limits.max_storage_buffer_binding_size,
            buffer_bytes: limits.max_buffer_size,
        }
    }

    /// The tier such an adapter starts with.
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

pub(super) fn instance() -> wgpu::Instance {
    wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: BACKENDS,
        // Our kernels write the arguments of indirect dispatches; wgpu need not check them again on the GPU.
        flags: wgpu::InstanceFlags::VALIDATION.difference(wgpu::InstanceFlags::VALIDATION_INDIRECT_CALL),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    })
}

/// Every adapter wgpu can use here.
pub async fn list_adapters() -> Vec<AdapterReport> {
    instance().enumerate_adapters(BACKENDS).await.iter().map(AdapterReport::of).collect()
}

/// The adapter whose name contains `name`, or the fastest kind there is.
pub(super) async fn choose(instance: &wgpu::Instance, name: Option<&str>) -> Result<wgpu::Adapter> {
    let mut adapters = instance.enumerate_adapters(BACKENDS).await;
    if adapters.is_empty() {
        return Err(Error::NoAdapter(
            "Vulkan, Metal and DX12 were tried and none answered; on Linux run ./setup.sh (it installs a Vulkan \
             loader and Mesa's software Vulkan), elsewhere update the GPU driver"
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
                "none is named like `{name}`; set context.device_name to one of: {}",
                names.join(", ")
            )))
        }
    }
}
