// The largest attention score of each head so far in a step:
//   largest[h] = max(largest[h], max over rows of logits[row, h])
//
//   logits (N, heads) f32      the largest score of each query, by the forward pass of attention
//   largest (heads) u32        of all ranks, some of whose heads are here; integers with the order of the scores.
//                              0, to which the host clears them, is below all scores
//
// One workgroup for each 4 heads. A maximum is exact, so a layer that is recomputed changes nothing.

import package::lib::bits::order_of;
import package::lib::reduce::row_max;
import package::tile::LANES;

struct Params {
    rows: u32,
    heads: u32,
    stride4: u32, // of logits
    first: u32,   // head of the first column
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> largest: array<u32>;

const LEAST = -3.4028234663852886e38;

@compute @workgroup_size(LANES)
fn max_logit(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    var top = vec4<f32>(LEAST);
    for (var row = lane; row < params.rows; row += LANES) {
        top = max(top, logits[row * params.stride4 + workgroup.x]);
    }
    for (var i = 0u; i < 4u; i++) {
        let of_head = row_max(top[i], lane);
        let head = 4u * workgroup.x + i;
        if (lane == 0u && head < params.heads) {
            let at = params.first + head;
            largest[at] = max(largest[at], order_of(of_head));
        }
    }
}
