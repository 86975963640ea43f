//! Probes whether a workgroup is a single subgroup, so that its invocations can share loads by shuffles. No
//! specification guarantees it, so a kernel tests it when an adapter is opened.
//!
//! llvmpipe of Mesa 22 executes a load inside a loop lane by lane, whether the lanes read one address or eight, so
//! loads and not arithmetic take most of a matmul's time; newer software drivers gain less. In the software tier each
//! lane therefore loads a different value that all of them need, and shuffles distribute the values
//! (`shaders/lib/lanes.wgsl`). Where the test fails, `Capabilities::lanes` is 1. Tests run these kernels with and
//! without shuffles.

use super::gpu::Gpu;
use super::job::Job;
use super::prepare::Guard;
use crate::element::Element::F32;
use crate::error::Result;
use crate::kernels::{Capabilities, Condition, Kernel};
use crate::record::Tensor;

crate::params! {
    struct Params {
        lanes: u32,
    }
}

/// Subgroup sizes for which the software tier has tiles.
const SIZES: [u32; 3] = [4, 8, 16];

/// The subgroup size of `adapter`, if it is fixed and one of [`SIZES`]; otherwise 1.
pub(super) fn subgroup_size(adapter: &wgpu::Adapter) -> u32 {
    let info = adapter.get_info();
    let is_usable = adapter.features().contains(wgpu::Features::SUBGROUP)
        && info.subgroup_min_size == info.subgroup_max_size
        && SIZES.contains(&info.subgroup_min_size);
    if is_usable { info.subgroup_min_size } else { 1 }
}

/// Whether every lane of a workgroup of `lanes` receives the right value from every other lane that it shuffles from.
///
/// # Errors
/// A device failure.
pub(super) async fn lanes_share_loads(gpu: &Gpu, lanes: u32) -> Result<bool> {
    let (job, heard) = lane_probe(lanes, true);
    let probe = gpu.prepare_job(job, Guard::Off).await?;
    probe.replay().await?;
    Ok(probe.values(&heard).await?.iter().all(|&count| count == lanes as f32))
}

/// The probe and its result (lanes, 4): row i counts, per component, the lanes from which lane i got the right value.
/// Without `is_shuffled` that is only lane i itself.
pub fn lane_probe(lanes: u32, is_shuffled: bool) -> (Job, Tensor) {
    let mut job = Job::new("lanes", Capabilities::software());
    let heard = job.output(lanes, 4);
    let kernel = Kernel::new("lanes", "hear_lanes", F32)
        .condition(Condition::Shuffled, is_shuffled)
        .constant("LANES", lanes);
    job.rec.dispatch(kernel, &[heard.bind("heard", F32)], &Params { lanes }, [1, 1, 1]);
    (job, heard)
}
