// Conversion of whole tensors between f32 and the storage type:
//
//   widen    packed -> widened, exact
//   narrow   wide -> narrowed, rounded to nearest even
//
// Both sides have 4 · count4 elements, padding included. One invocation converts 4 elements.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    count4: u32, // groups of 4 elements, padding included
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> packed: array<Packed>;
@group(0) @binding(2) var<storage, read_write> widened: array<vec4<f32>>;

@group(0) @binding(1) var<storage, read> wide: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> narrowed: array<Packed>;

@compute @workgroup_size(LANES)
fn widen(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    if (index < params.count4) {
        widened[index] = load4(packed[index]);
    }
}

@compute @workgroup_size(LANES)
fn narrow(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    if (index < params.count4) {
        narrowed[index] = store4(wide[index]);
    }
}
