// Matrix product, portable tier:   y (M, N) [+]= a · b  [+ bias] [+ residual]      (operands as in matmul/software;
// `grouped`, `split`: matmul/operands.wgsl)
//
// A workgroup computes a tile of 64·TM4 rows by 64·TN4 columns of y; invocation 16 ty + tx owns rows 4 (ty + 16 i) +
// 0..3 and columns 4 (tx + 16 j) + 0..3. It walks K in slices of DEPTH steps, staged in workgroup memory. While one
// slice is multiplied, the next is loaded into registers; where 16 KiB hold both, one barrier per slice is enough.
//
// Groups of 4 are staged as they are stored, 16-bit ones packed and widened at use, in slots from k · width on:
//   rows along k    for k a multiple of 4, the groups with steps k to k + 3: of rows 0, 4, 8, .. of the tile, then 1,
//                   5, .., ..
//   rows across k   step k of columns 0..3, 4..7, ..
// So each invocation stores whole vectors (stores to different components of one may race) and reads next to its
// neighbours, without bank conflicts; two neighbours load adjacent groups of a row along k: 32 lanes touch 16 lines of
// 128 bytes, and at most two of their stores meet in a bank (tests/without_adapter/staging.rs). All invocations stage,
// without branches.
// Past the edges, loads fetch row or column 0, whose sums are not stored, or the last step, which is left out or meets
// zero padding of `a`.
// swiglu: the first half of a tile's columns are columns of gate, and the second half are the columns of up that go
// with them, so that the invocation which sums one also sums the other.
// Numerics: f32 sums over k in ascending order.

import package::lib::element::{Packed, load4};
@if(nf4) import package::lib::quantised::fill_levels;
import package::matmul::operands::{FetchedB, Product, a, fetch_b, params, product_of, widen_b};
import package::matmul::operands::{bias_of, destination};
@if(!swiglu) import package::matmul::operands::epilogue;
@if(swiglu) import package::matmul::operands::{bias_of_up, store_gated};
import package::tile::{TM4, TN4, DEPTH};

const SIDE: u32 = 16u; // invocations along each side of the tile
const LANES: u32 = SIDE * SIDE;
const A_WIDTH: u32 = SIDE * TM4; // groups of 4 rows of the tile
const B_WIDTH: u32 = SIDE * TN4; // groups of 4 columns
const A_LOADS: u32 = DEPTH * A_WIDTH / LANES; // groups of a slice that each invocation stages
const B_LOADS: u32 = DEPTH * B_WIDTH / LANES;

// A group in workgroup memory. Types that take many instructions to widen, or are not exact in 16 bits, are staged in
// f32.
@if(!integer_widening) alias StagedA = Packed;
@if(integer_widening) alias StagedA = vec4<f32>;
@if(!integer_widening && !nf4 && !int8) alias StagedB = Packed;
@if(integer_widening || nf4 || int8) alias StagedB = vec4<f32>;
@if(f32 || integer_widening) const A_BYTES: u32 = 16u;
@if(!f32 && !integer_widening) const A_BYTES: u32 = 8u;
@if(f32 || integer_widening || nf4 || int8) const B_BYTES: u32 = 16u;
@if(!f32 && !integer_widening && !nf4 && !int8) const B_BYTES: u32 = 8u;

@if(!nf4) const ROOM: u32 = 16384u; // bytes
@if(nf4) const ROOM: u32 = 16384u - 64u; // the levels take 64
const BUFFERS: u32 = min(2u, ROOM / (DEPTH * (A_WIDTH * A_BYTES + B_WIDTH * B_BYTES)));
const RING: u32 = BUFFERS * DEPTH; // step k is staged at place k % RING

var<workgroup> a_tile: array<StagedA, RING * A_WIDTH>;
var<workgroup> b_tile: array<StagedB, RING * B_WIDTH>;

