// Softmax cross-entropy over rows of logits z:   loss[n] = log Σ_v exp(z[n, v]) − z[n, target[n]]
//
//   count_targets           count = targets other than `ignore`; seed = factor · loss_scale / (accumulation · count),
//                           or / (accumulation · N) if grad_norm divides by the step's count
//   softmax_cross_entropy   one chunk of rows: losses (N) f32; with `gradient` that of the logits (rows, V), dz = seed
//                           · (softmax(z) − onehot(target)), zero where the target is ignored. In f32 it overwrites
//                           them. With `accuracy` correct (N): 1 where argmax(z) = target, the first one of equal
//                           logits. With `parts` the logits are some columns of a row that ranks share, and parts (P,
//                           rows, 4) f32 are the statistics that each rank has found in its own columns. With `weighted`
//                           weights (N) f32 are factors of the seed, and the losses are known already
//   row_parts               finds these: largest logit, Σ exp relative to it, target's logit, first column of the
//                           largest
//   sum_losses              adds losses (N) to LossState; with `accuracy` the sum of correct (N) to correct_sum
//
// For each chunk of rows the host records logits = h Wᵀ, this kernel, dh = dz W and dW += dzᵀ h, so the logits of all
// tokens never exist at once. The seed depends on the targets alone and is known before the first chunk.
// One workgroup per row; software tier: one invocation per row (lib/reduce). count_targets and sum_losses are
// single-workgroup reductions on every tier. All sums have a fixed order.
// capped: z = c · tanh(logit / c) (lib/soft_cap), and dz is the gradient of the logits.
// Numerics: logits are f32 whatever type the other elements have: in 16 bits the error of a logit of 10 would be 0.02,
// and that of its probability 2 %. dz is rounded, as a factor of two matrix products. The row maximum is subtracted
// before exp; sums are in f32.

import package::lib::element::{Packed, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_barrier, row_max, row_of, row_sum};
import package::lib::row::keep_inside;
@if(capped) import package::lib::soft_cap::{soft_cap_slope4, soft_capped4};
import package::lib::step_state::{LossState, StepState};
import package::tile::LANES;

struct Params {
    rows: u32, // of this chunk; in the two reductions N, all tokens
    vocab: u32,
    stride4: u32,
    first_token: u32, // of this chunk
    ignore: u32, // target id that is not counted
    inverse_accumulation: f32,
    factor: f32, // weight of the mean loss in the objective
    divisor: f32, // N, or 0: the count
    first_column: u32, // first column of these logits in the whole row
    part_rows: u32, // with `parts`: distance from the rows of one rank to those of the next
    parts: u32, // with `parts`: P
    cap: f32, // with `capped`: soft cap of the logits; the next is its reciprocal
    inverse_cap: f32,
}

// The statistics of a row of logits, or of some of its columns: the largest logit, Σ exp(z - largest), the logit of the
// target (LOWEST if it is in no column here), and the first column of the largest logit. Columns are below 2^24, so f32
// is exact.
alias RowPart = vec4<f32>;

const LOWEST: f32 = -3.4028234e38; // finite stand-in for minus infinity

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> targets: array<u32>; // (N)
@group(0) @binding(2) var<storage, read_write> logits: array<vec4<f32>>; // (rows, V)
@if(!weighted) @group(0) @binding(3) var<storage, read_write> losses: array<f32>; // (N)
@if(weighted) @group(0) @binding(3) var<storage, read> weights: array<f32>; // (N)
@group(0) @binding(4) var<storage, read> loss_seed: LossState;
@if(gradient && !f32) @group(0) @binding(5) var<storage, read_write> dz: array<Packed>; // (rows, V)
@if(accuracy) @group(0) @binding(6) var<storage, read_write> correct: array<f32>; // (N)
@if(parts) @group(0) @binding(7) var<storage, read> parts: array<RowPart>; // (P, rows)
@group(0) @binding(7) var<storage, read_write> own_parts: array<RowPart>; // (rows)

@group(0) @binding(2) var<storage, read> step: StepState;
@group(0) @binding(3) var<storage, read> losses_in: array<f32>; // (N)
@group(0) @binding(4) var<storage, read_write> loss: LossState;
@if(accuracy) @group(0) @binding(5) var<storage, read> correct_in: array<f32>; // (N)
@if(accuracy) @group(0) @binding(6) var<storage, read_write> correct_sum: array<f32>; // (1)

@compute @workgroup_size(LANES)
fn count_targets(@builtin(local_invocation_index) lane: u32) {
    var count = 0.0; // exact: a micro-batch has fewer than 2^24 tokens
    for (var token = lane; token < params.rows; token += LANES) {
        count += select(1.0, 0.0, targets[token] == params.ignore);
    }
    let total = row_sum(count, lane);
    if (lane == 0u) {
        loss.count = total;
        let divisor = select(max(total, 1.0), params.divisor, params.divisor > 0.0);
        loss.seed = params.factor * step.loss_scale * params.inverse_accumulation / divisor;
    }
}

