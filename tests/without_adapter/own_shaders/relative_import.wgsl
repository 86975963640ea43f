// Imports by a relative path, which WESL knows.

import super::silu::silu;

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    y[0] = silu(vec4<f32>(y[0])).x;
}
