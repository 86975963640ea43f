// Matrix product for CPU adapters:   y (M, N) [+]= a · b  [+ bias] [+ residual]
//
//   default         a (M, K), b (K, N)      dx = dy W
//   b_transposed    a (M, K), b (N, K)      y  = x Wᵀ
//   a_transposed    a (K, M), b (K, N)      dW = dyᵀ x
//
// One invocation owns ROWS rows by 4 columns in registers and walks K alone: no barrier, no workgroup memory (both are
// slow where a core plays a GPU). Neighbouring invocations own neighbouring columns; the rows come from the workgroup's
// index, so every load from `a` is the same for all of them and costs one scalar load.
// Indices past the edge are clamped, not branched around: control flow would make those loads divergent.
// Numerics: f32 sums over k in ascending order.

import package::lib::element::{Packed, load4, store4};
import package::lib::row::keep_inside;
import package::tile::{ROWS, LANES};

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
}

@if(gradient) alias Output = vec4<f32>;
@if(!gradient) alias Output = Packed;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> a: array<Packed>;
@group(0) @binding(2) var<storage, read> b: array<Packed>;
@group(0) @binding(3) var<storage, read_write> y: array<Output>;
@if(bias) @group(0) @binding(4) var<storage, read> bias: array<Packed>; // (N)
@if(residual) @group(0) @binding(5) var<storage, read> residual: array<Packed>; // (M, N)

@compute @workgroup_size(LANES)
fn matmul(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>) {
    let first_row = workgroup.y * ROWS;
    let column4 = workgroup.x * LANES + local.x;
    let columns4 = (params.n + 3u) / 4u;
    let sums = mainloop(first_row, min(column4, columns4 - 1u));
    if (column4 < columns4) {
        epilogue(sums, first_row, column4);
    }
}

@if(!a_transposed && !b_transposed)
fn mainloop(first_row: u32, column4: u32) -> array<vec4<f32>, ROWS> {
    var sums: array<vec4<f32>, ROWS>;
    let last_k = params.k - 1u;
    for (var k4 = 0u; k4 < (params.k + 3u) / 4u; k4++) {
        // `a` is zero in its pad, so a clamped row of `b` counts for nothing.
        let b0 = load_b(4u * k4, column4);
        let b1 = load_b(min(4u * k4 + 1u, last_k), column4);
        let b2 = load_b(min(4u * k4 + 2u, last_k), column4);
        let b3 = load_b(min(4u * k4 + 3u, last_k), column4);
        for (var r = 0u; r < ROWS; r++) {
            let x = load_a(min(first_row + r, params.m - 1u), k4);
            sums[r] = fma(vec4<f32>(x.x), b0, sums[r]);
            sums[r] = fma(vec4<f32>(x.y), b1, sums[r]);
            sums[r] = fma(vec4<f32>(x.z), b2, sums[r]);
            sums[r] = fma(vec4<f32>(x.w), b3, sums[r]);
        }
    }
    return sums;
}

@if(b_transposed)
fn mainloop(first_row: u32, column4: u32) -> array<vec4<f32>, ROWS> {
    var sums: array<vec4<f32>, ROWS>;
    let last_n = params.n - 1u;
    let n0 = 4u * column4;
    let n1 = min(n0 + 1u, last_n);
    let n2 = min(n0 + 2u, last_n);
    let n3 = min(n0 + 3u, last_n);
    for (var k4 = 0u; k4 < (params.k + 3u) / 4u; k4++) {
        // Four columns of b by four k, turned so that each vector again runs along the columns.
        let b = transpose(mat4x4<f32>(load_b(n0, k4), load_b(n1, k4), load_b(n2, k4), load_b(n3, k4)));
        for (var r = 0u; r < ROWS; r++) {
            let x = load_a(min(first_row + r, params.m - 1u), k4);
            sums[r] = fma(vec4<f32>(x.x), b[0], sums[r]);
            sums[r] = fma(vec4<f32>(x.y), b[1], sums[r]);
            sums[r] = fma(vec4<f32>(x.z), b[2], sums[r]);
            sums[r] = fma(vec4<f32>(x.w), b[3], sums[r]);
        }
    }
    return sums;
}

@if(a_transposed)
fn mainloop(first_row: u32, column4: u32) -> array<vec4<f32>, ROWS> {
    var sums: array<vec4<f32>, ROWS>;
    let first_row4 = first_row / 4u;
    let last_row4 = (params.m - 1u) / 4u;
    let last_k = params.k - 1u;
    for (var k0 = 0u; k0 < params.k; k0 += 4u) {
        for (var i = 0u; i < 4u; i++) {
            // Four k at a time, for fewer turns of the loop; past the end `b` counts for nothing.
            let k = min(k0 + i, last_k);
            let b = select(vec4<f32>(0.0), load_b(k, column4), k == k0 + i);
            for (var r4 = 0u; r4 < ROWS / 4u; r4++) {
                let x = load_a(k, min(first_row4 + r4, last_row4));
                sums[4u * r4] = fma(vec4<f32>(x.x), b, sums[4u * r4]);
                sums[4u * r4 + 1u] = fma(vec4<f32>(x.y), b, sums[4u * r4 + 1u]);
                sums[4u * r4 + 2u] = fma(vec4<f32>(x.z), b, sums[4u * r4 + 2u]);
                sums[4u * r4 + 3u] = fma(vec4<f32>(x.w), b, sums[4u * r4 + 3u]);
            }
        }
    }
    return sums;
}

fn epilogue(sums: array<vec4<f32>, ROWS>, first_row: u32, column4: u32) {
    var values = sums; // naga indexes a variable, not a value, by a loop's counter
    for (var r = 0u; r < ROWS; r++) {
        let row = first_row + r;
        if (row < params.m) {
            let at = params.y_offset + row * params.y_stride + column4;
            var value = values[r];
            @if(bias) { value += load4(bias[column4]); }
            @if(residual) { value += load4(residual[row * params.residual_stride + column4]); }
            @if(accumulate) { value += load_y(at); }
            store_y(at, keep_inside(value, 4u * column4, params.n));
        }
    }
}

fn load_a(row: u32, column4: u32) -> vec4<f32> {
    return load4(a[params.a_offset + row * params.a_stride + column4]);
}

fn load_b(row: u32, column4: u32) -> vec4<f32> {
    return load4(b[params.b_offset + row * params.b_stride + column4]);
}

// A gradient is f32 whatever the element.
@if(gradient) fn load_y(at: u32) -> vec4<f32> { return y[at]; }
@if(!gradient) fn load_y(at: u32) -> vec4<f32> { return load4(y[at]); }
@if(gradient) fn store_y(at: u32, value: vec4<f32>) { y[at] = value; }
@if(!gradient) fn store_y(at: u32, value: vec4<f32>) { y[at] = store4(value); }