@compute @workgroup_size(LANES)
fn softmax_cross_entropy(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let target_id = targets[params.first_token + row];
    @if(parts) let found = joined(row);
    @if(!parts) let found = part_of(row, lane, target_id);
    let counts = target_id != params.ignore;
    if (first == 0u) {
        @if(!weighted) let loss = log(found.y) + found.x - found.z;
        @if(!weighted) losses[params.first_token + row] = select(0.0, loss, counts);
        @if(accuracy) {
            let is_correct = found.w == f32(target_id);
            correct[params.first_token + row] = select(0.0, 1.0, counts && is_correct);
        }
    }
    @if(gradient) {
        row_barrier(); // the target's logit is read above, and overwritten below by another invocation
        @if(!weighted) let scale = select(0.0, loss_seed.seed, counts);
        @if(weighted) let scale = weighted_seed(params.first_token + row, counts);
        let start = row * params.stride4;
        for (var i = first; i < params.stride4; i += STEP) {
            let index = vec4<u32>(4u * i) + vec4<u32>(0u, 1u, 2u, 3u);
            let onehot = select(vec4<f32>(0.0), vec4<f32>(1.0), index == vec4<u32>(target_id - params.first_column));
            let z = capped(load_logits(start, i));
            var slope = scale * (exp(z - found.x) / found.y - onehot);
            @if(capped) { slope *= soft_cap_slope4(z, params.inverse_cap); }
            store_dz(start + i, keep_inside(slope, 4u * i, params.vocab));
        }
    }
}

@compute @workgroup_size(LANES)
fn row_parts(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    if (row >= params.rows) {
        return;
    }
    let found = part_of(row, lane, targets[params.first_token + row]);
    if (first_of(lane) == 0u) {
        own_parts[row] = found;
    }
}

// Tokens that do not count have no weight.
@if(weighted)
fn weighted_seed(token: u32, counts: bool) -> f32 {
    if (!counts) {
        return 0.0;
    }
    return loss_seed.seed * weights[token];
}

// The statistics of the logits of a row here. Every invocation of the row gets them.
fn part_of(row: u32, lane: u32, target_id: u32) -> RowPart {
    let start = row * params.stride4;
    let first = first_of(lane);
    var most = LOWEST;
    for (var i = first; i < params.stride4; i += STEP) {
        let z = load_logits(start, i);
        most = max(most, max(max(z.x, z.y), max(z.z, z.w)));
    }
    let largest_logit = row_max(most, lane);
    let largest = capped(vec4<f32>(largest_logit)).x;
    var normalizer = 0.0;
    for (var i = first; i < params.stride4; i += STEP) {
        normalizer += dot(exp(capped(load_logits(start, i)) - largest), vec4<f32>(1.0));
    }
    let total = row_sum(normalizer, lane);
    var column = 0.0;
    @if(accuracy) {
        var nearest = LOWEST; // columns count downwards from 0, so that the largest is the first
        for (var i = first; i < params.stride4; i += STEP) {
            let index = vec4<f32>(f32(params.first_column + 4u * i)) + vec4<f32>(0.0, 1.0, 2.0, 3.0);
            let at = select(vec4<f32>(LOWEST), -index, load_logits(start, i) == vec4<f32>(largest_logit));
            nearest = max(nearest, max(max(at.x, at.y), max(at.z, at.w)));
        }
        column = -row_max(nearest, lane);
    }
    return RowPart(largest, total, logit_of(target_id, start), column);
}

// The statistics of the logits of a row on all ranks together, whose columns follow each other.
@if(parts)
fn joined(row: u32) -> RowPart {
    var all = RowPart(LOWEST, 0.0, LOWEST, 0.0);
    for (var part = 0u; part < params.parts; part++) {
        let one = parts[part * params.part_rows + row];
        all.w = select(all.w, one.w, one.x > all.x);
        all.x = max(all.x, one.x);
        all.z = max(all.z, one.z);
    }
    for (var part = 0u; part < params.parts; part++) {
        let one = parts[part * params.part_rows + row];
        all.y += one.y * exp(one.x - all.x);
    }
    return all;
}

@compute @workgroup_size(LANES)
fn sum_losses(@builtin(local_invocation_index) lane: u32) {
    var sum = 0.0;
    for (var token = lane; token < params.rows; token += LANES) {
        sum += losses_in[token];
    }
    let total = row_sum(sum, lane);
    if (lane == 0u) {
        loss.loss_sum += total;
        loss.token_sum += loss.count;
        loss.mean_sum += params.inverse_accumulation * total / max(loss.count, 1.0);
    }
    @if(accuracy) {
        var hits = 0.0;
        for (var token = lane; token < params.rows; token += LANES) {
            hits += correct_in[token];
        }
        let all_hits = row_sum(hits, lane);
        if (lane == 0u) {
            correct_sum[0] += all_hits;
        }
    }
}

// The logit of a target; LOWEST for a target that is in no column here, as an ignored one may be.
fn logit_of(target_id: u32, start: u32) -> f32 {
    let column = target_id - params.first_column; // targets before the first column wrap around
    let logit = capped(vec4<f32>(logits[start + min(column, params.vocab - 1u) / 4u][column % 4u])).x;
    return select(LOWEST, logit, column < params.vocab);
}

// Four logits; columns past the vocabulary are LOWEST, which changes neither the maximum nor the sum of exponentials.
fn load_logits(start: u32, column4: u32) -> vec4<f32> {
    let index = vec4<u32>(4u * column4) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(LOWEST), logits[start + column4], index < vec4<u32>(params.vocab));
}

// Logits as the softmax takes them; LOWEST stays what it is.
fn capped(z: vec4<f32>) -> vec4<f32> {
    @if(!capped) { return z; }
    @if(capped) {
        return select(soft_capped4(z, params.cap, params.inverse_cap), z, z == vec4<f32>(LOWEST));
    }
}

@if(gradient && f32) fn store_dz(at: u32, value: vec4<f32>) { logits[at] = value; }
@if(gradient && !f32) fn store_dz(at: u32, value: vec4<f32>) { dz[at] = store4(value); }
