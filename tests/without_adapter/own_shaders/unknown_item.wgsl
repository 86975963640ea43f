// Imports what the file does not declare.

import package::lib::silu::swish;

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    y[0] = swish(vec4<f32>(y[0])).x;
}
