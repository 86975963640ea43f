// Matrix product for CPU adapters:   y (M, N) [+]= a · b  [+ bias] [+ residual]
//
//   default         a (M, K), b (K, N)      dx = dy W
//   b_transposed    a (M, K), b (N, K)      y  = x Wᵀ
//   a_transposed    a (K, M), b (K, N)      dW = dyᵀ x
//
// One invocation owns ROWS rows by COLUMNS4 groups of 4 columns and walks K alone: no barrier, no workgroup memory (both
// are slow where a core plays a GPU). Neighbouring invocations own neighbouring groups; the rows come from the workgroup's
// index, so every load from `a` is the same for all of them and costs one scalar load. Those loads are most of the time
// all the same, which is why an invocation has more than one group of columns for each.
// Indices past the edge are clamped, not branched around: control flow would make those loads divergent.
// Sums are arrays of arrays, indexed by loop counters alone: drivers unroll such loops, and keep no array in memory.
// With `grouped` the rows of `a` belong to experts, each with a matrix of its own in a stack: b (E, ...), or y where a
// is transposed. A workgroup's rows are a tile of the work list. Where a is transposed they are all of an expert's, whom
// its x names, and its z counts columns.
// Numerics: f32 sums over k in ascending order.

import package::lib::element::{Packed, load4, store4};
import package::lib::group::{Group, group_of_tile};
import package::lib::row::keep_inside;
import package::tile::{ROWS, COLUMNS4, LANES};

struct Params {
    m: u32,
    n: u32,
    k: u32,
    a_offset: u32, // offsets and strides count groups of 4 elements
    b_offset: u32,
    y_offset: u32,
    a_stride: u32,
    b_stride: u32,
    y_stride: u32,
    residual_stride: u32,
    @if(grouped) first_expert: u32, // of the part of the stack that is bound
    @if(grouped) experts: u32, // in that part
    @if(grouped) matrix_stride: u32, // from one expert's matrix to the next
}

@if(gradient) alias Output = vec4<f32>;
@if(!gradient) alias Output = Packed;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<Packed>;
@group(0) @binding(2) var<storage, read> b: array<Packed>;
@group(0) @binding(3) var<storage, read_write> y: array<Output>;
@if(bias) @group(0) @binding(4) var<storage, read> bias: array<Packed>; // (N)
@if(residual) @group(0) @binding(5) var<storage, read> residual: array<Packed>; // (M, N)
@if(grouped && !a_transposed) @group(0) @binding(6) var<storage, read> tiles: array<vec4<u32>>; // see work_list.wgsl
@if(grouped && a_transposed) @group(0) @binding(6) var<storage, read> offsets: array<u32>; // (E + 1), rows by expert

@if(grouped) var<private> group: Group; // what this workgroup works on

alias Sums = array<array<vec4<f32>, COLUMNS4>, ROWS>;
alias Columns = array<u32, COLUMNS4>; // which groups of 4

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    @if(grouped) { pick_group(workgroup); }
    @if(!grouped || a_transposed) let first_row = workgroup.y * ROWS;
    @if(grouped && !a_transposed) let first_row = 0u;
    @if(!grouped || !a_transposed) let first_column4 = workgroup.x * LANES * COLUMNS4 + local.x;
    @if(grouped && a_transposed) let first_column4 = workgroup.z * LANES * COLUMNS4 + local.x;
    let columns4 = (params.n + 3u) / 4u;
    var columns: Columns;
    for (var c = 0u; c < COLUMNS4; c++) {
        columns[c] = min(first_column4 + c * LANES, columns4 - 1u);
    }
    var sums = mainloop(first_row, columns);
    for (var c = 0u; c < COLUMNS4; c++) {
        let column4 = first_column4 + c * LANES;
        @if(grouped) let writes = column4 < columns4 && group.rows > 0u; // what nobody adds to stays untouched
        @if(!grouped) let writes = column4 < columns4;
        if (writes) {
            for (var r = 0u; r < ROWS; r++) {
                epilogue(sums[r][c], first_row + r, column4);
            }
        }
    }
}

@if(!a_transposed && !b_transposed)
fn mainloop(first_row: u32, clamped: Columns) -> Sums {
    var columns = clamped; // naga indexes a variable, not a value, by a loop's counter
    var sums: Sums;
    let last_k = size_k() - 1u;
    for (var k4 = 0u; k4 < (size_k() + 3u) / 4u; k4++) {
        // `a` is zero in its pad, so a clamped row of `b` counts for nothing.
        var b: array<mat4x4<f32>, COLUMNS4>;
        for (var c = 0u; c < COLUMNS4; c++) {
            b[c] = mat4x4<f32>(
                load_b(4u * k4, columns[c]),
                load_b(min(4u * k4 + 1u, last_k), columns[c]),
                load_b(min(4u * k4 + 2u, last_k), columns[c]),
                load_b(min(4u * k4 + 3u, last_k), columns[c]),
            );
        }
        for (var r = 0u; r < ROWS; r++) {
            let x = load_a(min(first_row + r, size_m() - 1u), k4);
            for (var c = 0u; c < COLUMNS4; c++) {
                sums[r][c] = add_four(x, b[c], sums[r][c]);
            }
        }
    }
    return sums;
}

