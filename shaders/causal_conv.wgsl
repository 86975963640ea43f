// Causal convolution of each channel by itself:   y[t] = f(z[t]),   z[t] = Σ_j w[j] · x[t - W + 1 + j]
//                                                                                x, y, dy, dx (N, C); w (W, C)
// f is the identity or, with `silu`, silu. A sum takes the tokens of a sequence or, with `segmented`, of a document.
// With `gated`, x and dx are [b | c | v] (N, 3 C): sums take b · v in place of x, and y = c · z.
//
//   causal_conv                   writes y
//   causal_conv_slopes            dz = dy · silu'(z) or c · dy, in place of dy, and dc = dy · z; z is computed again
//   causal_conv_backward          dx[t] = Σ_j w[j] · dz[t + W - 1 - j]; with `gated` db and dv, v and b times that
//   causal_conv_backward_weight   dw[j] = Σ_t dz[t] · x[t - W + 1 + j], for each block of ROWS tokens in one row of
//                                 partials (ceil(N / ROWS), W · C) f32, which column_sum reduces
//   causal_conv_state             the last W - 1 tokens of each of B sequences of which row last_rows[b] is the last:
//                                 state (B · (W - 1), C), the newest last, zeros before the first token
//   causal_conv_step              y[b] of one more token x[b] of each, which takes the place of the oldest one in state
//
// An invocation computes 4 channels of a token, in the weight pass of a block of tokens; neighbours load the same tokens
// again, from the cache. Numerics: sums in f32 in a fixed order.
// Source: the short convolution of linear attention, Dao and Gu, "Transformers are SSMs", 2024; gates as in LFM2.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{ROW_STEP, column_block, down};
@if(silu) import package::lib::silu::{silu, swiglu_slopes};
import package::tile::{LANES, ROWS, WIDTH};

struct Params {
    rows: u32, // N
    tokens: u32, // of a sequence
    cols4: u32, // groups of 4 channels, and the row stride of all tensors but x and dx, which may be column ranges
    x_offset: u32, // in groups of 4, like all offsets and strides
    x_stride: u32,
    dx_offset: u32,
    dx_stride: u32,
    starts_offset: u32, // in elements, like the next two
    ends_offset: u32,
    last_offset: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>; // (N, C)
@group(0) @binding(2) var<storage, read> w: array<Packed>; // (W, C)
@group(0) @binding(3) var<storage, read_write> y: array<Packed>; // (N, C)
@if(segmented) @group(0) @binding(4) var<storage, read> starts: array<u32>; // (N)

@group(0) @binding(3) var<storage, read_write> gradient: array<Packed>; // (N, C): dy, then dz
@if(gated) @group(0) @binding(5) var<storage, read_write> dc: array<Packed>; // (N, C), a range of dx

@group(0) @binding(1) var<storage, read> dz: array<Packed>; // (N, C)
@group(0) @binding(3) var<storage, read_write> dx: array<Packed>; // (N, C)
@if(segmented) @group(0) @binding(4) var<storage, read> ends: array<u32>; // (N)
@if(gated) @group(0) @binding(5) var<storage, read> parts: array<Packed>; // (N, 3 C): x, beside dz

@group(0) @binding(2) var<storage, read> gradients: array<Packed>; // (N, C): dz
@group(0) @binding(3) var<storage, read_write> partials: array<vec4<f32>>; // (N / ROWS, W · C)

@group(0) @binding(2) var<storage, read> last_rows: array<u32>; // (B)
@group(0) @binding(4) var<storage, read_write> state: array<Packed>; // (B · (W - 1), C)

const KEPT: u32 = max(WIDTH, 2u) - 1u; // tokens of a state

struct Place {
    row: u32,
    column4: u32,
}

fn place_of(workgroup: vec3<u32>, lane: u32) -> Place {
    let item = linear_index(workgroup) * LANES + lane;
    return Place(item / params.cols4, item % params.cols4);
}

// How many tokens before `row` its sum takes.
fn before(row: u32) -> u32 {
    @if(!segmented) let start = 0u;
    @if(segmented) let start = starts[params.starts_offset + row];
    return min(row % params.tokens - start, WIDTH - 1u);
}

// b · v.
@if(gated)
fn gated_at(row: u32, column4: u32) -> vec4<f32> {
    let at = params.x_offset + row * params.x_stride + column4;
    return load4(x[at]) * load4(x[at + 2u * params.cols4]);
}

// c.
@if(gated)
fn gate_at(place: Place) -> vec4<f32> {
    return load4(x[params.x_offset + place.row * params.x_stride + params.cols4 + place.column4]);
}

fn sum_at(place: Place) -> vec4<f32> {
    var sum = vec4<f32>(0.0);
    let count = before(place.row);
    for (var back = 0u; back <= count; back++) {
        @if(!gated) let value = load4(x[params.x_offset + (place.row - back) * params.x_stride + place.column4]);
        @if(gated) let value = gated_at(place.row - back, place.column4);
        sum += load4(w[(WIDTH - 1u - back) * params.cols4 + place.column4]) * value;
    }
    return sum;
}

@compute @workgroup_size(LANES)
fn causal_conv(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.row >= params.rows) {
        return;
    }
    let z = sum_at(place);
    @if(!silu && !gated) let value = z;
    @if(silu) let value = silu(z);
    @if(gated) let value = gate_at(place) * z;
    y[place.row * params.cols4 + place.column4] = store4(value);
}

