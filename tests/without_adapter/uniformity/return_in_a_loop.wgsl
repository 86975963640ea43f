// Refused: some lanes may have returned from within the loop.

@group(0) @binding(0) var<storage, read_write> values: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    for (var i = lane; i < 1000u; i += 64u) {
        if (values[i] > 0.0) {
            return;
        }
    }
    workgroupBarrier();
}
