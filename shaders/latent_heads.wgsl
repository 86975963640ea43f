// Packed queries, keys and values of multi-head latent attention, from the parts that matrix products compute:
//
//   q (N, H · (P + R))          a head is [q_nope | q_rope]
//   kv (N, H · (P + V))         a head is [k_nope | v]
//   k_rope (N, R)               shared by all heads
//   qkv (N, H · (2 P + 2 R + V))   queries [q_nope | rot(q_rope)], then keys [k_nope | rot(k_rope)], then values
//   table (positions, R) f32    cos φ and sin φ of each pair, interleaved; positions (N) u32 are its rows
//
// rot turns pairs by φ, as shaders/rope does: (2i, 2i + 1), `interleaved`, or (i, i + R/2). Backward: dq and dk_rope are
// turned back, and dk_rope is the sum over all heads, in their order. One invocation per group of 4 elements of the result.
// Numerics: f32 between load and store. With `accumulate` the gradient is added to what is there.
// Source: DeepSeek-AI, "DeepSeek-V2", 2024, section 2.1.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::{HEADS, LANES, NOPE4, ROPE4, VALUE4};

struct Params {
    tokens: u32,
    q_offset: u32, // offsets and strides count groups of 4 elements; of gradients in the backward
    q_stride: u32,
    kv_offset: u32,
    kv_stride: u32,
    rope_offset: u32,
    rope_stride: u32,
    qkv_offset: u32,
    qkv_stride: u32,
    positions_offset: u32, // in elements
    table_offset: u32,
    table_stride: u32,
    table_rows: u32,
}

const HEAD4 = NOPE4 + ROPE4;
const KV4 = NOPE4 + VALUE4;
const Q_COLS4 = HEADS * HEAD4;
const KV_COLS4 = HEADS * KV4;
const QKV_COLS4 = 2u * Q_COLS4 + HEADS * VALUE4;

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> positions: array<u32>;
@group(0) @binding(2) var<storage, read> table: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> q: array<Packed>;
@group(0) @binding(4) var<storage, read> kv: array<Packed>;
@group(0) @binding(5) var<storage, read> k_rope: array<Packed>;
@group(0) @binding(6) var<storage, read_write> qkv: array<Packed>;

@group(0) @binding(3) var<storage, read> dqkv: array<Packed>;
@group(0) @binding(4) var<storage, read_write> dq: array<Packed>;
@group(0) @binding(4) var<storage, read_write> dkv: array<Packed>;
@group(0) @binding(4) var<storage, read_write> dk_rope: array<Packed>;

@compute @workgroup_size(LANES)
fn latent_heads(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let token = index / QKV_COLS4;
    let column = index % QKV_COLS4;
    if (token >= params.tokens) {
        return;
    }
    var value = given(token, column);
    let unit = column % HEAD4;
    if (column < 2u * Q_COLS4 && unit >= NOPE4) {
        @if(interleaved) { value = turned(value, token, unit - NOPE4, 1.0); }
        @if(!interleaved) {
            let place = others(unit - NOPE4);
            let first = column - unit + NOPE4;
            let other = joined(given(token, first + place.x), given(token, first + place.y));
            value = turned(value, other, token, unit - NOPE4, 1.0);
        }
    }
    qkv[params.qkv_offset + token * params.qkv_stride + column] = store4(value);
}

// What becomes of group `column` of the result, before it is turned.
fn given(token: u32, column: u32) -> vec4<f32> {
    if (column < Q_COLS4) {
        return load4(q[params.q_offset + token * params.q_stride + column]);
    }
    if (column < 2u * Q_COLS4) {
        let key = column - Q_COLS4;
        let place = key % HEAD4;
        if (place < NOPE4) {
            return load4(kv[params.kv_offset + token * params.kv_stride + key / HEAD4 * KV4 + place]);
        }
        return load4(k_rope[params.rope_offset + token * params.rope_stride + place - NOPE4]);
    }
    let place = column - 2u * Q_COLS4;
    let at = place / VALUE4 * KV4 + NOPE4 + place % VALUE4;
    return load4(kv[params.kv_offset + token * params.kv_stride + at]);
}

