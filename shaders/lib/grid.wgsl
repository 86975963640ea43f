// A one-dimensional grid of any length: the host folds it into rows of 32768 workgroups (WebGPU allows 65535 per
// dimension), the kernel unfolds it here and returns where the index is past the end.

fn linear_index(workgroup: vec3<u32>) -> u32 {
    return workgroup.y * 32768u + workgroup.x;
}
