// Muon on one matrix (rows, cols): the update is the momentum, orthogonalised by Newton-Schulz iteration
//
//   direction      m ← μ m + g,  x = g + μ m (Nesterov) or m,  g = gradient · grad_factor; partials[row] = Σ x²
//   square_rows    partials[row] = Σ x², of a matrix that was gathered of its parts
//   inverse_norm   norm = 1 / (‖x‖ + 1e-7), Frobenius, which bounds every singular value of norm · x by 1
//   normalise      x ← norm · x
//   polynomial     y ← a I + b s + c y, where s (n, n) is the Gram matrix of the shorter side and y = s s; the product
//                  with x is one Newton-Schulz step, a x + b (x xᵀ) x + c (x xᵀ)² x
//   apply          w ← w (1 − lr · decay) − lr · scale · x
//
// matmul computes the products in between. direction and square_rows: one workgroup per row (software tier: one
// invocation); inverse_norm: a single workgroup; the others: 4 elements per invocation. On overflow, or while the run
// is halted, moments and weights are unchanged and x is zero.
// Numerics: all in f32, except that weights stored in bfloat16 are rounded stochastically (lib/rounding.wgsl); each
// step may amplify the error of a small singular value by a = 3.44, five steps by 485.
// Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024; the update scale that
// matches AdamW's RMS: Liu et al., "Muon is Scalable for LLM Training", 2025, section 2.2.

import package::lib::element::{Packed, load4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum};
import package::lib::rounding::{Places, round4};
import package::lib::step_state::{StepState, schedule_row};
import package::tile::LANES;

// Five steps take singular values from (0, 1] to about 0.7 to 1.2, except for those that are nearly zero.
const A: f32 = 3.4445;
const B: f32 = -4.775;
const C: f32 = 2.0315;

struct Params {
    rows: u32,
    cols4: u32, // groups of 4 in a row; also the row stride of every operand
    offset: u32, // of the gradient or the weights, in groups of 4
    moments_offset: u32,
    momentum: f32,
    is_nesterov: u32,
    decay: f32,
    scale: f32, // rms · sqrt(max(rows, cols))
    rate_column: u32,
    schedule_rows: u32,
    schedule_stride: u32,
    seed_low: u32, // of the bits that round weights in bfloat16
    seed_high: u32,
    first4: u32, // places of the weights: see lib/rounding
    skipped4: u32,
    run4: u32,
    gap4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(5) var<storage, read> state: StepState;

// direction and square_rows
@group(0) @binding(1) var<storage, read> gradients: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> moments: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> partials: array<f32>; // (rows)

// inverse_norm and normalise
@group(0) @binding(1) var<storage, read> partials_in: array<f32>;
@group(0) @binding(2) var<storage, read_write> norm: array<f32>;
@group(0) @binding(1) var<storage, read> norm_in: array<f32>;

// polynomial
@group(0) @binding(1) var<storage, read> gram: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> square: array<vec4<f32>>;

// apply
@group(0) @binding(1) var<storage, read> update: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> weights: array<Packed>;
@group(0) @binding(3) var<storage, read> schedule: array<f32>;

@compute @workgroup_size(LANES)
fn direction(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let stays = state.is_overflow != 0u || state.halt != 0u;
    var squares = 0.0;
    for (var i = first; i < params.cols4; i += STEP) {
        let at = row * params.cols4 + i;
        var value = vec4<f32>(0.0);
        if (!stays) {
            let g = gradients[params.offset + at] * state.grad_factor;
            let m = params.momentum * moments[params.moments_offset + at] + g;
            moments[params.moments_offset + at] = m;
            value = select(m, g + params.momentum * m, params.is_nesterov != 0u);
        }
        x[at] = value;
        squares += dot(value, value);
    }
    let total = row_sum(squares, lane);
    if (first == 0u) {
        partials[row] = total;
    }
}

@compute @workgroup_size(LANES)
fn square_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    var squares = 0.0;
    for (var i = first; i < params.cols4; i += STEP) {
        let value = x[row * params.cols4 + i];
        squares += dot(value, value);
    }
    let total = row_sum(squares, lane);
    if (first == 0u) {
        partials[row] = total;
    }
}

@compute @workgroup_size(LANES)
fn inverse_norm(@builtin(local_invocation_index) lane: u32) {
    var squares = 0.0;
    for (var i = lane; i < params.rows; i += LANES) {
        squares += partials_in[i];
    }
    let total = row_sum(squares, lane);
    if (lane == 0u) {
        norm[0] = 1.0 / (sqrt(total) + 1e-7);
    }
}

@compute @workgroup_size(LANES)
fn normalise(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = linear_index(workgroup) * LANES + lane;
    if (i < params.rows * params.cols4) {
        x[i] *= norm_in[0];
    }
}

@compute @workgroup_size(LANES)
fn polynomial(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = linear_index(workgroup) * LANES + lane;
    if (i >= params.rows * params.cols4) {
        return;
    }
    let column = vec4<u32>(4u * (i % params.cols4)) + vec4<u32>(0u, 1u, 2u, 3u);
    let diagonal = select(vec4<f32>(0.0), vec4<f32>(A), column == vec4<u32>(i / params.cols4));
    square[i] = diagonal + B * gram[i] + C * square[i];
}

@compute @workgroup_size(LANES)
fn apply(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = linear_index(workgroup) * LANES + lane;
    if (i >= params.rows * params.cols4 || state.is_overflow != 0u || state.halt != 0u) {
        return;
    }
    let row = schedule_row(state.global_step, params.schedule_rows);
    let lr = schedule[row * params.schedule_stride + params.rate_column];
    let at = params.offset + i;
    let w = load4(weights[at]) * (1.0 - lr * params.decay) - lr * params.scale * update[i];
    let places = Places(params.first4, params.skipped4, params.run4, params.gap4);
    weights[at] = round4(w, i, places, state.global_step, vec2<u32>(params.seed_low, params.seed_high));
}