alias Sums = array<vec4<f32>, 4u * TM4 * TN4>; // [row block i][row within it][column block j]

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
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
    @if(!grouped || a_transposed) let first_row = workgroup.y * 4u * A_WIDTH;
    @if(grouped && !a_transposed) let first_row = 0u;
    @if(swiglu) let first_column4 = workgroup.x * (B_WIDTH / 2u);
    @if(!swiglu && (!grouped || !a_transposed)) let first_column4 = workgroup.x * B_WIDTH;
    @if(grouped && a_transposed) let first_column4 = workgroup.z * B_WIDTH;
    let last = product.k - 1u;
    var sums: Sums;
    // Not within the loop, which would fill them with zeros each time. For DX12 naga names such zeros by their type's
    // shape, and would define those of an array of another name, in `multiply`, a second time.
    var next_a: array<Packed, A_LOADS>;
    var next_b: array<FetchedB, B_LOADS>;
    var k = 0u;
    loop {
        for (var i = 0u; i < A_LOADS; i++) {
            next_a[i] = a[group_of_a(product, first_row, lane + LANES * i, k)];
        }
        for (var i = 0u; i < B_LOADS; i++) {
            next_b[i] = fetch_b(group_of_b(product, first_column4, lane + LANES * i, k));
        }
        multiply(&sums, lane, k, last);
        if (k > last) {
            break;
        }
        if (BUFFERS == 1u) {
            workgroupBarrier();
        }
        for (var i = 0u; i < A_LOADS; i++) {
            a_tile[k % RING * A_WIDTH + slot_of_a(lane + LANES * i)] = stage_a(next_a[i]);
        }
        for (var i = 0u; i < B_LOADS; i++) {
            let at = group_of_b(product, first_column4, lane + LANES * i, k);
            b_tile[k % RING * B_WIDTH + slot_of_b(lane + LANES * i)] = stage_b(at, next_b[i]);
        }
        workgroupBarrier();
        k += DEPTH;
    }

    store_sums(&sums, product, lane, first_row, first_column4);
}

@if(!gelu && !gelu_slope && !swiglu && !swiglu_slopes)
fn store_sums(sums: ptr<function, Sums>, product: Product, lane: u32, first_row: u32, first_column4: u32) {
    let to = destination(product);
    for (var j = 0u; j < TN4; j++) {
        let column4 = first_column4 + lane % SIDE + SIDE * j;
        let added = bias_of(to, column4);
        for (var i = 0u; i < TM4; i++) {
            for (var r = 0u; r < 4u; r++) {
                let row = first_row + 4u * (lane / SIDE + SIDE * i) + r;
                epilogue((*sums)[(4u * i + r) * TN4 + j], added, to, row, column4);
            }
        }
    }
}

// The same, but each time for the first sum that is left, after which the others move up. The epilogues take more
// instructions than compilers unroll, and an array that is indexed by a loop counter would be in memory.
@if(gelu || gelu_slope || swiglu_slopes)
fn store_sums(sums: ptr<function, Sums>, product: Product, lane: u32, first_row: u32, first_column4: u32) {
    let to = destination(product);
    for (var i = 0u; i < TM4; i++) {
        let row = first_row + 4u * (lane / SIDE + SIDE * i);
        for (var j = 0u; j < TN4; j++) {
            let column4 = first_column4 + lane % SIDE + SIDE * j;
            let added = bias_of(to, column4);
            for (var r = 0u; r < 4u; r++) {
                epilogue((*sums)[0], added, to, row + r, column4);
                (*sums)[0] = (*sums)[TN4];
                (*sums)[TN4] = (*sums)[2u * TN4];
                (*sums)[2u * TN4] = (*sums)[3u * TN4];
            }
            for (var at = 1u; at < 4u * TM4 * TN4; at++) {
                (*sums)[at - 1u] = (*sums)[at];
            }
        }
        for (var at = 3u * TN4; at < 4u * TM4 * TN4; at++) {
            (*sums)[at - 3u * TN4] = (*sums)[at];
        }
    }
}

