// Imports items of one name from two files.

import package::lib::silu::silu;
import package::lib::gelu::silu;

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    y[0] = silu(vec4<f32>(y[0])).x;
}
