// Names an item of another file without an import, which WESL knows.

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    y[0] = package::lib::silu::silu(vec4<f32>(y[0])).x;
}