@if(swiglu)
fn store_sums(sums: ptr<function, Sums>, product: Product, lane: u32, first_row: u32, first_column4: u32) {
    let to = destination(product);
    let column4 = first_column4 + lane % SIDE;
    let gate_added = bias_of(to, column4);
    let up_added = bias_of_up(column4);
    for (var i = 0u; i < TM4; i++) {
        for (var r = 0u; r < 4u; r++) {
            let row = first_row + 4u * (lane / SIDE + SIDE * i) + r;
            store_gated((*sums)[0] + gate_added, (*sums)[1] + up_added, to, row, column4);
            for (var at = 2u; at < 4u * TM4 * TN4; at++) {
                (*sums)[at - 2u] = (*sums)[at];
            }
        }
    }
}

// Adds the products of the slice before step `end`; there is none before step 0. The number of passes is hidden:
// Intel's compiler would unroll them, and then hold more operands than fit beside the sums of the large tile. It has no
// register left: each further value that lives as long as the sums is spilled.
@if(!a_transposed)
fn multiply(sums: ptr<function, Sums>, lane: u32, end: u32, last: u32) {
    for (var k = end - DEPTH; k <= min(end - 1u, last); k += 4u) {
        let a_at = own_slot_of_a(lane, k % RING);
        let b_at = own_slot_of_b(lane, k % RING);
        var w: array<mat4x4<f32>, TN4>; // 4 columns in each of 4 steps
        for (var j = 0u; j < TN4; j++) {
            w[j] = four_steps_of_b(b_at + SIDE * j);
        }
        for (var i = 0u; i < TM4; i++) {
            for (var r = 0u; r < 4u; r++) {
                let x = value_of_a(a_at + r * A_WIDTH + SIDE * i);
                for (var j = 0u; j < TN4; j++) {
                    let at = (4u * i + r) * TN4 + j;
                    let two = fma(vec4<f32>(x.y), w[j][1], fma(vec4<f32>(x.x), w[j][0], (*sums)[at]));
                    (*sums)[at] = fma(vec4<f32>(x.w), w[j][3], fma(vec4<f32>(x.z), w[j][2], two));
                }
            }
        }
    }
}

// The same step by step. AMD's compiler unrolls this, because it sees that there are at most DEPTH steps.
@if(a_transposed)
fn multiply(sums: ptr<function, Sums>, lane: u32, end: u32, last: u32) {
    let start = max(end, DEPTH) - DEPTH;
    let steps = min(DEPTH, min(end, last + 1u) - start);
    let first = start % RING;
    for (var s = 0u; s < steps; s++) {
        let a_at = own_slot_of_a(lane, first + s);
        let b_at = own_slot_of_b(lane, first + s);
        var w: array<vec4<f32>, TN4>;
        for (var j = 0u; j < TN4; j++) {
            w[j] = value_of_b(b_at + SIDE * j);
        }
        for (var i = 0u; i < TM4; i++) {
            let x = value_of_a(a_at + SIDE * i);
            for (var j = 0u; j < TN4; j++) {
                let at = 4u * i * TN4 + j;
                (*sums)[at] = fma(vec4<f32>(x.x), w[j], (*sums)[at]);
                (*sums)[at + TN4] = fma(vec4<f32>(x.y), w[j], (*sums)[at + TN4]);
                (*sums)[at + 2u * TN4] = fma(vec4<f32>(x.z), w[j], (*sums)[at + 2u * TN4]);
                (*sums)[at + 3u * TN4] = fma(vec4<f32>(x.w), w[j], (*sums)[at + 3u * TN4]);
            }
        }
    }
}

// The first slot that an invocation reads among the slots from step k on. The others that it reads are SIDE, or whole
// steps, further.
fn own_slot_of_a(lane: u32, k: u32) -> u32 { return k * A_WIDTH + lane / SIDE; }
fn own_slot_of_b(lane: u32, k: u32) -> u32 { return k * B_WIDTH + lane % SIDE; }

// A vector of 4 columns for each of the 4 steps whose first slot of these columns is `slot`.
fn four_steps_of_b(slot: u32) -> mat4x4<f32> {
    let groups = mat4x4<f32>(
        value_of_b(slot),
        value_of_b(slot + B_WIDTH),
        value_of_b(slot + 2u * B_WIDTH),
        value_of_b(slot + 3u * B_WIDTH),
    );
    @if(b_transposed) { return transpose(groups); }
    @if(!b_transposed) { return groups; }
}

