// Mixture-of-experts router: top k of E experts per token, and their gates     logits z (N, E), bias b (E), all f32
//
//   score s = softmax(z), or sigmoid(z) with `sigmoid`;   chosen: top k of s + b;   gate_j = s[chosen_j]
//   gates are divided by max(Σ gates + gate_epsilon, gate_floor) if `normalises` is set, then multiplied by `scaling`
//
// `sparse_mixer`: the experts of the two largest logits. The gate of choice j is that of a softmax over the experts
// near it, those with (z_j - z) <= tolerance · max(|z|, z_j), the first choice being none of those near the second.
//
//   route            writes scores (N, E), statistics (N, 4), ids (N·k) u32, gates (N, k)
//   choose           writes ids only, from given scores (without the bias: the choices that the balance losses count)
//   route_backward   writes dz (N, E): through the gates (`gradient`), plus the gradients of the balance losses
//                    (`balance`: d_scores (B, E), with respect to the normalised scores of a sequence's tokens) and of
//                    the z loss (`z_loss`), both times loss_scale / accumulation
//
// `group_limited`: experts form contiguous groups, and only those in the best groups are eligible. A group's score is
// that of its best expert or the sum of its best two. Ties between experts or groups go to the lower index (lib/best).
// One workgroup per token; software tier: one invocation. Numerics: f32; the row maximum is subtracted before exp.
// Sources: Shazeer et al., 2017; DeepSeek-V2 and V3, 2024 (groups, sigmoid, bias); Liu et al., 2024 (SparseMixer).

import package::lib::best::{Best, FIRST, KEY_OF_NAN, LAST, better, is_before, key_of, row_best};
import package::lib::bits::{INFINITY, LARGEST_WORD, is_beyond, order_of};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_barrier, row_max, row_of, row_sum};
import package::lib::step_state::StepState;
import package::tile::{CHOSEN, LANES};

struct Params {
    tokens: u32,
    experts: u32,
    stride: u32, // row stride of logits, scores and dz
    gates_stride: u32,
    groups: u32,
    groups_chosen: u32,
    groups_stride: u32,
    takes_best_two: u32,
    normalises: u32,
    gate_epsilon: f32,
    gate_floor: f32,
    scaling: f32,
    tolerance: f32,
    sequence: u32, // tokens per sequence
    d_scores_stride: u32,
    inverse_accumulation: f32,
    z_factor: f32, // 2 · factor / tokens
}

const LOWEST: f32 = -3.4028234e38; // finite stand-in for minus infinity

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // (N, E)
@group(0) @binding(2) var<storage, read_write> scores: array<f32>; // (N, E)
@group(0) @binding(3) var<storage, read_write> statistics: array<vec4<f32>>; // (N): lse, Σ scores, Σ chosen scores, 0;
// with `sparse_mixer` the gates in place of the last two, before `scaling`
@group(0) @binding(4) var<storage, read_write> ids: array<u32>; // (N · k)
@group(0) @binding(5) var<storage, read_write> gates: array<f32>; // (N, k)
@if(bias) @group(0) @binding(6) var<storage, read> bias: array<f32>; // (E)
@if(group_limited) @group(0) @binding(7) var<storage, read_write> group_keys: array<u32>; // (N, groups)

@group(0) @binding(1) var<storage, read> scores_in: array<f32>;
@group(0) @binding(2) var<storage, read> statistics_in: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> ids_in: array<u32>;
@group(0) @binding(4) var<storage, read> d_gates: array<f32>; // (N, k)
@group(0) @binding(5) var<storage, read> d_scores: array<f32>; // (B, E)
@group(0) @binding(6) var<storage, read> step: StepState;
@group(0) @binding(7) var<storage, read_write> d_logits: array<f32>; // (N, E)
@group(0) @binding(8) var<storage, read> logits_in: array<f32>; // (N, E)

