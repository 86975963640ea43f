// Declares a function of the name of an imported one.

import package::lib::silu::silu;

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn silu(x: vec4<f32>) -> vec4<f32> {
    return x;
}

@compute @workgroup_size(64)
fn main() {
    y[0] = silu(vec4<f32>(y[0])).x;
}
