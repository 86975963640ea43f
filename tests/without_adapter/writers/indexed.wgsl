// An array of an invocation, indexed by what the invocation computes.

@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(4)
fn main(@builtin(local_invocation_index) lane: u32) {
    var sums = array<f32, 4>();
    y[lane] = sums[lane];
}
