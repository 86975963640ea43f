// Matrix product, software tier:   y (M, N) [+]= a · b  [+ bias (N)] [+ residual (M, N)]
//
//   default         a (M, K), b (K, N)      dx = dy W
//   b_transposed    a (M, K), b (N, K)      y  = x Wᵀ
//   a_transposed    a (K, M), b (K, N)      dW = dyᵀ x
//
// One invocation computes a register tile of ROWS rows by COLUMNS4 groups of 4 columns and walks K without barriers,
// which are slow on a CPU. The invocations of a workgroup own neighbouring column groups of the same rows and share
// their loads of `a` by shuffles (lib/lanes). Loads still dominate, hence more than one column group per invocation.
// Indices past the edge are clamped, not branched around: every lane has to take part in the shuffles. `grouped`: see
// matmul/operands.wgsl.
// The sums are an array of arrays indexed by loop counters alone: drivers unroll such loops and keep the sums in
// registers. They leave through workgroup memory (256 · ROWS bytes) and a rolled loop, because an unrolled epilogue per
// sum would dominate the code and its compile time. Loop invariants are hoisted by hand: these drivers do not hoist
// them.
// Numerics: f32 sums over k in ascending order.

import package::lib::element::load4;
import package::lib::lanes::{SHARED, own_share, from_lane};
@if(nf4) import package::lib::quantised::fill_levels;
import package::matmul::operands::{Product, a, load_b4, params, product_of};
import package::matmul::operands::{bias_of, destination, epilogue};
import package::tile::{ROWS, COLUMNS4, LANES};

alias Sums = array<array<vec4<f32>, COLUMNS4>, ROWS>;
alias Columns = array<u32, COLUMNS4>; // in groups of 4

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(nf4) {
        fill_levels(lane);
        workgroupBarrier();
    }
    let product = product_of(workgroup);
    @if(!grouped || a_transposed) let first_row = workgroup.y * ROWS;
    @if(grouped && !a_transposed) let first_row = 0u;
    @if(!grouped || !a_transposed) let first_column4 = workgroup.x * LANES * COLUMNS4 + lane;
    @if(grouped && a_transposed) let first_column4 = workgroup.z * LANES * COLUMNS4 + lane;
    let columns4 = (params.n + 3u) / 4u;
    var columns: Columns;
    for (var c = 0u; c < COLUMNS4; c++) {
        columns[c] = min(first_column4 + c * LANES, columns4 - 1u);
    }
    var sums = mainloop(product, first_row, columns, own_share(lane));
    for (var c = 0u; c < COLUMNS4; c++) {
        for (var r = 0u; r < ROWS; r++) {
            finished[(c * ROWS + r) * LANES + lane] = sums[r][c];
        }
    }
    let to = destination(product);
    let rows = min(ROWS, to.rows - min(first_row, to.rows));
    for (var c = 0u; c < COLUMNS4; c++) {
        let column4 = first_column4 + c * LANES;
        let added = bias_of(to, column4);
        for (var r = 0u; r < rows; r++) {
            epilogue(finished[(c * ROWS + r) * LANES + lane], added, to, first_row + r, column4);
        }
    }
}

// Each invocation reads back only what it wrote, so no barrier is needed.
var<workgroup> finished: array<vec4<f32>, COLUMNS4 * ROWS * LANES>;

