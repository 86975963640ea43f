// Matrix product for any GPU:   y (M, N) [+]= a · b  [+ bias] [+ residual]      (operands as in matmul/software.wgsl)
//
// A workgroup of 16 x 16 invocations owns a tile of y: 64·TM4 rows by 64·TN4 columns. It walks K in steps of DEPTH:
// both operands' slices come to workgroup memory as [k][row / 4] and [k][column / 4], so the inner loop reads one vec4
// of each and does 16 multiply-adds per pair, whatever the operands' layout. Copying works in blocks of 4 x 4, turned in
// registers where the layout asks for it. Invocation (tx, ty) owns rows 4 (ty + 16 i) + 0..3, columns 4 (tx + 16 j) +
// 0..3: neighbours read neighbouring vec4s.
// `grouped`: see matmul/software.wgsl. Numerics: f32 sums over k in ascending order; loads past the edge give zero.
// Workgroup memory: 16 · DEPTH · (TM4 + TN4) · 16 bytes, 8 KiB for the 128 x 128 tile with DEPTH 8.

import package::lib::element::{Packed, load4, store4};
import package::lib::group::{Group, group_of_tile};
import package::lib::row::keep_inside;
import package::tile::{TM4, TN4, DEPTH};

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

const SIDE: u32 = 16u; // invocations along each side of the workgroup
const A_WIDTH: u32 = SIDE * TM4; // vec4s along the rows of the tile
const B_WIDTH: u32 = SIDE * TN4;

var<workgroup> a_tile: array<vec4<f32>, DEPTH * A_WIDTH>;
var<workgroup> b_tile: array<vec4<f32>, DEPTH * B_WIDTH>;

@compute @workgroup_size(SIDE, SIDE)
fn matmul(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    @if(grouped) {
        pick_group(workgroup);
        if (group.rows == 0u) {
            return; // what nobody adds to stays untouched
        }
    }
    @if(!grouped || a_transposed) let first_row4 = workgroup.y * A_WIDTH;
    @if(grouped && !a_transposed) let first_row4 = 0u;
    @if(!grouped || !a_transposed) let first_column4 = workgroup.x * B_WIDTH;
    @if(grouped && a_transposed) let first_column4 = workgroup.z * B_WIDTH;
    var sums: array<vec4<f32>, 4u * TM4 * TN4>; // [row block i][row within it][column block j]

    for (var k0 = 0u; k0 < size_k(); k0 += DEPTH) {
        copy_tiles(lane, first_row4, first_column4, k0);
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            for (var i = 0u; i < TM4; i++) {
                let x = a_tile[k * A_WIDTH + local.y + SIDE * i];
                for (var j = 0u; j < TN4; j++) {
                    let w = b_tile[k * B_WIDTH + local.x + SIDE * j];
                    let at = 4u * i * TN4 + j;
                    sums[at] = fma(vec4<f32>(x.x), w, sums[at]);
                    sums[at + TN4] = fma(vec4<f32>(x.y), w, sums[at + TN4]);
                    sums[at + 2u * TN4] = fma(vec4<f32>(x.z), w, sums[at + 2u * TN4]);
                    sums[at + 3u * TN4] = fma(vec4<f32>(x.w), w, sums[at + 3u * TN4]);
                }
            }
        }
        workgroupBarrier();
    }

    for (var i = 0u; i < TM4; i++) {
        for (var r = 0u; r < 4u; r++) {
            for (var j = 0u; j < TN4; j++) {
                let row = 4u * (first_row4 + local.y + SIDE * i) + r;
                epilogue(sums[(4u * i + r) * TN4 + j], row, first_column4 + local.x + SIDE * j);
            }
        }
    }
}

// Both slices, cut into blocks of 4 k by 4 rows (or columns); the workgroup's invocations take turns.
fn copy_tiles(lane: u32, first_row4: u32, first_column4: u32, k0: u32) {
    for (var block = lane; block < (DEPTH / 4u) * (A_WIDTH + B_WIDTH); block += SIDE * SIDE) {
        let k4 = block / (A_WIDTH + B_WIDTH);
        let column = block % (A_WIDTH + B_WIDTH);
        if (column < A_WIDTH) {
            let values = a_block(first_row4 + column, k0 / 4u + k4);
            for (var r = 0u; r < 4u; r++) {
                a_tile[(4u * k4 + r) * A_WIDTH + column] = values[r];
            }
        } else {
            let values = b_block(first_column4 + column - A_WIDTH, k0 / 4u + k4);
            for (var r = 0u; r < 4u; r++) {
                b_tile[(4u * k4 + r) * B_WIDTH + column - A_WIDTH] = values[r];
            }
        }
    }
}

// A block of `a`: one vec4 along the rows for each of four k.
@if(a_transposed)
fn a_block(row4: u32, k4: u32) -> array<vec4<f32>, 4> {
    var block: array<vec4<f32>, 4>;
    for (var i = 0u; i < 4u; i++) {
        block[i] = load_a(4u * k4 + i, row4, size_k(), params.m);
    }
    return block;
}

@if(!a_transposed)
fn a_block(row4: u32, k4: u32) -> array<vec4<f32>, 4> {
    return turn(
        load_a(4u * row4, k4, size_m(), params.k),
        load_a(4u * row4 + 1u, k4, size_m(), params.k),
        load_a(4u * row4 + 2u, k4, size_m(), params.k),
        load_a(4u * row4 + 3u, k4, size_m(), params.k),
    );
}

// A block of `b`: one vec4 along the columns for each of four k.
@if(!b_transposed)
fn b_block(column4: u32, k4: u32) -> array<vec4<f32>, 4> {
    var block: array<vec4<f32>, 4>;
    for (var i = 0u; i < 4u; i++) {
        block[i] = load_b(4u * k4 + i, column4, size_k(), params.n);
    }
    return block;
}

@if(b_transposed)
fn b_block(column4: u32, k4: u32) -> array<vec4<f32>, 4> {
    return turn(
        load_b(4u * column4, k4, params.n, params.k),
        load_b(4u * column4 + 1u, k4, params.n, params.k),
        load_b(4u * column4 + 2u, k4, params.n, params.k),
        load_b(4u * column4 + 3u, k4, params.n, params.k),
    );
}

fn turn(x: vec4<f32>, y: vec4<f32>, z: vec4<f32>, w: vec4<f32>) -> array<vec4<f32>, 4> {
    let turned = transpose(mat4x4<f32>(x, y, z, w));
    return array<vec4<f32>, 4>(turned[0], turned[1], turned[2], turned[3]);
}

fn load_a(row: u32, column4: u32, rows: u32, columns: u32) -> vec4<f32> {
    if (row >= rows || 4u * column4 >= columns) {
        return vec4<f32>(0.0);
    }
    return load4(a[a_start() + row * params.a_stride + column4]);
}

fn load_b(row: u32, column4: u32, rows: u32, columns: u32) -> vec4<f32> {
    if (row >= rows || 4u * column4 >= columns) {
        return vec4<f32>(0.0);
    }
    return load4(b[b_start() + row * params.b_stride + column4]);
}

fn epilogue(sum: vec4<f32>, row: u32, column4: u32) {
    if (row >= size_m() || 4u * column4 >= params.n) {
        return;
    }
    let at = y_start() + row * params.y_stride + column4;
    var value = sum;
    @if(bias) { value += load4(bias[column4]); }
    @if(residual) { value += load4(residual[row * params.residual_stride + column4]); }
    @if(accumulate) { value += load_y(at); }
    store_y(at, keep_inside(value, 4u * column4, params.n));
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
