// Sums of squares of rows:   s (N) = Σ over columns of v²     v (N, K) = W, with `low_rank` W + factor · B A
// Norms:                     m (N) = √s
// Factors:                   m (N) = m / √s, 1 where s is 0
//
// W (N, K); A (r, K); B (N, r); s, m f32. Rows of A behind the last, up to a multiple of 4, and columns of B are zeros.
// With `nf4` or `int8` W is quantised, and widened where it is loaded.
// A workgroup reads each group of A once for four rows, whose sums are one vector; on the software tier an invocation
// does.
// Numerics: v and its squares in f32, summed in a fixed order.
// Source: Liu et al., "DoRA: Weight-Decomposed Low-Rank Adaptation", 2024, section 4.

import package::lib::element::{Packed, load4};
import package::lib::grid::linear_index;
@if(nf4) import package::lib::quantised::fill_levels;
@if(nf4 || int8) import package::lib::quantised::{block_of, widened, word_of_codes};
import package::lib::reduce::{STEP, first_of, row_of, row_sum4};
import package::lib::row::keep_inside;
import package::tile::LANES;

struct Params {
    rows: u32,
    cols4: u32,
    rank4: u32,
    w_offset: u32, // offsets and strides count groups of 4
    w_stride: u32,
    a_offset: u32,
    a_stride: u32,
    b_offset: u32,
    b_stride: u32,
    s_offset: u32,
    factor: f32,
}

@if(nf4 || int8) alias Weights = u32;
@if(!nf4 && !int8) alias Weights = Packed;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> w: array<Weights>;
@if(low_rank) @group(0) @binding(2) var<storage, read> a: array<Packed>;
@if(low_rank) @group(0) @binding(3) var<storage, read> b: array<Packed>;
@group(0) @binding(4) var<storage, read_write> s: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> m: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn row_squares(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(nf4) {
        fill_levels(lane);
        workgroupBarrier();
    }
    let group = row_of(linear_index(workgroup), lane); // of four rows
    let first = first_of(lane);
    if (4u * group >= params.rows) {
        return;
    }
    // Rows past the end repeat the last one.
    let rows = min(vec4<u32>(4u * group) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.rows - 1u));
    var squares = vec4<f32>(0.0);
    for (var i = first; i < params.cols4; i += STEP) {
        let of_w = vec4<u32>(params.w_offset + i) + rows * params.w_stride;
        var v0 = load_w(of_w.x);
        var v1 = load_w(of_w.y);
        var v2 = load_w(of_w.z);
        var v3 = load_w(of_w.w);
        @if(low_rank) {
            let of_b = vec4<u32>(params.b_offset) + rows * params.b_stride;
            for (var r = 0u; r < params.rank4; r++) {
                let of_a = params.a_offset + 4u * r * params.a_stride + i;
                let a0 = load4(a[of_a]);
                let a1 = load4(a[of_a + params.a_stride]);
                let a2 = load4(a[of_a + 2u * params.a_stride]);
                let a3 = load4(a[of_a + 3u * params.a_stride]);
                v0 += combined(params.factor * load4(b[of_b.x + r]), a0, a1, a2, a3);
                v1 += combined(params.factor * load4(b[of_b.y + r]), a0, a1, a2, a3);
                v2 += combined(params.factor * load4(b[of_b.z + r]), a0, a1, a2, a3);
                v3 += combined(params.factor * load4(b[of_b.w + r]), a0, a1, a2, a3);
            }
        }
        squares += vec4<f32>(dot(v0, v0), dot(v1, v1), dot(v2, v2), dot(v3, v3));
    }
    let total = row_sum4(squares, lane);
    if (first == 0u) {
        s[params.s_offset + group] = keep_inside(total, 4u * group, params.rows);
    }
}

@if(low_rank)
fn combined(b: vec4<f32>, a0: vec4<f32>, a1: vec4<f32>, a2: vec4<f32>, a3: vec4<f32>) -> vec4<f32> {
    return b.x * a0 + b.y * a1 + b.z * a2 + b.w * a3;
}

@if(nf4 || int8)
fn load_w(at: u32) -> vec4<f32> {
    let block = block_of(at);
    return widened(at, w[block], w[block + word_of_codes(at)]);
}

@if(!nf4 && !int8) fn load_w(at: u32) -> vec4<f32> { return load4(w[at]); }

@compute @workgroup_size(LANES)
fn row_norms(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    if (4u * at < params.rows) {
        m[at] = sqrt(s[at]);
    }
}

@compute @workgroup_size(LANES)
fn row_factors(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let at = linear_index(workgroup) * LANES + lane;
    if (4u * at < params.rows) {
        let squares = s[at];
        let factors = select(vec4<f32>(1.0), m[at] / sqrt(squares), squares > vec4<f32>(0.0));
        m[at] = keep_inside(factors, 4u * at, params.rows);
    }
}
