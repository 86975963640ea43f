// Product of few rows on software adapters that gather:
//   y (M, N) [+]= a (M, K) · b (N, K)ᵀ  [+ bias (N)] [+ residual (M, N)]      M = ROWS
//
// As in matmul/vector, loading b is the cost, and `normed` and `gated` mean the same. But here a lane sums whole rows
// of b: all lanes then load their factor from one address, and only b is gathered, 64 bits at a time (matmul/operands),
// which halves the number of loads. Prefetchers do not follow gathers, so each line of the next workgroup's rows of b
// is loaded once in advance, from an address common to all lanes.
//
// Numerics: f32; four sums for each row of b, over every fourth element in ascending order, are added at the end.

import package::lib::element::{LINE4, load4};
@if(normed) import package::lib::element::Packed;
@if(gated) import package::lib::gate::gated;
@if(normed) import package::lib::norm::norm_factors;
@if(nf4) import package::lib::quantised::fill_levels;
import package::matmul::operands::{Product, a, bias_of, destination, epilogue, load_b4, params, product_of};
@if(!nf4 && !int8) import package::matmul::operands::b;
@if(gated) import package::matmul::operands::bias_of_up;
import package::tile::{ROWS, LANES};

@if(normed) @group(0) @binding(6) var<storage, read> norm: array<Packed>; // (K)

const PARTS: u32 = 2u; // rows of b that a lane sums: with `gated` one of gate and one of up
@if(gated) const COLUMNS: u32 = LANES; // columns of y in a workgroup
@if(!gated) const COLUMNS: u32 = PARTS * LANES;

// The sums of a lane.
struct Sums {
    products: array<array<vec4<f32>, ROWS>, PARTS>,
    @if(normed) squares: array<f32, ROWS>,
}

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(nf4) {
        fill_levels(lane);
        workgroupBarrier();
    }
    let product = product_of(workgroup);
    let first = workgroup.x * COLUMNS;
    var starts: array<u32, PARTS>; // start of each of the lane's rows of b; rows past the end are copies of the last
    for (var part = 0u; part < PARTS; part++) {
        starts[part] = product.b_start + row_of_b(first + lane, part) * params.b_stride;
    }
    let a_stride = params.a_stride;
    let b_stride = params.b_stride;
    var sums: Sums;
    var touched = 0u;
    let groups = (product.k + 3u) / 4u;
    let whole = groups - groups % LINE4;
    for (var line = 0u; line < whole; line += LINE4) {
        @if(!nf4 && !int8) {
            for (var part = 0u; part < PARTS; part++) {
                for (var c = 0u; c < LANES; c++) {
                    let next = product.b_start + row_of_b(first + COLUMNS + c, part) * b_stride;
                    touched |= touch(next + line);
                }
            }
        }
        for (var i = 0u; i < LINE4; i++) {
            sums = add_group(sums, starts, product.a_start, a_stride, line + i);
        }
    }
    for (var k4 = whole; k4 < groups; k4++) {
        sums = add_group(sums, starts, product.a_start, a_stride, k4);
    }

    // `touched` is below 2^31, which no compiler can know; otherwise it would drop the loads.
    let is_writer = 4u * lane < LANES && touched < params.n + 0x80000000u;
    let to = destination(product);
    for (var r = 0u; r < ROWS; r++) {
        @if(normed) let scale = inverseSqrt(sums.squares[r] / f32(product.k) + params.epsilon);
        @if(!normed) let scale = 1.0;
        var four: array<vec4<f32>, PARTS>;
        for (var part = 0u; part < PARTS; part++) {
            four[part] = four_lanes(scale * dot(sums.products[part][r], vec4<f32>(1.0)), lane);
        }
        if (is_writer) {
            @if(!gated) {
                for (var part = 0u; part < PARTS; part++) {
                    let column4 = (first + part * LANES) / 4u + lane;
                    epilogue(four[part], bias_of(to, column4), to, r, column4);
                }
            }
            @if(gated) {
                let column4 = first / 4u + lane;
                let up = four[1] + bias_of_up(column4);
                epilogue(gated(four[0] + bias_of(to, column4), up), vec4<f32>(0.0), to, r, column4);
            }
        }
    }
}

// The row of b for a lane's part; `column` is the column of its first part. Past the end it is the last row, whose sum
// is not stored.
@if(!gated)
fn row_of_b(column: u32, part: u32) -> u32 {
    return min(column + part * LANES, params.n - 1u);
}

@if(gated)
fn row_of_b(column: u32, part: u32) -> u32 {
    return min(column, params.n - 1u) + part * params.up_start;
}

// Adds the products of group k4 of every row to the sums.
fn add_group(sums: Sums, starts: array<u32, PARTS>, a_start: u32, a_stride: u32, k4: u32) -> Sums {
    var added = sums;
    for (var r = 0u; r < ROWS; r++) {
        var x = load4(a[a_start + r * a_stride + k4]);
        @if(normed) {
            added.squares[r] += dot(x, x); // padding is zero
            x *= norm_factors(norm[k4]);
        }
        for (var part = 0u; part < PARTS; part++) {
            added.products[part][r] = fma(x, load_b4(starts[part] + k4), added.products[part][r]);
        }
    }
    return added;
}

// The values of lanes 4 · lane to 4 · lane + 3.
fn four_lanes(value: f32, lane: u32) -> vec4<f32> {
    let first = 4u * lane % LANES;
    return vec4<f32>(
        subgroupShuffle(value, first),
        subgroupShuffle(value, first + 1u),
        subgroupShuffle(value, first + 2u),
        subgroupShuffle(value, first + 3u),
    );
}

// Loads 31 bits of the line of b at `at`.
@if(f32 && !nf4 && !int8) fn touch(at: u32) -> u32 { return u32(b[at].x) >> 1u; }
@if((f16 || bf16) && !nf4 && !int8) fn touch(at: u32) -> u32 { return u32(b[at]) >> 1u; }
