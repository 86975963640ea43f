// Closes a bracket that was not opened.

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    y[0] = 1.0;
}}
