// Inverted dropout:   y [+]= residual + mask · x / (1 − p)      mask is 0 with probability p, else 1
//
//   dropout            x, residual, y (rows, cols)
//   random_words       words (rows, cols) u32: the words that dropout compares with its threshold; for tests
//   count_micro_step   one invocation, launched at the start of each micro-batch: advances DropoutState; ranks take the
//                      micro-batches of a step in turns
//
// The backward pass is the same kernel applied to the gradient: the mask is redrawn from seed, op, step, micro-batch
// and element index. No mask is stored, and a resumed run draws the same masks.
// One invocation processes 4 elements. Numerics: f32 between load and store.
// Source: Srivastava et al., "Dropout", 2014, with the scaling moved from evaluation to training.

import package::lib::dropout::{DropoutState, dropout_words};
import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::row::keep_inside;
import package::lib::step_state::StepState;
import package::tile::LANES;

struct Params {
    rows: u32,
    cols: u32,
    x_stride: u32, // strides count groups of 4
    y_stride: u32,
    residual_stride: u32,
    site: u32, // number of this dropout site in the model
    seed_low: u32,
    seed_high: u32,
    threshold: u32, // 2^32 p
    factor: f32, // 1 / (1 - p)
    first_word4: u32, // groups of 4 words before the words of these elements, where they are a part of an activation
    row_words4: u32, // groups of 4 words in each row of that activation
    first: u32, // count_micro_step: the first micro-batch of a step on this rank
    ranks: u32, // how many ranks take turns
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@group(0) @binding(3) var<storage, read> state: DropoutState;
@if(residual) @group(0) @binding(4) var<storage, read> residual: array<Packed>;

@group(0) @binding(2) var<storage, read_write> words: array<vec4<u32>>;

@group(0) @binding(1) var<storage, read> step: StepState;
@group(0) @binding(2) var<storage, read_write> state_out: DropoutState;

@compute @workgroup_size(LANES)
fn dropout(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let cols4 = (params.cols + 3u) / 4u;
    let row = index / cols4;
    let c = index % cols4;
    if (row >= params.rows) {
        return;
    }
    let is_kept = words_of(row, c) >= vec4<u32>(params.threshold);
    var value = select(vec4<f32>(0.0), params.factor * load4(x[row * params.x_stride + c]), is_kept);
    @if(residual) { value += load4(residual[row * params.residual_stride + c]); }
    @if(accumulate) { value += load4(y[row * params.y_stride + c]); }
    y[row * params.y_stride + c] = store4(keep_inside(value, 4u * c, params.cols));
}

@compute @workgroup_size(LANES)
fn random_words(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup) * LANES + lane;
    let cols4 = (params.cols + 3u) / 4u;
    if (index / cols4 < params.rows) {
        words[index / cols4 * params.y_stride + index % cols4] = words_of(index / cols4, index % cols4);
    }
}

fn words_of(row: u32, column4: u32) -> vec4<u32> {
    let index = params.first_word4 + row * params.row_words4 + column4;
    return dropout_words(index, 0u, params.site, state, vec2<u32>(params.seed_low, params.seed_high));
}

@compute @workgroup_size(1)
fn count_micro_step() {
    // Steps are numbered from 1 here, so a zero-filled state matches no step; a new step restarts the count.
    let number = step.step + 1u;
    state_out.micro_step = select(params.first, state_out.micro_step + params.ranks, state_out.step == number);
    state_out.step = number;
}
