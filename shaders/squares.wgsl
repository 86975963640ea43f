// Sums of squares of a tensor in the three ranges of lib/squares, whose root the host takes in f64
//
//   square_rows    per row of blocks · BLOCK groups of 4: partials[first_partial + row] = Σ x², and how many groups of
//                  4 have a value that is not finite
//   fold_squares   one workgroup: sums[index] = Σ partials
//
//   x (4 · count4) of the storage type, partials (P, 4) f32, sums (S, 4) f32
//
// square_rows: one workgroup per row; software tier: one invocation (lib/reduce). A tensor of one row is summed into
// `sums` at once. All sums have a fixed order. Sums in ranges, unlike norms, can be added over ranks.

import package::lib::element::{Packed, has_overflow, load4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum4};
import package::lib::squares::{Squares, squares_of};
import package::tile::{BLOCK, LANES};

struct Params {
    count4: u32, // groups of 4 in the tensor
    offset4: u32, // of the first one in its binding
    rows: u32, // square_rows: rows; fold_squares: number of partials
    blocks: u32, // square_rows: blocks of BLOCK groups in a row
    first_partial: u32,
    index: u32, // fold_squares: the sum that is written
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> partials: array<Squares>;

@group(0) @binding(1) var<storage, read> partials_in: array<Squares>;
@group(0) @binding(2) var<storage, read_write> sums: array<Squares>;

@compute @workgroup_size(LANES)
fn square_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    var sum = Squares(0.0);
    for (var block = 0u; block < params.blocks; block++) {
        let start = (row * params.blocks + block) * BLOCK;
        let end = min(start + BLOCK, params.count4);
        var of_block = Squares(0.0);
        for (var i = start + first; i < end; i += STEP) {
            let packed = x[params.offset4 + i];
            of_block += squares_of(load4(packed), has_overflow(packed));
        }
        sum += of_block;
    }
    let total = row_sum4(sum, lane);
    if (first == 0u) {
        partials[params.first_partial + row] = total;
    }
}

@compute @workgroup_size(LANES)
fn fold_squares(@builtin(local_invocation_index) lane: u32) {
    var sum = Squares(0.0);
    for (var i = lane; i < params.rows; i += LANES) {
        sum += partials_in[i];
    }
    let total = row_sum4(sum, lane);
    if (lane == 0u) {
        sums[params.index] = total;
    }
}
