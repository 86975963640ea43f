// Unfolds a one-dimensional grid. The host folds it into rows of 32768 workgroups (`record::fold_grid`), because WebGPU
// allows 65535 per dimension; kernels return where the index is past the end.

fn linear_index(workgroup: vec3<u32>) -> u32 {
    return workgroup.y * 32768u + workgroup.x;
}
