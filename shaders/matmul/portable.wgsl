// Matrix product, portable tier:   y (M, N) [+]= a · b  [+ bias] [+ residual]      (operands as in
// matmul/software.wgsl)
//
// A workgroup of 16 x 16 invocations computes a tile of 64·TM4 rows by 64·TN4 columns of y. It walks K in steps of
// DEPTH: the slices of both operands are staged in workgroup memory as [k][row / 4] and [k][column / 4], so the inner
// loop reads one vec4 of each and does 16 multiply-adds per pair, whatever the layout. Staging copies blocks of 4 x 4,
// transposed in registers where the layout requires it. Invocation (tx, ty) owns rows 4 (ty + 16 i) + 0..3 and columns
// 4 (tx + 16 j) + 0..3, so neighbouring invocations read neighbouring vec4s.
// `grouped`, `split`: see matmul/operands.wgsl. Numerics: f32 sums over k in ascending order; loads past the edge return
// zero.
// Workgroup memory: 16 · DEPTH · (TM4 + TN4) · 16 bytes, 8 KiB for the 128 x 128 tile with DEPTH 8; with `nf4` 64 more.

import package::lib::element::load4;
@if(nf4) import package::lib::quantised::fill_levels;
import package::matmul::operands::{Product, a, load_b4, params, product_of};
import package::matmul::operands::{bias_of, destination, epilogue};
import package::tile::{TM4, TN4, DEPTH};

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
    let product = product_of(workgroup);
    @if(grouped) {
        if (product.m == 0u) {
            return;
        }
    }
    @if(nf4) {
        fill_levels(lane);
        workgroupBarrier();
    }
    @if(!grouped || a_transposed) let first_row4 = workgroup.y * A_WIDTH;
    @if(grouped && !a_transposed) let first_row4 = 0u;
    @if(!grouped || !a_transposed) let first_column4 = workgroup.x * B_WIDTH;
    @if(grouped && a_transposed) let first_column4 = workgroup.z * B_WIDTH;
    var sums: array<vec4<f32>, 4u * TM4 * TN4>; // [row block i][row within it][column block j]

    for (var k0 = 0u; k0 < product.k; k0 += DEPTH) {
        copy_tiles(product, lane, first_row4, first_column4, k0);
        workgroupBarrier();
        // Intel's compiler unrolls a known number of steps, and then holds more operands than fit beside the sums of the
        // large tile.
        let steps = select(DEPTH, min(DEPTH, product.k - k0), TM4 * TN4 > 1u);
        for (var k = 0u; k < steps; k++) {
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

    let to = destination(product);
    for (var j = 0u; j < TN4; j++) {
        let column4 = first_column4 + local.x + SIDE * j;
        let added = bias_of(column4);
        for (var i = 0u; i < TM4; i++) {
            for (var r = 0u; r < 4u; r++) {
                let row = 4u * (first_row4 + local.y + SIDE * i) + r;
                epilogue(sums[(4u * i + r) * TN4 + j], added, to, row, column4);
            }
        }
    }
}

// Stages both slices, in blocks of 4 k by 4 rows (or columns) that the invocations take in turn.
fn copy_tiles(product: Product, lane: u32, first_row4: u32, first_column4: u32, k0: u32) {
    for (var block = lane; block < (DEPTH / 4u) * (A_WIDTH + B_WIDTH); block += SIDE * SIDE) {
        let k4 = block / (A_WIDTH + B_WIDTH);
        let column = block % (A_WIDTH + B_WIDTH);
        if (column < A_WIDTH) {
            let values = a_block(product, first_row4 + column, k0 / 4u + k4);
            for (var r = 0u; r < 4u; r++) {
                a_tile[(4u * k4 + r) * A_WIDTH + column] = values[r];
            }
        } else {
            let values = b_block(product, first_column4 + column - A_WIDTH, k0 / 4u + k4);
            for (var r = 0u; r < 4u; r++) {
                b_tile[(4u * k4 + r) * B_WIDTH + column - A_WIDTH] = values[r];
            }
        }
    }
}

// A block of `a`: one vec4 along the rows for each of four k.
@if(a_transposed)
fn a_block(product: Product, row4: u32, k4: u32) -> array<vec4<f32>, 4> {
    var block: array<vec4<f32>, 4>;
    for (var i = 0u; i < 4u; i++) {
        block[i] = load_a(product, 4u * k4 + i, row4, product.k, params.m);
    }
    return block;
}

@if(!a_transposed)
fn a_block(product: Product, row4: u32, k4: u32) -> array<vec4<f32>, 4> {
    return turn(
        load_a(product, 4u * row4, k4, product.m, product.k),
        load_a(product, 4u * row4 + 1u, k4, product.m, product.k),
        load_a(product, 4u * row4 + 2u, k4, product.m, product.k),
        load_a(product, 4u * row4 + 3u, k4, product.m, product.k),
    );
}

// A block of `b`: one vec4 along the columns for each of four k.
@if(!b_transposed)
fn b_block(product: Product, column4: u32, k4: u32) -> array<vec4<f32>, 4> {
    var block: array<vec4<f32>, 4>;
    for (var i = 0u; i < 4u; i++) {
        block[i] = load_b(product, 4u * k4 + i, column4, product.k, params.n);
    }
    return block;
}

@if(b_transposed)
fn b_block(product: Product, column4: u32, k4: u32) -> array<vec4<f32>, 4> {
    return turn(
        load_b(product, 4u * column4, k4, params.n, product.k),
        load_b(product, 4u * column4 + 1u, k4, params.n, product.k),
        load_b(product, 4u * column4 + 2u, k4, params.n, product.k),
        load_b(product, 4u * column4 + 3u, k4, params.n, product.k),
    );
}

fn turn(x: vec4<f32>, y: vec4<f32>, z: vec4<f32>, w: vec4<f32>) -> array<vec4<f32>, 4> {
    let turned = transpose(mat4x4<f32>(x, y, z, w));
    return array<vec4<f32>, 4>(turned[0], turned[1], turned[2], turned[3]);
}

fn load_a(product: Product, row: u32, column4: u32, rows: u32, columns: u32) -> vec4<f32> {
    if (row >= rows || 4u * column4 >= columns) {
        return vec4<f32>(0.0);
    }
    return load4(a[product.a_start + row * params.a_stride + column4]);
}

fn load_b(product: Product, row: u32, column4: u32, rows: u32, columns: u32) -> vec4<f32> {
    if (row >= rows || 4u * column4 >= columns) {
        return vec4<f32>(0.0);
    }
    return load_b4(product.b_start + row * params.b_stride + column4);
}