@if(silu || gated)
@compute @workgroup_size(LANES)
fn causal_conv_slopes(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.row >= params.rows) {
        return;
    }
    let at = place.row * params.cols4 + place.column4;
    @if(silu) gradient[at] = store4(swiglu_slopes(sum_at(place), vec4<f32>(1.0), load4(gradient[at])).gate);
    @if(gated) {
        let slope = load4(gradient[at]);
        dc[params.dx_offset + place.row * params.dx_stride + place.column4] = store4(slope * sum_at(place));
        gradient[at] = store4(slope * gate_at(place));
    }
}

@compute @workgroup_size(LANES)
fn causal_conv_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.row >= params.rows) {
        return;
    }
    @if(!segmented) let end = params.tokens;
    @if(segmented) let end = ends[params.ends_offset + place.row];
    let count = min(end - place.row % params.tokens, WIDTH);
    let to = params.dx_offset + place.row * params.dx_stride + place.column4;
    var sum = vec4<f32>(0.0);
    @if(accumulate) { sum = load4(dx[to]); }
    for (var ahead = 0u; ahead < count; ahead++) {
        let slope = load4(dz[(place.row + ahead) * params.cols4 + place.column4]);
        sum += load4(w[(WIDTH - 1u - ahead) * params.cols4 + place.column4]) * slope;
    }
    @if(!gated) dx[to] = store4(sum);
    @if(gated) {
        let part = params.x_offset + place.row * params.x_stride + place.column4;
        dx[to] = store4(sum * load4(parts[part + 2u * params.cols4]));
        dx[to + 2u * params.cols4] = store4(sum * load4(parts[part]));
    }
}

@compute @workgroup_size(LANES)
fn causal_conv_backward_weight(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let own = column_block(workgroup, lane, ROWS, params.rows, params.cols4);
    var sums: array<vec4<f32>, WIDTH>;
    for (var row = own.first; row < own.end; row += ROW_STEP) {
        let slope = load4(gradients[row * params.cols4 + own.column4]);
        let count = before(row);
        for (var back = 0u; back < WIDTH; back++) {
            let source = row - min(back, count);
            @if(!gated) let value = load4(x[params.x_offset + source * params.x_stride + own.column4]);
            @if(gated) let value = gated_at(source, own.column4);
            sums[back] += select(vec4<f32>(0.0), slope * value, back <= count);
        }
    }
    for (var back = 0u; back < WIDTH; back++) {
        let sum = down(sums[back], lane);
        if (own.is_writer) {
            partials[(workgroup.y * WIDTH + WIDTH - 1u - back) * params.cols4 + own.column4] = sum;
        }
    }
}

@compute @workgroup_size(LANES)
fn causal_conv_state(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.row >= params.rows) {
        return;
    }
    let last = last_rows[params.last_offset + place.row / KEPT];
    let back = KEPT - 1u - place.row % KEPT;
    let before = last % params.tokens;
    @if(!gated) let value = load4(x[params.x_offset + (last - min(back, before)) * params.x_stride + place.column4]);
    @if(gated) let value = gated_at(last - min(back, before), place.column4);
    state[place.row * params.cols4 + place.column4] = store4(select(vec4<f32>(0.0), value, back <= before));
}

@compute @workgroup_size(LANES)
fn causal_conv_step(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.row >= params.rows) {
        return;
    }
    // From the newest token to the oldest, each moves to the place of the one before it.
    @if(!gated) var token = x[params.x_offset + place.row * params.x_stride + place.column4];
    @if(gated) var token = store4(gated_at(place.row, place.column4));
    var sum = load4(w[KEPT * params.cols4 + place.column4]) * load4(token);
    for (var back = 1u; back <= KEPT; back++) {
        let at = (place.row * KEPT + KEPT - back) * params.cols4 + place.column4;
        let older = state[at];
        state[at] = token;
        token = older;
        sum += load4(w[(KEPT - back) * params.cols4 + place.column4]) * load4(older);
    }
    @if(!silu && !gated) let value = sum;
    @if(silu) let value = silu(sum);
    @if(gated) let value = gate_at(place) * sum;
    y[place.row * params.cols4 + place.column4] = store4(value);
}