@compute @workgroup_size(LANES)
fn route(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.tokens) {
        return;
    }
    let start = row * params.stride;
    var largest = LOWEST;
    for (var e = first; e < params.experts; e += STEP) {
        largest = max(largest, logits[start + e]);
    }
    let shift = row_max(largest, lane);
    var normalizer = 0.0;
    for (var e = first; e < params.experts; e += STEP) {
        normalizer += shown(exp(logits[start + e] - shift), logits[start + e]);
    }
    let total = row_sum(normalizer, lane);
    var sum = 0.0;
    for (var e = first; e < params.stride; e += STEP) {
        var score = 0.0;
        if (e < params.experts) {
            @if(sigmoid) { score = logistic(logits[start + e]); }
            @if(!sigmoid) { score = exp(logits[start + e] - shift) / total; }
            score = shown(score, logits[start + e]);
        }
        sum += score;
        scores[start + e] = score;
    }
    let score_sum = row_sum(sum, lane);
    row_barrier(); // from here on invocations read each other's scores

    choose_experts(row, lane);
    @if(sparse_mixer) row_barrier(); // the first invocation wrote the ids
    @if(sparse_mixer) let near = vec2<f32>(near_sum(row, 0u, lane), near_sum(row, 1u, lane));
    if (first != 0u) {
        return;
    }
    @if(sparse_mixer) {
        let own = vec2<f32>(
            shown(1.0 / near.x, logits[start + ids[row * CHOSEN]]),
            shown(1.0 / near.y, logits[start + ids[row * CHOSEN + 1u]])
        );
        for (var j = 0u; j < params.gates_stride; j++) {
            gates[row * params.gates_stride + j] = params.scaling * select(select(0.0, own.y, j == 1u), own.x, j == 0u);
        }
        statistics[row] = vec4<f32>(shift + log(total), score_sum, own);
    }
    @if(!sparse_mixer) {
        var chosen_sum = 0.0;
        for (var j = 0u; j < CHOSEN; j++) {
            chosen_sum += scores[start + ids[row * CHOSEN + j]];
        }
        let factor = gate_factor(chosen_sum);
        for (var j = 0u; j < params.gates_stride; j++) {
            var gate = 0.0;
            if (j < CHOSEN) {
                gate = scores[start + ids[row * CHOSEN + j]] * factor;
            }
            gates[row * params.gates_stride + j] = gate;
        }
        statistics[row] = vec4<f32>(shift + log(total), score_sum, chosen_sum, 0.0);
    }
}

// Σ exp(z - z_j) over the experts near choice j of a row.
@if(sparse_mixer)
fn near_sum(row: u32, j: u32, lane: u32) -> f32 {
    let start = row * params.stride;
    let chosen = logits[start + ids[row * CHOSEN + j]];
    let taken = select(params.experts, ids[row * CHOSEN], j == 1u);
    var sum = 0.0;
    for (var e = first_of(lane); e < params.experts; e += STEP) {
        if (e != taken) {
            sum += share_of(logits[start + e], chosen);
        }
    }
    return row_sum(sum, lane);
}

// exp(z - chosen) of an expert near the chosen one, 0 of others.
@if(sparse_mixer)
fn share_of(z: f32, chosen: f32) -> f32 {
    let is_far = chosen - z > params.tolerance * max(abs(z), chosen);
    return select(exp(z - chosen), 0.0, is_far);
}

@compute @workgroup_size(LANES)
fn choose(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    if (row < params.tokens) {
        choose_experts(row, lane);
    }
}

@compute @workgroup_size(LANES)
fn route_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.tokens) {
        return;
    }
    let start = row * params.stride;
    let statistic = statistics_in[row]; // lse, Σ scores, Σ chosen scores

    // The gradient of a chosen score is factor · (d_gate_j - mean); `mean` comes from normalising the gates. `loss` is
    // the Σ s · ds that the softmax, or the division by Σ s, subtracts from the gradient of every score.
    var mean = 0.0;
    var loss = 0.0;
    @if(gradient && !sparse_mixer) let factor = gate_factor(statistic.z);
    @if(gradient && !sparse_mixer) {
        var products = 0.0;
        for (var j = 0u; j < CHOSEN; j++) {
            products += d_gates[row * params.gates_stride + j] * scores_in[start + ids_in[row * CHOSEN + j]];
        }
        // Below the floor the divisor is a constant.
        if (params.normalises != 0u && statistic.z + params.gate_epsilon >= params.gate_floor) {
            mean = products / (statistic.z + params.gate_epsilon);
        }
        @if(!sigmoid) { loss = factor * (products - mean * statistic.z); }
    }

    @if(balance || z_loss) let seed = step.loss_scale * params.inverse_accumulation;
    @if(balance) let d_scores_start = row / params.sequence * params.d_scores_stride;
    @if(balance) {
        var products = 0.0;
        for (var e = first; e < params.experts; e += STEP) {
            products += seed * d_scores[d_scores_start + e] * scores_in[start + e];
        }
        let total = row_sum(products, lane);
        @if(sigmoid) { loss = total / statistic.y; }
        @if(!sigmoid) { loss += total; }
    }

    // Of gate g_j the gradient is g_j (1 - g_j) with respect to its own logit, and -g_j times their shares with respect
    // to those of the experts near it.
    @if(gradient && sparse_mixer) let choices = vec2<u32>(ids_in[row * CHOSEN], ids_in[row * CHOSEN + 1u]);
    @if(gradient && sparse_mixer) let chosen = vec2<f32>(logits_in[start + choices.x], logits_in[start + choices.y]);
    @if(gradient && sparse_mixer) let own = vec2<f32>(statistic.z, statistic.w);
    @if(gradient && sparse_mixer) let slopes = params.scaling * own * vec2<f32>(
        d_gates[row * params.gates_stride],
        d_gates[row * params.gates_stride + 1u]
    );

    for (var e = first; e < params.stride; e += STEP) {
        var value = 0.0;
        if (e < params.experts) {
            let score = scores_in[start + e];
            var d_score = 0.0;
            @if(balance) { d_score = seed * d_scores[d_scores_start + e]; }
            @if(sigmoid) { value = score * (1.0 - score) * (d_score - loss) / statistic.y; }
            @if(!sigmoid) { value = score * (d_score - loss); }
            @if(z_loss) {
                @if(sigmoid) let share_of_sum = exp(logits_in[start + e] - statistic.x);
                @if(!sigmoid) let share_of_sum = score;
                value += seed * params.z_factor * statistic.x * share_of_sum;
            }
            @if(gradient && sparse_mixer) {
                let z = logits_in[start + e];
                let second = select(share_of(z, chosen.y) * own.y, 0.0, e == choices.x);
                value += slopes.x * (f32(e == choices.x) - share_of(z, chosen.x) * own.x);
                value += slopes.y * (f32(e == choices.y) - second);
            }
        }
        d_logits[start + e] = value;
    }
    @if(gradient && !sparse_mixer) {
        row_barrier(); // adds below to elements that other invocations have written
        for (var j = first; j < CHOSEN; j += STEP) {
            let at = start + ids_in[row * CHOSEN + j]; // a token's choices are distinct
            let score = scores_in[at];
            var slope = score;
            @if(sigmoid) { slope *= 1.0 - score; }
            d_logits[at] += slope * factor * (d_gates[row * params.gates_stride + j] - mean);
        }
    }
}

