// A condition without its closing bracket.

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    @if((causal || f32) { y[0] = 1.0; }
}
