// Sum of squares of a tensor's gradients, unscaled and before clipping
//
//   norms[index] = Σ over rows of partial norm²; infinite if a gradient is not finite
//
//   partials (rows, 2) f32    norm and number of non-finite groups of each row, by square_sum of grad_norm
//   norms (N) f32             one for each tensor; this one is written
//
// One workgroup; all sums have a fixed order. The original logs the sum and not its root, and so do we.

import package::lib::reduce::row_sum4;
import package::tile::LANES;

struct Params {
    rows: u32,
    index: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> partials: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> norms: array<f32>;

@compute @workgroup_size(LANES)
fn local_norm(@builtin(local_invocation_index) lane: u32) {
    var sums = vec4<f32>(0.0); // squares, non-finite groups
    for (var i = lane; i < params.rows; i += LANES) {
        let partial = partials[i];
        sums += vec4<f32>(partial.x * partial.x, partial.y, 0.0, 0.0);
    }
    let total = row_sum4(sums, lane);
    if (lane == 0u) {
        let overflow = total.y > 0.0;
        // As a constant infinity would not be valid WGSL.
        norms[params.index] = select(total.x, bitcast<f32>(select(0u, 0x7f800000u, overflow)), overflow);
    }
}
