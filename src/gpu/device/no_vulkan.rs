//! Stands in for `vulkan.rs` where wgpu has no Vulkan.

/// `None`: there is no Vulkan adapter.
///
/// # Safety
/// None is needed.
pub(super) unsafe fn open_without_robustness(
    _: &wgpu::Adapter,
    _: &wgpu::DeviceDescriptor<'_>,
) -> Option<Result<(wgpu::Device, wgpu::Queue), String>> {
    None
}
