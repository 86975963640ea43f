// Imports a module that does not exist.

import package::lib::nothing::at_all;

@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main() {
    y[0] = at_all();
}
