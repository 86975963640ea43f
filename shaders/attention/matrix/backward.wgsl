// Shared by the backward passes by matrices: loading of dout, and the scores of owned rows, which are at most four
// matrices long.

import package::attention::gradients_of_keys::put_gradient;
import package::attention::heads::gradients_of;
import package::attention::matrix::operands::right;
import package::attention::matrix::scales::Stored;
import package::attention::matrix::tiles::{D_STEPS, D_STRIDE, Fetched, Place, Rows, SHARE, SHARE4, TILE, TURNS};
import package::attention::matrix::tiles::{V_STEPS, V_STRIDE, score4, source_of};
import package::attention::params::params;
import package::lib::matrix::{Left, SIDE, Sum};
import package::tile::V4;

enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(3) var<storage, read> dout: array<Stored>;

// The blocks of a tile of dout that a lane stages, as `fetch` of attention/matrix/tiles.wgsl loads those of qkv.
fn fetch_gradients(lane: u32, sequence: u32, head: u32, tile: u32) -> Fetched {
    let rows = Rows(gradients_of(sequence, head), params.dout_stride, V4);
    var fetched: Fetched;
    for (var i = 0u; i < 4u * TURNS; i++) {
        fetched[i] = dout[source_of(lane, rows, tile, i)];
    }
    return fetched;
}

// The products of owned rows with SIDE walked rows, of queries and keys. o0 to o3 are the matrices along the owned
// rows; the walked rows are staged from `at` on.
fn along_d(o0: Left, o1: Left, o2: Left, o3: Left, at: u32, zeros: Sum) -> Sum {
    var sum = coopMultiplyAdd(o0, right(at, D_STRIDE), zeros);
    if (D_STEPS > 1u) { sum = coopMultiplyAdd(o1, right(at + SIDE, D_STRIDE), sum); }
    if (D_STEPS > 2u) { sum = coopMultiplyAdd(o2, right(at + 2u * SIDE, D_STRIDE), sum); }
    if (D_STEPS > 3u) { sum = coopMultiplyAdd(o3, right(at + 3u * SIDE, D_STRIDE), sum); }
    return sum;
}

// The products of owned rows with SIDE walked rows, of values and dout. o0 to o3 are the matrices along the owned rows;
// the walked rows are staged from `at` on.
fn along_v(o0: Left, o1: Left, o2: Left, o3: Left, at: u32, zeros: Sum) -> Sum {
    var sum = coopMultiplyAdd(o0, right(at, V_STRIDE), zeros);
    if (V_STEPS > 1u) { sum = coopMultiplyAdd(o1, right(at + SIDE, V_STRIDE), sum); }
    if (V_STEPS > 2u) { sum = coopMultiplyAdd(o2, right(at + 2u * SIDE, V_STRIDE), sum); }
    if (V_STEPS > 3u) { sum = coopMultiplyAdd(o3, right(at + 3u * SIDE, V_STRIDE), sum); }
    return sum;
}

// A row of gradients: where it starts, how many groups of 4 columns it has, two factors for its sums, and whether it
// exists.
struct Columns {
    at: u32,
    width: u32,
    factors: vec2<f32>,
    is_there: bool,
}

// Writes the values that were put in the place of the lane's scores, to the columns from pair · TILE on.
fn write_columns(place: Place, to: Columns, pair: u32) {
    workgroupBarrier();
    for (var i = 0u; i < SHARE4; i++) {
        let column = (pair * TILE + place.part * SHARE) / 4u + i;
        if (to.is_there && column < to.width) {
            put_gradient(to.at + column, to.factors.x * score4(place, i) * to.factors.y);
        }
    }
    workgroupBarrier();
}