// The factor that turns a chosen score into its gate.
@if(!sparse_mixer)
fn gate_factor(chosen_sum: f32) -> f32 {
    var factor = params.scaling;
    if (params.normalises != 0u) {
        factor /= max(chosen_sum + params.gate_epsilon, params.gate_floor);
    }
    return factor;
}

// `value`, or the logit that it follows from if that logit is not finite: overflows must show in the gates. `exp` turns
// a NaN into a number on SwiftShader, and `max` may do so on any adapter.
fn shown(value: f32, logit: f32) -> f32 {
    return select(value, logit, is_beyond(bitcast<u32>(logit), LARGEST_WORD));
}

fn logistic(z: f32) -> f32 {
    return 1.0 / (1.0 + exp(-max(z, -80.0)));
}

fn selection_key(start: u32, expert: u32) -> u32 {
    // Two logits may differ where their scores do not.
    @if(sparse_mixer) let score = logits[start + expert];
    @if(!sparse_mixer) let score = scores[start + expert];
    return key_of(biased(score, expert), bitcast<u32>(score));
}

@if(bias)
fn biased(score: f32, expert: u32) -> f32 {
    return score + bias[expert];
}

@if(!bias)
fn biased(score: f32, expert: u32) -> f32 {
    return score;
}

// Writes the first k eligible experts in the order of lib/best, best first. The first invocation of the row writes
// them, and may read them: an array of them would be in memory where a compiler does not unroll the loop.
fn choose_experts(row: u32, lane: u32) {
    let start = row * params.stride;
    @if(group_limited) let last_group = choose_groups(row, lane);
    var taken = FIRST;
    for (var j = 0u; j < CHOSEN; j++) {
        var best = LAST;
        for (var e = first_of(lane); e < params.experts; e += STEP) {
            let candidate = Best(selection_key(start, e), e);
            var allowed = is_before(taken, candidate);
            @if(group_limited) { allowed = allowed && is_in_groups(row, e, last_group); }
            if (allowed && is_before(candidate, best)) {
                best = candidate;
            }
        }
        taken = row_best(best, lane);
        if (first_of(lane) == 0u) {
            ids[row * CHOSEN + j] = taken.index;
        }
    }
}

// The last eligible group in the order of lib/best; also writes the keys of all groups to group_keys.
@if(group_limited)
fn choose_groups(row: u32, lane: u32) -> Best {
    let start = row * params.stride;
    let groups_start = row * params.groups_stride;
    let size = params.experts / params.groups;
    for (var group = first_of(lane); group < params.groups; group += STEP) {
        var first = LOWEST;
        var second = LOWEST;
        var has_nan = false; // `max` may drop it
        for (var i = 0u; i < size; i++) {
            let expert = group * size + i;
            let loaded = scores[start + expert];
            let score = biased(loaded, expert);
            second = max(second, min(first, score));
            first = max(first, score);
            has_nan |= is_beyond(bitcast<u32>(loaded), INFINITY);
        }
        let key = order_of(select(first, first + second, params.takes_best_two != 0u));
        group_keys[groups_start + group] = select(key, KEY_OF_NAN, has_nan);
    }
    row_barrier();
    var taken = FIRST;
    for (var i = 0u; i < params.groups_chosen; i++) {
        var best = LAST;
        for (var group = first_of(lane); group < params.groups; group += STEP) {
            let candidate = Best(group_keys[groups_start + group], group);
            if (is_before(taken, candidate) && is_before(candidate, best)) {
                best = candidate;
            }
        }
        taken = row_best(best, lane);
    }
    return taken;
}

@if(group_limited)
fn is_in_groups(row: u32, expert: u32, last_group: Best) -> bool {
    let group = expert / (params.experts / params.groups);
    return !is_before(last_group, Best(group_keys[row * params.groups_stride + group], group));
}
