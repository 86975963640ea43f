// Has an @else, which WESL knows.

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    @if(causal) { y[0] = 1.0; }
    @else { y[0] = 2.0; }
}
