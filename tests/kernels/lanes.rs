//! How the device finds out whether the lanes of a workgroup can share loads: llvmpipe can, and the answer can be no.

use gristmill::device::{Gpu, GpuOptions, Guard, lane_probe};
use pollster::block_on;

fn gpu() -> Gpu {
    block_on(Gpu::request(&GpuOptions::default())).unwrap_or_else(|e| panic!("{e}"))
}

/// Without shared loads every kernel is correct but half as fast, so no other test would notice.
#[test]
fn llvmpipe_has_lanes() {
    let gpu = gpu();
    let (name, lanes) = (&gpu.report().name, gpu.capabilities().lanes);
    println!("{name}: {lanes}");
    let workgroup = gpu.capabilities().software_workgroup;
    // Newer llvmpipes load from common addresses faster than they shuffle across 16.
    let is_alone = workgroup == 16 && gpu.capabilities().gathers;
    assert!(!name.contains("llvmpipe") || lanes == if is_alone { 1 } else { workgroup }, "{name}: {lanes}");
    assert!(gpu.report().is_software || lanes == 1, "only software adapters use lanes");
}

#[test]
fn lanes_without_shuffles_count_only_themselves() {
    let gpu = gpu();
    let lanes = gpu.capabilities().lanes;
    for (is_shuffled, wanted) in [(false, 1), (true, lanes)] {
        if is_shuffled && lanes == 1 {
            continue; // without subgroups the adapter cannot run the kernel
        }
        let (job, heard) = lane_probe(lanes.max(4), is_shuffled);
        let counts = block_on(async {
            let probe = gpu.prepare_job(job, Guard::Nan).await?;
            probe.replay().await?;
            probe.values(&heard).await
        });
        let counts = counts.unwrap_or_else(|e| panic!("{e}"));
        assert!(counts.iter().all(|&count| count == wanted as f32), "{is_shuffled}: {counts:?}");
    }
}
