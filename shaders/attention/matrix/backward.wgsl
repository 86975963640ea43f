// Shared by the backward passes by matrices: loading of dout, and the scores and sums of owned rows, of which a
// subgroup has at most four matrices.

import package::attention::gradients_of_keys::put_gradient;
import package::attention::heads::gradients_of;
import package::attention::matrix::operands::right;
import package::attention::matrix::scales::Stored;
import package::attention::matrix::tiles::{BLOCK, D_OWN, D_STRIDE, Fetched, Place, Rows, SCORES_OF_ROW, SCORE_STRIDE};
import package::attention::matrix::tiles::{SHARE, SHARE4, SHARERS, TURNS, V_OWN, V_STRIDE, score4, scores, source_of};
import package::attention::params::params;
import package::lib::matrix::{Left, OF_SIDE, SIDE, Sum, VECTOR};
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

// What a subgroup owns: the first row of its strip, and which half of the columns, if two share the strip.
struct Own {
    strip: u32,
    half: u32,
}

fn own_of(subgroup: u32, together: u32) -> Own {
    let number = min(subgroup, together * SHARERS - 1u);
    return Own(number / SHARERS * SIDE, number % SHARERS);
}

// Writes a matrix to the place of the scores of a subgroup with the walked rows j. (Its place is counted in scores
// first: if it is counted in vectors alone, RDNA 3's compiler spills registers of keys and values in bf16.)
fn put_own(sum: Sum, own: Own, j: u32) {
    let at = ((own.half * BLOCK + own.strip) * SCORES_OF_ROW + j * SIDE) / VECTOR;
    coopStoreT(sum, &scores[at], SCORE_STRIDE);
}

// The products of owned rows with SIDE walked rows, of queries and keys, over the columns that the subgroup
// has. o0 to o3 are its matrices along the owned rows; the walked rows are staged from `at` on.
fn along_d(own: Own, o0: Left, o1: Left, o2: Left, o3: Left, at: u32, zeros: Sum) -> Sum {
    let start = at + own.half * D_OWN * OF_SIDE;
    var sum = coopMultiplyAdd(o0, right(start, D_STRIDE), zeros);
    if (D_OWN > 1u) { sum = coopMultiplyAdd(o1, right(start + OF_SIDE, D_STRIDE), sum); }
    if (D_OWN > 2u) { sum = coopMultiplyAdd(o2, right(start + 2u * OF_SIDE, D_STRIDE), sum); }
    if (D_OWN > 3u) { sum = coopMultiplyAdd(o3, right(start + 3u * OF_SIDE, D_STRIDE), sum); }
    return sum;
}

// The products of owned rows with SIDE walked rows, of values and dout, over the columns that the subgroup
// has. o0 to o3 are its matrices along the owned rows; the walked rows are staged from `at` on.
fn along_v(own: Own, o0: Left, o1: Left, o2: Left, o3: Left, at: u32, zeros: Sum) -> Sum {
    let start = at + own.half * V_OWN * OF_SIDE;
    var sum = coopMultiplyAdd(o0, right(start, V_STRIDE), zeros);
    if (V_OWN > 1u) { sum = coopMultiplyAdd(o1, right(start + OF_SIDE, V_STRIDE), sum); }
    if (V_OWN > 2u) { sum = coopMultiplyAdd(o2, right(start + 2u * OF_SIDE, V_STRIDE), sum); }
    if (V_OWN > 3u) { sum = coopMultiplyAdd(o3, right(start + 3u * OF_SIDE, V_STRIDE), sum); }
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

// Writes the sums number 2 pair and 2 pair + 1 of all subgroups, each of which has `owned`.
fn write_pair(own: Own, first: Sum, second: Sum, pair: u32, owned: u32, place: Place, to: Columns) {
    put_own(first, own, 0u);
    @if(!wide_heads) {
        put_own(second, own, 1u);
        write_columns(place, to, 2u * pair, owned);
    }
    @if(wide_heads) {
        write_columns(place, to, 2u * pair, owned);
        if (2u * pair + 1u < owned) {
            put_own(second, own, 0u);
            write_columns(place, to, 2u * pair + 1u, owned);
        }
    }
}

// Writes the values that were put in the place of the lane's scores, of the subgroups' sums from number `first` on.
fn write_columns(place: Place, to: Columns, first: u32, owned: u32) {
    workgroupBarrier();
    for (var half = 0u; half < SHARERS; half++) {
        for (var i = 0u; i < SHARE4; i++) {
            let column = ((half * owned + first) * SIDE + place.part * SHARE) / 4u + i;
            if (to.is_there && column < to.width) {
                let value = score4(Place(half * BLOCK + place.row, place.part), i);
                put_gradient(to.at + column, to.factors.x * value * to.factors.y);
            }
        }
    }
    workgroupBarrier();
}