// Group number `e` of a slice, of an operand whose rows lie along k: its step, its row, and where it is staged. Groups
// are counted in pairs of one row.
fn step_along(e: u32, width: u32) -> u32 {
    return e / (8u * width) * 8u + e % 2u * 4u;
}

fn row_along(e: u32, width: u32) -> u32 {
    let pair = e % (8u * width) / 2u;
    return pair % width * 4u + pair / width;
}

fn slot_along(e: u32, width: u32) -> u32 {
    return step_along(e, width) * width + e % (8u * width) / 2u;
}

@if(!a_transposed) fn slot_of_a(e: u32) -> u32 { return slot_along(e, A_WIDTH); }
@if(a_transposed) fn slot_of_a(e: u32) -> u32 { return e; }
@if(b_transposed) fn slot_of_b(e: u32) -> u32 { return slot_along(e, B_WIDTH); }
@if(!b_transposed) fn slot_of_b(e: u32) -> u32 { return e; }

// Where group `e` of the slice from step k on is in `a`.
@if(!a_transposed)
fn group_of_a(product: Product, first_row: u32, e: u32, k: u32) -> u32 {
    let row = first_row + row_along(e, A_WIDTH);
    let step = min(k + step_along(e, A_WIDTH), product.k - 1u);
    return product.a_start + select(0u, row, row < product.m) * params.a_stride + step / 4u;
}

@if(a_transposed)
fn group_of_a(product: Product, first_row: u32, e: u32, k: u32) -> u32 {
    let row4 = min(first_row / 4u + e % A_WIDTH, (params.m - 1u) / 4u);
    return product.a_start + min(k + e / A_WIDTH, product.k - 1u) * params.a_stride + row4;
}

// Where group `e` of the slice from step k on is in `b`.
@if(b_transposed)
fn group_of_b(product: Product, first_column4: u32, e: u32, k: u32) -> u32 {
    let row = row_of_b(4u * first_column4, row_along(e, B_WIDTH));
    let step = min(k + step_along(e, B_WIDTH), product.k - 1u);
    return product.b_start + row * params.b_stride + step / 4u;
}

// The row of `b` that belongs to column `c` of the tile.
@if(b_transposed && !swiglu)
fn row_of_b(first: u32, c: u32) -> u32 {
    return select(0u, first + c, first + c < params.n);
}

@if(b_transposed && swiglu)
fn row_of_b(first: u32, c: u32) -> u32 {
    let column = first + c % (2u * B_WIDTH);
    return select(0u, column, column < params.n) + c / (2u * B_WIDTH) * params.up_start;
}

@if(!b_transposed)
fn group_of_b(product: Product, first_column4: u32, e: u32, k: u32) -> u32 {
    let column4 = min(first_column4 + e % B_WIDTH, (params.n - 1u) / 4u);
    return product.b_start + min(k + e / B_WIDTH, product.k - 1u) * params.b_stride + column4;
}

@if(!integer_widening) fn stage_a(group: Packed) -> StagedA { return group; }
@if(!integer_widening) fn value_of_a(slot: u32) -> vec4<f32> { return load4(a_tile[slot]); }
@if(integer_widening) fn stage_a(group: Packed) -> StagedA { return load4(group); }
@if(integer_widening) fn value_of_a(slot: u32) -> vec4<f32> { return a_tile[slot]; }

@if(!integer_widening && !nf4 && !int8) fn stage_b(at: u32, group: FetchedB) -> StagedB { return group; }
@if(!integer_widening && !nf4 && !int8) fn value_of_b(slot: u32) -> vec4<f32> { return load4(b_tile[slot]); }
@if(integer_widening || nf4 || int8) fn stage_b(at: u32, group: FetchedB) -> StagedB { return widen_b(at, group); }
@if(integer_widening || nf4 || int8) fn value_of_b(slot: u32) -> vec4<f32> { return b_tile[slot]; }
