// Query-key normalisation: RMSNorm of every q and k head of the packed rows q | k | v; v is copied.
//   y = x · rstd · w,   rstd = 1 / sqrt(mean(x²) + eps), per head; gradients and `zero_centered` as in rms_norm.wgsl
//   `value_norm`: v = x · rstd, too; `key_values`: v = k's x · rstd, and there is no v in x
//   `ranged`: x, and dx beside dy, are ranges of wider rows
//
//   x, y, dy (N, cols); wq for all q heads, wk for all k heads (head_dim); rstd (N, heads + kv_heads) f32, with
//   `value_norm` (N, heads + 2 kv_heads)
//
//   qk_norm                   one invocation per token and head, v heads included, with `key_values` without them
//   qk_norm_backward          dy to dx in place on the packed gradient; one invocation per head, which no other touches
//                             (with `key_values` and `ranged` from dy to dx, of v too)
//   qk_norm_backward_weight   sums each block of ROWS tokens, over their heads, into one row of partials
//                             (ceil(N / ROWS), head_dim) f32, for q or for k, which column_sum reduces (lib/reduce).
//                             Must run before qk_norm_backward, which overwrites dy
//
// Numerics: f32 statistics; sums in a fixed order.
// Source: Henry et al., "Query-Key Normalization for Transformers", 2020; with RMSNorm as in Qwen3, of values as in Gemma 4.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::norm::norm_factors;
import package::lib::reduce::{ROW_STEP, column_block, down};
import package::tile::{LANES, ROWS};

struct Params {
    tokens: u32,
    heads: u32, // query heads
    kv_heads: u32,
    head4: u32, // head_dim and value_dim in groups of 4
    value4: u32,
    stride4: u32,
    rstd_stride: u32,
    epsilon: f32,
    first_head: u32, // qk_norm_backward_weight: the heads it sums over
    head_count: u32,
    x_offset: u32, // with `ranged`, like the next three; in groups of 4
    x_stride: u32,
    dx_offset: u32,
    dx_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read> wq: array<Packed>;
@group(0) @binding(3) var<storage, read> wk: array<Packed>;
@group(0) @binding(4) var<storage, read_write> y: array<Packed>;
@group(0) @binding(5) var<storage, read_write> rstd_out: array<f32>;

@if(!key_values && !ranged) @group(0) @binding(4) var<storage, read_write> gradient: array<Packed>; // dy, then dx
@if(key_values || ranged) @group(0) @binding(7) var<storage, read_write> dx: array<Packed>;
@group(0) @binding(5) var<storage, read> rstd: array<f32>;

@group(0) @binding(4) var<storage, read> dy: array<Packed>;
@group(0) @binding(6) var<storage, read_write> partials: array<vec4<f32>>;

struct Place {
    token: u32,
    head: u32, // q heads, then k heads, then v heads
    start: u32, // offset of the head, in groups of 4
    @if(key_values || ranged) source: u32, // its offset in x
    @if(ranged) gradient_place: u32, // its offset in dx
}

fn place_of(workgroup: vec3<u32>, lane: u32) -> Place {
    let index = linear_index(workgroup) * LANES + lane;
    @if(!key_values) let heads = params.heads + 2u * params.kv_heads;
    @if(key_values) let heads = params.heads + params.kv_heads;
    let token = index / heads;
    let head = index % heads;
    let normalised = params.heads + params.kv_heads;
    let start = min(head, normalised) * params.head4 + (max(head, normalised) - normalised) * params.value4;
    @if(!key_values && !ranged) { return Place(token, head, token * params.stride4 + start); }
    @if(ranged) {
        let source = params.x_offset + token * params.x_stride + start;
        let to = params.dx_offset + token * params.dx_stride + start;
        return Place(token, head, token * params.stride4 + start, source, to);
    }
    @if(key_values) {
        return Place(token, head, token * params.stride4 + start, token * key_stride4() + start);
    }
}

// Of rows without v.
@if(key_values)
fn key_stride4() -> u32 {
    return params.stride4 - params.kv_heads * params.head4;
}

// From a key of a row to its value.
@if(key_values)
fn to_value() -> u32 {
    return params.kv_heads * params.head4;
}

fn factors_of(head: u32, column4: u32) -> vec4<f32> {
    if (head < params.heads) {
        return norm_factors(wq[column4]);
    }
    @if(value_norm) {
        if (head >= params.heads + params.kv_heads) {
            return vec4<f32>(1.0);
        }
    }
    return norm_factors(wk[column4]);
}

fn loaded(place: Place, column4: u32) -> vec4<f32> {
    @if(!key_values && !ranged) { return load4(x[place.start + column4]); }
    @if(key_values || ranged) { return load4(x[place.source + column4]); }
}

@compute @workgroup_size(LANES)
fn qk_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.token >= params.tokens) {
        return;
    }
    @if(!value_norm) {
        if (place.head >= params.heads + params.kv_heads) {
            for (var i = 0u; i < params.value4; i++) {
                @if(!ranged) { y[place.start + i] = x[place.start + i]; }
                @if(ranged) { y[place.start + i] = x[place.source + i]; }
            }
            return;
        }
    }
    var squares = 0.0;
    for (var i = 0u; i < params.head4; i++) {
        let value = loaded(place, i);
        squares += dot(value, value);
    }
    let scale = inverseSqrt(squares / f32(4u * params.head4) + params.epsilon);
    rstd_out[place.token * params.rstd_stride + place.head] = scale;
    for (var i = 0u; i < params.head4; i++) {
        let unit = loaded(place, i) * scale;
        y[place.start + i] = store4(unit * factors_of(place.head, i));
        @if(key_values) {
            if (place.head >= params.heads) {
                y[place.start + to_value() + i] = store4(unit);
            }
        }
    }
}

