// Attention backward, before attention/portable/backward_kv.wgsl with `split`:   delta = Σ dout · out,   per head
//
//   dout and out (N, heads · 4 V4) read, delta (N, heads) f32 written
//
// One invocation computes one element of delta, or clears one element of its padding. Numerics: f32, summed in the
// order of the scores dout · v, from which delta is subtracted, so that nothing is left where a query sees one key.

import package::attention::heads::{gradients_of, results_of};
import package::attention::params::params;
import package::lib::attention::add_dot;
import package::lib::element::{Packed, load4};
import package::lib::grid::linear_index;
import package::tile::{LANES, V4};

@group(0) @binding(2) var<storage, read> out: array<Packed>;
@group(0) @binding(3) var<storage, read> dout: array<Packed>;
@group(0) @binding(5) var<storage, read_write> delta: array<f32>;

@compute @workgroup_size(LANES)
fn attention_delta(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let row = index / params.delta_stride;
    let head = index % params.delta_stride;
    if (row >= params.rows) {
        return;
    }
    var sum = 0.0;
    if (head < params.heads) {
        let out_at = results_of(row, head);
        let dout_at = gradients_of(row, head);
        for (var c = 0u; c < V4; c++) {
            sum = add_dot(sum, load4(dout[dout_at + c]), load4(out[out_at + c]));
        }
    }
    delta[index] = sum;
}
