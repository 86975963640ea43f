//! Opens an adapter: the features and limits of its device.

use super::adapter::check_limits;
use crate::error::{Error, Result};

/// Size of the blocks of device memory that smaller buffers share, in bytes; larger ones have a block of their own. wgpu's
/// presets go up to 256 MiB, of which a buffer of 130 MiB would leave nearly half unused.
const BLOCK: u64 = 8 << 20;

/// Opens `adapter` with its full limits.
///
/// # Errors
/// A limit below what the kernels use; a driver that refuses.
pub(super) async fn open(
    adapter: &wgpu::Adapter,
    with_subgroups: bool,
) -> Result<(wgpu::Device, wgpu::Queue)> {
    let name = adapter.get_info().name;
    check_limits(&name, &adapter.limits())?;
    let mut wanted =
        wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::PIPELINE_CACHE | wgpu::Features::SHADER_F16;
    wanted.set(wgpu::Features::SUBGROUP, with_subgroups);
    let features = adapter.features() & wanted;
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("gristmill"),
        required_features: features,
        required_limits: adapter.limits(),
        memory_hints: wgpu::MemoryHints::Manual { suballocated_device_memory_block_size: BLOCK..BLOCK },
        ..wgpu::DeviceDescriptor::default()
    };
    let mut opened = adapter.request_device(&descriptor).await;
    if opened.is_err() && features.contains(wgpu::Features::SHADER_F16) {
        // Runs need it for speed alone.
        let required_features = features - wgpu::Features::SHADER_F16;
        opened = adapter.request_device(&wgpu::DeviceDescriptor { required_features, ..descriptor }).await;
    }
    opened.map_err(|e| Error::NoAdapter(format!("{name} could not be opened: {e}")))
}
