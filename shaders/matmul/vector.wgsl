// Product of few rows, for decoding:   y (M, N) [+]= a (M, K) · b (N, K)ᵀ  [+ bias (N)] [+ residual (M, N)]      M = ROWS
//
// Each element of b is used M times only, so loading b is the cost, on every tier. A workgroup computes 4·COLUMNS4 columns of
// all rows of y: its invocations share each sum along k, so that neighbours load neighbouring groups of a row of b, and one
// load of `a` serves all these rows of b. Their parts are added at the end (lib/reduce).
//
//   normed   a is normalised on its way, a / sqrt(mean(a²) + epsilon) · norm: each workgroup sums the squares of its rows again,
//            beside loads of b that take longer
//   gated    y = silu(gate) · up: b holds the rows of gate, and from `up_start` on those of up
//
// Numerics: f32; each invocation sums every LANES-th group of 4, in ascending order, and the parts are added in the order of a
// tree.

import package::lib::element::load4;
@if(normed) import package::lib::element::Packed;
@if(nf4) import package::lib::quantised::fill_levels;
@if(normed) import package::lib::reduce::row_sum;
import package::lib::reduce::{STEP, first_of, row_sum4};
@if(gated) import package::lib::silu::silu;
import package::matmul::operands::{a, bias_of, destination, epilogue, load_b4, params, product_of};
@if(gated && bias) import package::matmul::operands::bias;
import package::tile::{ROWS, COLUMNS4, LANES};

@if(normed) @group(0) @binding(6) var<storage, read> norm: array<Packed>; // (K)

const COLUMNS: u32 = 4u * COLUMNS4; // rows of b that a workgroup reads
@if(gated) const RESULTS4: u32 = COLUMNS4 / 2u; // groups of 4 columns of y that it writes
@if(!gated) const RESULTS4: u32 = COLUMNS4;

// What an invocation has summed.
struct Sums {
    products: array<array<vec4<f32>, ROWS>, COLUMNS>,
    @if(normed) squares: array<f32, ROWS>,
}

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(nf4) {
        fill_levels(lane);
        workgroupBarrier();
    }
    let product = product_of(workgroup);
    let first4 = workgroup.x * RESULTS4;
    var starts: array<u32, COLUMNS>; // the rows of b; those past the end are copies of the last
    for (var c = 0u; c < COLUMNS; c++) {
        starts[c] = product.b_start + row_of_b(first4, c) * params.b_stride;
    }
    let a_stride = params.a_stride;
    var sums: Sums;
    for (var k4 = first_of(lane); 4u * k4 < product.k; k4 += STEP) {
        var x: array<vec4<f32>, ROWS>;
        for (var r = 0u; r < ROWS; r++) {
            x[r] = load4(a[product.a_start + r * a_stride + k4]);
            @if(normed) {
                sums.squares[r] += dot(x[r], x[r]); // padding is zero
                x[r] *= load4(norm[k4]);
            }
        }
        for (var c = 0u; c < COLUMNS; c++) {
            let w = load_b4(starts[c] + k4);
            for (var r = 0u; r < ROWS; r++) {
                sums.products[c][r] = fma(x[r], w, sums.products[c][r]);
            }
        }
    }

    let to = destination(product);
    for (var r = 0u; r < ROWS; r++) {
        @if(normed) let scale = inverseSqrt(row_sum(sums.squares[r], lane) / f32(product.k) + params.epsilon);
        @if(!normed) let scale = 1.0;
        var columns: array<vec4<f32>, COLUMNS4>;
        for (var c4 = 0u; c4 < COLUMNS4; c4++) {
            var own: vec4<f32>; // this invocation's part of four columns
            for (var c = 0u; c < 4u; c++) {
                own[c] = dot(sums.products[4u * c4 + c][r], vec4<f32>(1.0));
            }
            columns[c4] = scale * row_sum4(own, lane);
        }
        for (var c4 = 0u; c4 < RESULTS4; c4++) {
            let added = bias_of(first4 + c4);
            @if(!gated) {
                if (lane == 0u) {
                    epilogue(columns[c4], added, to, r, first4 + c4);
                }
            }
            @if(gated) {
                var up = columns[RESULTS4 + c4];
                @if(bias) { up += load4(bias[params.up_start / 4u + first4 + c4]); }
                if (lane == 0u) {
                    epilogue(silu(columns[c4] + added) * up, vec4<f32>(0.0), to, r, first4 + c4);
                }
            }
        }
    }
}

// The row of b for sum c of a workgroup. Past the end it is the last, whose sum is not stored.
@if(!gated)
fn row_of_b(first4: u32, c: u32) -> u32 {
    return min(4u * first4 + c, params.n - 1u);
}

@if(gated)
fn row_of_b(first4: u32, c: u32) -> u32 {
    let half = 4u * RESULTS4;
    return min(4u * first4 + c % half, params.n - 1u) + c / half * params.up_start;
}
