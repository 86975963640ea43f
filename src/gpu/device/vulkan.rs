//! A Vulkan device without robust buffer access.
//!
//! wgpu has the driver check every access to a buffer (`robustBufferAccess`, `robustBufferAccess2`), even for modules
//! that run without naga's checks, and neither wgpu's device descriptor nor the callback of wgpu-hal can turn that off.
//! So the device is created here, from the extensions and features that wgpu-hal would request, without these two.

use ash::vk;

/// Opens `adapter` without robust buffer access; `None` if it is not a Vulkan adapter.
///
/// # Safety
/// The device does not catch an access beyond a binding, and wgpu's own checks of shaders may rely on those of the
/// driver: everything that runs on the device must stay within its bindings.
///
/// # Errors
/// The driver's error.
pub(super) unsafe fn open_without_robustness(
    adapter: &wgpu::Adapter,
    descriptor: &wgpu::DeviceDescriptor<'_>,
) -> Option<Result<(wgpu::Device, wgpu::Queue), String>> {
    // SAFETY: the handle is used while `adapter` is alive, and not destroyed.
    let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let wgpu::DeviceDescriptor { required_features, required_limits, memory_hints, .. } = descriptor;
    let mut extensions = vulkan.required_device_extensions(*required_features);
    extensions.retain(|name| *name != ash::ext::robustness2::NAME);
    let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
    // wgpu-hal uses one queue, of the first family.
    let queues = [vk::DeviceQueueCreateInfo::default().queue_family_index(0).queue_priorities(&[1.0])];
    let info = vk::DeviceCreateInfo::default().queue_create_infos(&queues).enabled_extension_names(&names);
    let mut features = vulkan.physical_device_features(&extensions, *required_features);
    let info = features.add_to_device_create(info);
    // SAFETY: the line above made it point to a field of `features`.
    let core = unsafe { info.p_enabled_features.as_ref() }.copied().unwrap_or_default();
    let core = core.robust_buffer_access(false);
    let info = info.enabled_features(&core);
    let instance = vulkan.shared_instance().raw_instance();
    // SAFETY: the physical device belongs to this instance, and everything that `info` points to lives until the call
    // returns.
    let device = match unsafe { instance.create_device(vulkan.raw_physical_device(), &info, None) } {
        Ok(device) => device,
        Err(error) => return Some(Err(error.to_string())),
    };
    // SAFETY: the device was just created, from this adapter and with these extensions. Of the features that the
    // adapter expects it lacks only robustness, which only checked shaders rely on.
    let opened = unsafe {
        vulkan.device_from_raw(
            device,
            None,
            &extensions,
            *required_features,
            required_limits,
            memory_hints,
            0,
            0,
        )
    };
    let opened = match opened {
        Ok(opened) => opened,
        Err(error) => return Some(Err(error.to_string())),
    };
    // SAFETY: `opened` was created from this adapter, with the features of `descriptor`.
    let device = unsafe { adapter.create_device_from_hal(opened, descriptor) };
    Some(device.map_err(|error| error.to_string()))
}
