// Declares a name that could be one of an imported item.

@group(0) @binding(1) var<storage, read_write> lib__y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    lib__y[0] = 1.0;
}