@compute @workgroup_size(LANES)
fn latent_heads_backward_q(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_index(workgroup) * LANES + lane;
    let token = index / Q_COLS4;
    let column = index % Q_COLS4;
    if (token >= params.tokens) {
        return;
    }
    let source = params.qkv_offset + token * params.qkv_stride + column;
    var value = load4(dqkv[source]);
    let unit = column % HEAD4;
    if (unit >= NOPE4) {
        @if(interleaved) { value = turned(value, token, unit - NOPE4, -1.0); }
        @if(!interleaved) {
            let place = others(unit - NOPE4);
            let first = source - unit + NOPE4;
            let other = joined(load4(dqkv[first + place.x]), load4(dqkv[first + place.y]));
            value = turned(value, other, token, unit - NOPE4, -1.0);
        }
    }
    let at = params.q_offset + token * params.q_stride + column;
    @if(accumulate) { value += load4(dq[at]); }
    dq[at] = store4(value);
}

@compute @workgroup_size(LANES)
fn latent_heads_backward_kv(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_index(workgroup) * LANES + lane;
    let token = index / KV_COLS4;
    let column = index % KV_COLS4;
    if (token >= params.tokens) {
        return;
    }
    let head = column / KV4;
    let place = column % KV4;
    let key = Q_COLS4 + head * HEAD4 + place;
    let place4 = select(2u * Q_COLS4 + head * VALUE4 + place - NOPE4, key, place < NOPE4);
    var value = load4(dqkv[params.qkv_offset + token * params.qkv_stride + place4]);
    let at = params.kv_offset + token * params.kv_stride + column;
    @if(accumulate) { value += load4(dkv[at]); }
    dkv[at] = store4(value);
}

@compute @workgroup_size(LANES)
fn latent_heads_backward_rope(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let index = linear_index(workgroup) * LANES + lane;
    let token = index / ROPE4;
    let unit = index % ROPE4;
    if (token >= params.tokens) {
        return;
    }
    let first = params.qkv_offset + token * params.qkv_stride + Q_COLS4 + NOPE4;
    // A rotation is linear: the sum is turned back once.
    var value = sum_over_heads(first + unit);
    @if(interleaved) { value = turned(value, token, unit, -1.0); }
    @if(!interleaved) {
        let place = others(unit);
        var other = sum_over_heads(first + place.x);
        if (ROPE4 % 2u == 1u) {
            other = joined(other, sum_over_heads(first + place.y));
        }
        value = turned(value, other, token, unit, -1.0);
    }
    let at = params.rope_offset + token * params.rope_stride + unit;
    @if(accumulate) { value += load4(dk_rope[at]); }
    dk_rope[at] = store4(value);
}

fn sum_over_heads(first: u32) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    for (var head = 0u; head < HEADS; head++) {
        sum += load4(dqkv[first + head * HEAD4]);
    }
    return sum;
}

// The two pairs of a group, turned forward or back.
@if(interleaved)
fn turned(x: vec4<f32>, token: u32, unit: u32, direction: f32) -> vec4<f32> {
    let position = min(positions[params.positions_offset + token], params.table_rows - 1u);
    let turn = table[params.table_offset + position * params.table_stride + unit]; // cos, sin, cos, sin
    return x * turn.xxzz + x.yxwz * direction * turn.yyww * vec4<f32>(-1.0, 1.0, -1.0, 1.0);
}

// The other elements of the pairs of a group, R/2 away: of one group, or halves of two where R/2 is no whole number of
// groups.
@if(!interleaved)
fn others(unit: u32) -> vec2<u32> {
    let first = (unit + ROPE4 / 2u) % ROPE4;
    return vec2<u32>(first, (first + ROPE4 % 2u) % ROPE4);
}

@if(!interleaved)
fn joined(first: vec4<f32>, second: vec4<f32>) -> vec4<f32> {
    return select(first, vec4<f32>(first.zw, second.xy), ROPE4 % 2u == 1u);
}

// The elements of a group of four pairs, turned forward or back beside the others of the pairs.
@if(!interleaved)
fn turned(x: vec4<f32>, other: vec4<f32>, token: u32, unit: u32, direction: f32) -> vec4<f32> {
    let position = min(positions[params.positions_offset + token], params.table_rows - 1u);
    let angles = params.table_offset + position * params.table_stride;
    let low = table[angles + 2u * unit % ROPE4]; // cos, sin, cos, sin
    let high = table[angles + (2u * unit + 1u) % ROPE4];
    let is_first = vec4<u32>(2u * unit) + vec4<u32>(0u, 0u, 1u, 1u) < vec4<u32>(ROPE4);
    let sign = select(vec4<f32>(direction), vec4<f32>(-direction), is_first);
    return x * vec4<f32>(low.xz, high.xz) + other * sign * vec4<f32>(low.yw, high.yw);
}
