// Product of few rows, for decoding:   y (M, N) [+]= a (M, K) · b (N, K)ᵀ  [+ bias (N)] [+ residual (M, N)]   M = ROWS
//
// Each element of b is used M times only, so loading b is the cost, on every tier. A workgroup computes 4·COLUMNS4
// columns of all rows of y: its invocations share each sum along k, so that neighbours load neighbouring groups of a
// row of b, and one load of `a` serves all these rows of b. Their parts are added at the end (lib/reduce).
//
//   normed   a is normalised after loading, a / sqrt(mean(a²) + epsilon) · norm (`zero_centered`: 1 + norm): each workgroup sums the squares of its
//            rows again, beside loads of b that take longer
//   gated    y = act(gate) · up (lib/gate): b holds the rows of gate, and from `up_start` on those of up
//
// Numerics: f32; each invocation sums every LANES-th group of 4, in ascending order, and the parts are added in the
// order of a tree.

import package::lib::element::load4;
@if(normed) import package::lib::element::Packed;
@if(gated) import package::lib::gate::gated;
@if(normed) import package::lib::norm::norm_factors;
@if(nf4) import package::lib::quantised::fill_levels;
@if(normed) import package::lib::reduce::row_sum;
import package::lib::reduce::{STEP, first_of, row_sum4};
import package::matmul::operands::{Product, a, bias_of, destination, epilogue, load_b4, params, product_of};
@if(gated) import package::matmul::operands::bias_of_up;
import package::tile::{ROWS, COLUMNS4, LANES};

@if(normed) @group(0) @binding(6) var<storage, read> norm: array<Packed>; // (K)

const COLUMNS: u32 = 4u * COLUMNS4;

// Sums by groups of 4 columns, and by row.
alias Columns = array<array<vec4<f32>, ROWS>, COLUMNS4>;

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(nf4) {
        fill_levels(lane);
        workgroupBarrier();
    }
    let product = product_of(workgroup);
    let first4 = workgroup.x * COLUMNS4;
    var sums = columns_from(product, first4, 0u, lane);
    @if(gated) var ups = columns_from(product, first4, params.up_start, lane);
    let to = destination(product);
    for (var c4 = 0u; c4 < COLUMNS4; c4++) {
        let added = bias_of(to, first4 + c4);
        @if(gated) let up_added = bias_of_up(first4 + c4);
        for (var r = 0u; r < ROWS; r++) {
            if (lane == 0u) {
                @if(!gated) { epilogue(sums[c4][r], added, to, r, first4 + c4); }
                @if(gated) {
                    let value = gated(sums[c4][r] + added, ups[c4][r] + up_added);
                    epilogue(value, vec4<f32>(0.0), to, r, first4 + c4);
                }
            }
        }
    }
}

// The sums for rows 4 · first4 to 4 · first4 + COLUMNS - 1 of the rows of b that begin at `start`.
fn columns_from(product: Product, first4: u32, start: u32, lane: u32) -> Columns {
    var starts: array<u32, COLUMNS>; // rows past the end are copies of the last
    for (var c = 0u; c < COLUMNS; c++) {
        starts[c] = product.b_start + (start + min(4u * first4 + c, params.n - 1u)) * params.b_stride;
    }
    let a_stride = params.a_stride;
    var sums: array<array<vec4<f32>, ROWS>, COLUMNS>;
    @if(normed) var squares: array<f32, ROWS>;
    for (var k4 = first_of(lane); 4u * k4 < product.k; k4 += STEP) {
        var x: array<vec4<f32>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            x[r] = load4(a[product.a_start + r * a_stride + k4]);
            @if(normed) {
                squares[r] += dot(x[r], x[r]); // padding is zero
                x[r] *= norm_factors(norm[k4]);
            }
        }
        for (var c = 0u; c < COLUMNS; c++) {
            let w = load_b4(starts[c] + k4);
            for (var r = 0u; r < ROWS; r++) {
                sums[c][r] = fma(x[r], w, sums[c][r]);
            }
        }
    }
    var columns: Columns;
    for (var r = 0u; r < ROWS; r++) {
        @if(normed) let scale = inverseSqrt(row_sum(squares[r], lane) / f32(product.k) + params.epsilon);
        @if(!normed) let scale = 1.0;
        for (var c4 = 0u; c4 < COLUMNS4; c4++) {
            var own: vec4<f32>; // this invocation's part of four columns
            for (var c = 0u; c < 4u; c++) {
                own[c] = dot(sums[4u * c4 + c][r], vec4<f32>(1.0));
            }
            columns[c4][r] = scale * row_sum4(own, lane);
        }
    }
    return columns;
}
