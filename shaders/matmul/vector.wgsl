// Product of few rows, for decoding:   y (M, N) [+]= a (M, K) · b (N, K)ᵀ  [+ bias (N)] [+ residual (M, N)]      M = ROWS
//
// Each element of b is used M times only, so loading b is the cost, on every tier. A workgroup computes 4·COLUMNS4 columns of
// all rows of y: its invocations share each sum along k, so that neighbours load neighbouring groups of a row of b, and one
// load of `a` serves all these rows of b. Their parts are added at the end (lib/reduce). With LANES 1, for software adapters
// that load fastest from an address common to all lanes, nothing is shared.
// Numerics: f32; each invocation sums every LANES-th group of 4, in ascending order, and the parts are added in the order of a
// tree.

import package::lib::element::load4;
@if(nf4) import package::lib::quantised::fill_levels;
import package::lib::reduce::{STEP, first_of, row_sum4};
import package::matmul::operands::{a, load_b4, params, product_of};
import package::matmul::operands::{bias_of, destination, epilogue};
import package::tile::{ROWS, COLUMNS4, LANES, UNROLL};

const COLUMNS: u32 = 4u * COLUMNS4;

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(nf4) {
        fill_levels(lane);
        workgroupBarrier();
    }
    let product = product_of(workgroup);
    let first4 = workgroup.x * COLUMNS4;
    var starts: array<u32, COLUMNS>; // the rows of b; those past the end are copies of the last
    for (var c = 0u; c < COLUMNS; c++) {
        starts[c] = product.b_start + min(4u * first4 + c, params.n - 1u) * params.b_stride;
    }
    let a_stride = params.a_stride;
    var sums: array<array<vec4<f32>, ROWS>, COLUMNS>;
    let groups = (product.k + 3u) / 4u;
    let unrolled = groups - groups % (STEP * UNROLL);
    for (var k4 = first_of(lane); k4 < unrolled; k4 += STEP * UNROLL) {
        for (var i = 0u; i < UNROLL; i++) {
            sums = add_group(sums, starts, product.a_start, a_stride, k4 + STEP * i);
        }
    }
    for (var k4 = unrolled + first_of(lane); k4 < groups; k4 += STEP) {
        sums = add_group(sums, starts, product.a_start, a_stride, k4);
    }
    let to = destination(product);
    for (var c4 = 0u; c4 < COLUMNS4; c4++) {
        let added = bias_of(first4 + c4);
        for (var r = 0u; r < ROWS; r++) {
            var own: vec4<f32>; // this invocation's part of four columns
            for (var c = 0u; c < 4u; c++) {
                own[c] = dot(sums[4u * c4 + c][r], vec4<f32>(1.0));
            }
            let sum = row_sum4(own, lane);
            if (lane == 0u) {
                epilogue(sum, added, to, r, first4 + c4);
            }
        }
    }
}

// Adds the products of group k4 of every row to the sums.
fn add_group(
    sums: array<array<vec4<f32>, ROWS>, COLUMNS>,
    starts: array<u32, COLUMNS>,
    a_start: u32,
    a_stride: u32,
    k4: u32,
) -> array<array<vec4<f32>, ROWS>, COLUMNS> {
    var added = sums;
    var x: array<vec4<f32>, ROWS>;
    for (var r = 0u; r < ROWS; r++) {
        x[r] = load4(a[a_start + r * a_stride + k4]);
    }
    for (var c = 0u; c < COLUMNS; c++) {
        let w = load_b4(starts[c] + k4);
        for (var r = 0u; r < ROWS; r++) {
            added[c][r] = fma(x[r], w, added[c][r]);
        }
    }
    return added;
}
