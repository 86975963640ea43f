//! Whether the invocations of a workgroup can hand values to each other: they can where the workgroup is one subgroup, which
//! no specification promises, so the adapter is asked.

use super::gpu::Gpu;
use super::prepare::Guard;
use super::readback::Reader;
use crate::element::Element::F32;
use crate::error::Result;
use crate::kernels::{Capabilities, Kernel};
use crate::record::{Persistents, Recorder, Recording, Tensor};

crate::params! {
    struct Params {
        lanes: u32,
    }
}

/// Subgroups that the software tier has tiles for.
const SIZES: [u32; 2] = [4, 8];

/// Invocations of a subgroup of `adapter`, if they are always as many and a tile is made for them; otherwise 1.
pub(super) fn subgroup_size(adapter: &wgpu::Adapter) -> u32 {
    let info = adapter.get_info();
    let is_usable = adapter.features().contains(wgpu::Features::SUBGROUP)
        && info.subgroup_min_size == info.subgroup_max_size
        && SIZES.contains(&info.subgroup_min_size);
    if is_usable { info.subgroup_min_size } else { 1 }
}

/// Whether every lane hears every other.
///
/// # Errors
/// A device that fails.
pub(super) async fn hear_each_other(gpu: &Gpu, lanes: u32) -> Result<bool> {
    let (persistents, recording, heard) = question(lanes, true);
    let buffers = gpu.make_persistent(&persistents).await?;
    let prepared = gpu.prepare(&[&recording], &buffers, Guard::Off).await?;
    let mut encoder = gpu.encoder();
    encoder.replay(&prepared.programs[0]).await?;
    encoder.submit().await?;
    let bytes = Reader::new(gpu, heard.bytes()).tensor(gpu, &buffers, &prepared, 0, &heard).await?;
    Ok(F32.decode(&bytes).iter().all(|&count| count == lanes as f32))
}

/// What the adapter is asked, and where it answers. Lanes that are not `is_shuffled` hear themselves only.
pub fn question(lanes: u32, is_shuffled: bool) -> (Persistents, Recording, Tensor) {
    let mut persistents = Persistents::new();
    let heard = persistents.tensor("heard", lanes, 4, F32);
    let mut rec = Recorder::new("lanes", Capabilities::software());
    let kernel =
        Kernel::new("lanes", "hear_lanes", F32).feature("shuffled", is_shuffled).constant("LANES", lanes);
    rec.dispatch(kernel, &[(1, heard.binding())], &Params { lanes }, [1, 1, 1]);
    (persistents, rec.finish(), heard)
}
