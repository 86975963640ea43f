// Dropout:   y [+]= residual + mask x / (1 - p)      mask 0 with probability p, else 1
//
//   dropout            x, residual, y (N, D)
//   random_words       words (N, D) u32: what dropout compares with its threshold
//   count_micro_step   one invocation, at the start of each micro-batch: which one it is
//
// The backward is the same kernel on the gradient: the mask is drawn again from the element's number and from the
// micro-batch's, so it depends on no stored mask and no history, and a resumed run draws what the first would have drawn.
// One invocation owns 4 elements.
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
    site: u32,
    seed_low: u32,
    seed_high: u32,
    threshold: u32, // 2^32 p
    factor: f32, // 1 / (1 - p)
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
    let is_kept = words_of(index) >= vec4<u32>(params.threshold);
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
        words[index / cols4 * params.y_stride + index % cols4] = words_of(index);
    }
}

fn words_of(index: u32) -> vec4<u32> {
    return dropout_words(index, 0u, params.site, state, vec2<u32>(params.seed_low, params.seed_high));
}

@compute @workgroup_size(1)
fn count_micro_step() {
    // A state that starts as zero belongs to no step; neither does that of another step.
    let number = step.step + 1u;
    state_out.micro_step = select(0u, state_out.micro_step + 1u, state_out.step == number);
    state_out.step = number;
}