@if(b_transposed)
fn mainloop(first_row: u32, clamped: Columns) -> Sums {
    var columns = clamped; // naga indexes a variable, not a value, by a loop's counter
    var sums: Sums;
    let last_n = params.n - 1u;
    for (var k4 = 0u; k4 < (size_k() + 3u) / 4u; k4++) {
        // Four columns of b by four k, turned so that each vector again runs along the columns.
        var b: array<mat4x4<f32>, COLUMNS4>;
        for (var c = 0u; c < COLUMNS4; c++) {
            let n0 = 4u * columns[c];
            b[c] = transpose(mat4x4<f32>(
                load_b(n0, k4),
                load_b(min(n0 + 1u, last_n), k4),
                load_b(min(n0 + 2u, last_n), k4),
                load_b(min(n0 + 3u, last_n), k4),
            ));
        }
        for (var r = 0u; r < ROWS; r++) {
            let x = load_a(min(first_row + r, size_m() - 1u), k4);
            for (var c = 0u; c < COLUMNS4; c++) {
                sums[r][c] = add_four(x, b[c], sums[r][c]);
            }
        }
    }
    return sums;
}

// sum + four steps along k, in ascending order.
fn add_four(x: vec4<f32>, b: mat4x4<f32>, sum: vec4<f32>) -> vec4<f32> {
    let two = fma(vec4<f32>(x.y), b[1], fma(vec4<f32>(x.x), b[0], sum));
    return fma(vec4<f32>(x.w), b[3], fma(vec4<f32>(x.z), b[2], two));
}

@if(a_transposed)
fn mainloop(first_row: u32, clamped: Columns) -> Sums {
    var columns = clamped; // naga indexes a variable, not a value, by a loop's counter
    var sums: Sums;
    let first_row4 = first_row / 4u;
    let last_row4 = (size_m() - 1u) / 4u;
    let last_k = size_k() - 1u;
    for (var k0 = 0u; k0 < size_k(); k0 += 2u) {
        for (var i = 0u; i < 2u; i++) {
            // Two k at a time, for fewer turns of the loop; past the end `b` counts for nothing.
            let k = min(k0 + i, last_k);
            var b: array<vec4<f32>, COLUMNS4>;
            for (var c = 0u; c < COLUMNS4; c++) {
                b[c] = select(vec4<f32>(0.0), load_b(k, columns[c]), k == k0 + i);
            }
            for (var r4 = 0u; r4 < ROWS / 4u; r4++) {
                let x = load_a(k, min(first_row4 + r4, last_row4));
                for (var c = 0u; c < COLUMNS4; c++) {
                    sums[4u * r4][c] = fma(vec4<f32>(x.x), b[c], sums[4u * r4][c]);
                    sums[4u * r4 + 1u][c] = fma(vec4<f32>(x.y), b[c], sums[4u * r4 + 1u][c]);
                    sums[4u * r4 + 2u][c] = fma(vec4<f32>(x.z), b[c], sums[4u * r4 + 2u][c]);
                    sums[4u * r4 + 3u][c] = fma(vec4<f32>(x.w), b[c], sums[4u * r4 + 3u][c]);
                }
            }
        }
    }
    return sums;
}

fn epilogue(sum: vec4<f32>, row: u32, column4: u32) {
    if (row < size_m()) {
        let at = y_start() + row * params.y_stride + column4;
        var value = sum;
        @if(bias) { value += load4(bias[column4]); }
        @if(residual) { value += load4(residual[row * params.residual_stride + column4]); }
        @if(accumulate) { value += load_y(at); }
        store_y(at, keep_inside(value, 4u * column4, params.n));
    }
}

fn load_a(row: u32, column4: u32) -> vec4<f32> {
    return load4(a[a_start() + row * params.a_stride + column4]);
}

fn load_b(row: u32, column4: u32) -> vec4<f32> {
    return load4(b[b_start() + row * params.b_stride + column4]);
}

@if(grouped && !a_transposed)
fn pick_group(workgroup: vec3<u32>) {
    group = group_of_tile(tiles[workgroup.y], params.first_expert, params.experts);
}

@if(grouped && a_transposed)
fn pick_group(workgroup: vec3<u32>) {
    let first = offsets[params.first_expert + workgroup.x];
    group = Group(first, offsets[params.first_expert + workgroup.x + 1u] - first, workgroup.x);
}

// Rows of the result and length of the sums. Rows of `a` are grouped: they are rows of the result, or, transposed, what
// is summed over.
@if(!grouped || a_transposed) fn size_m() -> u32 { return params.m; }
@if(grouped && !a_transposed) fn size_m() -> u32 { return group.rows; }
@if(!grouped) fn size_k() -> u32 { return params.k; }
@if(grouped && !a_transposed) fn size_k() -> u32 { return select(params.k, 0u, group.rows == 0u); }
@if(grouped && a_transposed) fn size_k() -> u32 { return group.rows; }

// Where each operand starts.
@if(!grouped) fn a_start() -> u32 { return params.a_offset; }
@if(grouped) fn a_start() -> u32 { return params.a_offset + group.first * params.a_stride; }
@if(!grouped) fn b_start() -> u32 { return params.b_offset; }
@if(grouped && !a_transposed) fn b_start() -> u32 { return params.b_offset + group.matrix * params.matrix_stride; }
@if(grouped && a_transposed) fn b_start() -> u32 { return params.b_offset + group.first * params.b_stride; }
@if(!grouped) fn y_start() -> u32 { return params.y_offset; }
@if(grouped && !a_transposed) fn y_start() -> u32 { return params.y_offset + group.first * params.y_stride; }
@if(grouped && a_transposed) fn y_start() -> u32 { return params.y_offset + group.matrix * params.matrix_stride; }

// A gradient is f32 whatever the element.
@if(gradient) fn load_y(at: u32) -> vec4<f32> { return y[at]; }
@if(!gradient) fn load_y(at: u32) -> vec4<f32> { return load4(y[at]); }
@if(gradient) fn store_y(at: u32, value: vec4<f32>) { y[at] = value; }
@if(!gradient) fn store_y(at: u32, value: vec4<f32>) { y[at] = store4(value); }