// The gradient of x · rstd.
fn gradient_of_unit(place: Place, column4: u32) -> vec4<f32> {
    @if(!key_values && !ranged) { return load4(gradient[place.start + column4]) * factors_of(place.head, column4); }
    @if(ranged) { return load4(dy[place.start + column4]) * factors_of(place.head, column4); }
    @if(key_values) {
        let own = load4(dy[place.start + column4]) * factors_of(place.head, column4);
        if (place.head < params.heads) {
            return own;
        }
        return own + load4(dy[place.start + to_value() + column4]);
    }
}

@compute @workgroup_size(LANES)
fn qk_norm_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    @if(value_norm) let heads = params.heads + 2u * params.kv_heads;
    @if(!value_norm) let heads = params.heads + params.kv_heads; // the gradient of v is unchanged
    if (place.token >= params.tokens || place.head >= heads) {
        @if(ranged) {
            if (place.token < params.tokens) {
                for (var i = 0u; i < params.value4; i++) {
                    dx[place.gradient_place + i] = dy[place.start + i];
                }
            }
        }
        return;
    }
    var products = 0.0;
    for (var i = 0u; i < params.head4; i++) {
        products += dot(gradient_of_unit(place, i), loaded(place, i));
    }
    let scale = rstd[place.token * params.rstd_stride + place.head];
    let pull = scale * scale * products / f32(4u * params.head4);
    for (var i = 0u; i < params.head4; i++) {
        let own = store4(scale * (gradient_of_unit(place, i) - loaded(place, i) * pull));
        @if(!key_values && !ranged) { gradient[place.start + i] = own; }
        @if(key_values) { dx[place.source + i] = own; }
        @if(ranged) { dx[place.gradient_place + i] = own; }
    }
}

@compute @workgroup_size(LANES)
fn qk_norm_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, ROWS, params.tokens, params.head4);
    var sum = vec4<f32>(0.0);
    for (var token = own.first; token < own.end; token += ROW_STEP) {
        for (var head = params.first_head; head < params.first_head + params.head_count; head++) {
            let at = token * params.stride4 + head * params.head4 + own.column4;
            @if(!key_values && !ranged) let source = at;
            @if(key_values) let source = at - token * to_value();
            @if(ranged) let source = at + params.x_offset + token * (params.x_stride - params.stride4);
            sum += load4(dy[at]) * load4(x[source]) * rstd[token * params.rstd_stride + head];
        }
    }
    sum = down(sum, lane);
    if (own.is_writer) {
        partials[workgroup.y * params.head4 + own.column4] = sum;
    }
}
