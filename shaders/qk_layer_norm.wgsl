// LayerNorm of every q and k head of the packed rows q | k | v; v is copied.
//   y = x̂ · w + b,   x̂ = (x − mean(x)) · rstd,   rstd = 1 / sqrt(var(x) + eps), per head
// Backward, with h = dy · w:   dx = rstd · (h − mean(h) − x̂ · mean(h · x̂)),   dw = Σ dy · x̂,   db = Σ dy
//
//   x, y, dy (N, cols); wq and bq for all q heads, wk and bk for all k heads (head_dim), or w for each head (heads ·
//   head_dim); mean, rstd (N, heads + kv_heads) f32
//
//   qk_layer_norm                   one invocation per token and head, v heads included
//   qk_layer_norm_backward          dy to dx in place on the packed gradient; one invocation per head, which no other
//                                   touches
//   qk_layer_norm_backward_weight   sums each block of ROWS tokens, over the heads that share a weight, into one row of
//                                   partials each for w and b, (ceil(N / ROWS), columns of w) f32, for q or for k, which
//                                   column_sum reduces (lib/reduce). Must run before the former, which overwrites dy
//
// `zero_centered`: 1 + w for w; `unbiased`: there is no b. Numerics: as in layer_norm.wgsl.
// Source: Dehghani et al., "Scaling Vision Transformers to 22 Billion Parameters", 2023, section 2; as in Persimmon.

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
    statistics_stride: u32, // of mean and rstd
    weight_step: u32, // groups of 4 from the weight of a head to that of the next; 0: they share it
    first_head: u32, // qk_layer_norm_backward_weight: the heads it sums over, and groups of 4 of their weights
    head_count: u32,
    columns4: u32,
    epsilon: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read> wq: array<Packed>;
@group(0) @binding(3) var<storage, read> wk: array<Packed>;
@group(0) @binding(4) var<storage, read_write> y: array<Packed>;
@group(0) @binding(5) var<storage, read_write> mean_out: array<f32>;
@group(0) @binding(6) var<storage, read_write> rstd_out: array<f32>;
@if(!unbiased) @group(0) @binding(7) var<storage, read> bq: array<Packed>;
@if(!unbiased) @group(0) @binding(8) var<storage, read> bk: array<Packed>;

@group(0) @binding(4) var<storage, read_write> gradient: array<Packed>; // dy, then dx
@group(0) @binding(4) var<storage, read> dy: array<Packed>;
@group(0) @binding(5) var<storage, read> mean: array<f32>;
@group(0) @binding(6) var<storage, read> rstd: array<f32>;
@group(0) @binding(7) var<storage, read_write> w_partials: array<vec4<f32>>;
@if(!unbiased) @group(0) @binding(8) var<storage, read_write> b_partials: array<vec4<f32>>;

struct Place {
    token: u32,
    head: u32, // q heads, then k heads, then v heads
    start: u32, // offset of the head, in groups of 4
    statistics: u32, // offset of its mean and rstd
}

fn place_of(workgroup: vec3<u32>, lane: u32) -> Place {
    let index = linear_index(workgroup) * LANES + lane;
    let heads = params.heads + 2u * params.kv_heads;
    let token = index / heads;
    let head = index % heads;
    let normalised = params.heads + params.kv_heads;
    let start = min(head, normalised) * params.head4 + (max(head, normalised) - normalised) * params.value4;
    return Place(token, head, token * params.stride4 + start, token * params.statistics_stride + head);
}

fn factors_of(head: u32, column4: u32) -> vec4<f32> {
    if (head < params.heads) {
        return norm_factors(wq[head * params.weight_step + column4]);
    }
    return norm_factors(wk[(head - params.heads) * params.weight_step + column4]);
}

@if(!unbiased)
fn bias_of(head: u32, column4: u32) -> vec4<f32> {
    if (head < params.heads) {
        return load4(bq[head * params.weight_step + column4]);
    }
    return load4(bk[(head - params.heads) * params.weight_step + column4]);
}

@compute @workgroup_size(LANES)
fn qk_layer_norm(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.token >= params.tokens) {
        return;
    }
    if (place.head >= params.heads + params.kv_heads) {
        for (var i = 0u; i < params.value4; i++) {
            y[place.start + i] = x[place.start + i];
        }
        return;
    }
    let width = f32(4u * params.head4);
    var values = 0.0;
    for (var i = 0u; i < params.head4; i++) {
        values += dot(load4(x[place.start + i]), vec4<f32>(1.0));
    }
    let center = values / width;
    var squares = 0.0;
    for (var i = 0u; i < params.head4; i++) {
        let away = load4(x[place.start + i]) - center;
        squares += dot(away, away);
    }
    let scale = inverseSqrt(squares / width + params.epsilon);
    mean_out[place.statistics] = center;
    rstd_out[place.statistics] = scale;
    for (var i = 0u; i < params.head4; i++) {
        var value = (load4(x[place.start + i]) - center) * scale * factors_of(place.head, i);
        @if(!unbiased) { value += bias_of(place.head, i); }
        y[place.start + i] = store4(value);
    }
}

@compute @workgroup_size(LANES)
fn qk_layer_norm_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let place = place_of(workgroup, lane);
    // The gradient of v is unchanged.
    if (place.token >= params.tokens || place.head >= params.heads + params.kv_heads) {
        return;
    }
    let center = mean[place.statistics];
    let scale = rstd[place.statistics];
    var sum = 0.0;
    var products = 0.0;
    for (var i = 0u; i < params.head4; i++) {
        let own = load4(gradient[place.start + i]) * factors_of(place.head, i);
        sum += dot(own, vec4<f32>(1.0));
        products += dot(own, (load4(x[place.start + i]) - center) * scale);
    }
    let width = f32(4u * params.head4);
    let shift = sum / width;
    let pull = products / width;
    for (var i = 0u; i < params.head4; i++) {
        let own = load4(gradient[place.start + i]) * factors_of(place.head, i);
        let unit = (load4(x[place.start + i]) - center) * scale;
        gradient[place.start + i] = store4(scale * (own - shift - unit * pull));
    }
}

@compute @workgroup_size(LANES)
fn qk_layer_norm_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, ROWS, params.tokens, params.columns4);
    let column4 = own.column4 % params.head4;
    // With a weight for each head a column has one.
    let is_own = params.weight_step > 0u;
    let first = params.first_head + own.column4 / params.head4;
    let count = select(params.head_count, 1u, is_own);
    var w_sum = vec4<f32>(0.0);
    @if(!unbiased) var b_sum = vec4<f32>(0.0);
    for (var token = own.first; token < own.end; token += ROW_STEP) {
        for (var head = first; head < first + count; head++) {
            let at = token * params.stride4 + head * params.head4 + column4;
            let statistics = token * params.statistics_stride + head;
            let dy4 = load4(dy[at]);
            w_sum += dy4 * (load4(x[at]) - mean[statistics]) * rstd[statistics];
            @if(!unbiased) { b_sum += dy4; }
        }
    }
    w_sum = down(w_sum, lane);
    @if(!unbiased) { b_sum = down(b_sum, lane); }
    if (own.is_writer) {
        w_partials[workgroup.y * params.columns4 + own.column4] = w_sum;
        @if(!unbiased) b_partials[workgroup.y * params.columns4 + own.column4] = b_sum;
    }
}