@if(!a_transposed)
fn mainloop(product: Product, first_row: u32, clamped: Columns, share: u32) -> Sums {
    var columns = clamped; // naga allows dynamic indexing of variables, not of values
    var sums: Sums;
    let in_a = Matrix(product.a_start, params.a_stride);
    let in_b = Matrix(product.b_start, params.b_stride);
    let size = product.k;
    @if(b_transposed) let last = params.n - 1u; // row of b
    @if(!b_transposed) let last = size - 1u; // the padding of `a` is zero, so clamped rows of `b` contribute nothing
    var rows: array<u32, ROWS / SHARED>;
    for (var g = 0u; g < ROWS / SHARED; g++) {
        rows[g] = place(in_a, min(first_row + g * SHARED + share, product.m - 1u), 0u);
    }
    for (var k4 = 0u; k4 < (size + 3u) / 4u; k4++) {
        var b: array<mat4x4<f32>, COLUMNS4>; // 4 rows along k; each vector holds 4 columns
        for (var c = 0u; c < COLUMNS4; c++) {
            @if(b_transposed) { b[c] = transpose(four_rows(in_b, 4u * columns[c], last, k4)); }
            @if(!b_transposed) { b[c] = four_rows(in_b, 4u * k4, last, columns[c]); }
        }
        for (var g = 0u; g < ROWS / SHARED; g++) {
            let x = load4(a[rows[g] + k4]);
            for (var s = 0u; s < SHARED; s++) {
                let row = from_lane(x, s);
                for (var c = 0u; c < COLUMNS4; c++) {
                    sums[g * SHARED + s][c] = add_four(row, b[c], sums[g * SHARED + s][c]);
                }
            }
        }
    }
    return sums;
}

@if(a_transposed)
fn mainloop(product: Product, first_row: u32, clamped: Columns, share: u32) -> Sums {
    var columns = clamped; // naga allows dynamic indexing of variables, not of values
    var sums: Sums;
    let in_a = Matrix(product.a_start, params.a_stride);
    let in_b = Matrix(product.b_start, params.b_stride);
    let size = product.k;
    let last_row4 = (product.m - 1u) / 4u;
    var rows4: array<u32, ROWS / SHARED / 4u>;
    for (var g = 0u; g < ROWS / SHARED / 4u; g++) {
        rows4[g] = min(first_row / 4u + g * SHARED + share, last_row4);
    }
    for (var k = 0u; k < size; k++) {
        var b: array<vec4<f32>, COLUMNS4>;
        for (var c = 0u; c < COLUMNS4; c++) {
            b[c] = load_b(in_b, k, columns[c]);
        }
        for (var g = 0u; g < ROWS / SHARED / 4u; g++) {
            let loaded = load4(a[place(in_a, k, rows4[g])]);
            for (var s = 0u; s < SHARED; s++) {
                let x = from_lane(loaded, s);
                let r = 4u * (g * SHARED + s);
                for (var c = 0u; c < COLUMNS4; c++) {
                    sums[r][c] = fma(vec4<f32>(x.x), b[c], sums[r][c]);
                    sums[r + 1u][c] = fma(vec4<f32>(x.y), b[c], sums[r + 1u][c]);
                    sums[r + 2u][c] = fma(vec4<f32>(x.z), b[c], sums[r + 2u][c]);
                    sums[r + 3u][c] = fma(vec4<f32>(x.w), b[c], sums[r + 3u][c]);
                }
            }
        }
    }
    return sums;
}

// Adds four steps along k to `sum`, in ascending order.
fn add_four(x: vec4<f32>, b: mat4x4<f32>, sum: vec4<f32>) -> vec4<f32> {
    let two = fma(vec4<f32>(x.y), b[1], fma(vec4<f32>(x.x), b[0], sum));
    return fma(vec4<f32>(x.w), b[3], fma(vec4<f32>(x.z), b[2], two));
}

// Location of an operand, in groups of 4 elements.
struct Matrix {
    start: u32,
    stride: u32,
}

fn place(matrix: Matrix, row: u32, column4: u32) -> u32 {
    return matrix.start + row * matrix.stride + column4;
}

fn load_b(in_b: Matrix, row: u32, column4: u32) -> vec4<f32> {
    return load_b4(place(in_b, row, column4));
}

// Rows `row` to `row` + 3, clamped to `last`.
fn four_rows(in_b: Matrix, row: u32, last: u32, column4: u32) -> mat4x4<f32> {
    return mat4x4<f32>(
        load_b(in_b, row, column4),
        load_b(in_b, min(row + 1u, last), column4),
        load_b(in_b, min(row + 2u, last), column4),
        load_b(in_b, min(row + 3u, last), column4),
    );
}
