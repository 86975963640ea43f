// Refused: the function called in a branch of some lanes has a barrier.

var<workgroup> values: array<f32, 64>;

fn share(lane: u32) -> f32 {
    values[lane] = 1.0;
    workgroupBarrier();
    return values[0];
}

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
    if (lane < 32u) {
        values[lane] = share(lane);
    }
}
