// Imports an item under another name, which WESL knows.

import package::lib::silu::silu as activation;

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    y[0] = activation(vec4<f32>(y[0])).x;
}
