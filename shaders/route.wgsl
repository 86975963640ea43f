// The router: which k of E experts a token visits, and how much each counts          logits z (N, E), bias b (E)
//
//   score s = softmax(z), or 1 / (1 + e^-z) with `sigmoid`;   choices: the k best s + b;   gate_j = s[choice_j]
//   normalised: gate / (Σ gates + 1e-9);   at last gate · scaling
//
//   route            scores (N, E), statistics (N, 4), ids (N·k), gates (N, k)
//   choose           only the ids, from scores (without a bias: what the balance losses count)
//   route_backward   dz (N, E): through the gates (`gradient`), plus the losses that keep experts equally busy (`balance`:
//                    pull (B, E), their gradient with respect to the normalised scores of a sequence) and logits small
//                    (`z_loss`), both times loss scale / accumulation
//
// `group_limited`: experts lie in groups, and only those of the best groups may be chosen. A group is as good as its best
// expert or as the sum of its best two. Of equals, experts or groups, the lower index comes first (lib/best).
// A workgroup shares a token, or on CPU adapters each invocation has one of its own. All in f32; a row's maximum is
// subtracted before exp. Sources: Shazeer et al., 2017; DeepSeek-V2 and V3, 2024 (groups, sigmoid, bias).

import package::lib::best::{Best, FIRST, LAST, better, is_before, key_of, row_best};
import package::lib::grid::linear_index;
import package::lib::reduce::{Share, row_max, row_sum, share_of};
import package::lib::step_state::StepState;
import package::tile::{CHOSEN, LANES};

struct Params {
    tokens: u32,
    experts: u32,
    stride: u32, // of logits, scores and dz
    gates_stride: u32,
    groups: u32,
    groups_chosen: u32,
    groups_stride: u32,
    takes_best_two: u32,
    normalises: u32,
    scaling: f32,
    sequence: u32, // tokens of one
    pull_stride: u32,
    inverse_accumulation: f32,
    z_factor: f32, // 2 · factor / tokens
}

const EPSILON: f32 = 1e-9;
const LOWEST: f32 = -3.4028234e38; // stands for minus infinity

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> logits: array<f32>; // (N, E)
@group(0) @binding(2) var<storage, read_write> scores: array<f32>; // (N, E)
@group(0) @binding(3) var<storage, read_write> statistics: array<vec4<f32>>; // lse, Σ scores, Σ chosen scores
@group(0) @binding(4) var<storage, read_write> ids: array<u32>; // (N · k)
@group(0) @binding(5) var<storage, read_write> gates: array<f32>; // (N, k)
@if(bias) @group(0) @binding(6) var<storage, read> bias: array<f32>; // (E)
@if(group_limited) @group(0) @binding(7) var<storage, read_write> group_keys: array<u32>; // (N, groups)

@group(0) @binding(1) var<storage, read> scores_in: array<f32>;
@group(0) @binding(2) var<storage, read> statistics_in: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> ids_in: array<u32>;
@group(0) @binding(4) var<storage, read> d_gates: array<f32>; // (N, k)
@group(0) @binding(5) var<storage, read> pull: array<f32>; // (B, E)
@group(0) @binding(6) var<storage, read> step: StepState;
@group(0) @binding(7) var<storage, read_write> d_logits: array<f32>; // (N, E)
@group(0) @binding(8) var<storage, read> logits_in: array<f32>; // (N, E)

@compute @workgroup_size(LANES)
fn route(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let share = share_of(linear_index(workgroup), lane);
    if (share.row >= params.tokens) {
        return;
    }
    let start = share.row * params.stride;
    var largest = LOWEST;
    for (var e = share.first; e < params.experts; e += share.step) {
        largest = max(largest, logits[start + e]);
    }
    let shift = row_max(largest, lane);
    var normalizer = 0.0;
    for (var e = share.first; e < params.experts; e += share.step) {
        normalizer += exp(logits[start + e] - shift);
    }
    let total = row_sum(normalizer, lane);
    var sum = 0.0;
    for (var e = share.first; e < params.stride; e += share.step) {
        var score = 0.0;
        if (e < params.experts) {
            @if(sigmoid) { score = logistic(logits[start + e]); }
            @if(!sigmoid) { score = exp(logits[start + e] - shift) / total; }
        }
        sum += score;
        scores[start + e] = score;
    }
    let score_sum = row_sum(sum, lane);
    row_barrier(); // from here on invocations read each other's scores

    let chosen = choose_experts(share, lane);
    if (share.first != 0u) {
        return;
    }
    var chosen_sum = 0.0;
    for (var j = 0u; j < CHOSEN; j++) {
        ids[share.row * CHOSEN + j] = chosen[j];
        chosen_sum += scores[start + chosen[j]];
    }
    let factor = gate_factor(chosen_sum);
    for (var j = 0u; j < params.gates_stride; j++) {
        var gate = 0.0;
        if (j < CHOSEN) {
            gate = scores[start + chosen[j]] * factor;
        }
        gates[share.row * params.gates_stride + j] = gate;
    }
    statistics[share.row] = vec4<f32>(shift + log(total), score_sum, chosen_sum, 0.0);
}

@compute @workgroup_size(LANES)
fn choose(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let share = share_of(linear_index(workgroup), lane);
    if (share.row >= params.tokens) {
        return;
    }
    let chosen = choose_experts(share, lane);
    if (share.first != 0u) {
        return;
    }
    for (var j = 0u; j < CHOSEN; j++) {
        ids[share.row * CHOSEN + j] = chosen[j];
    }
}

@compute @workgroup_size(LANES)
fn route_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let share = share_of(linear_index(workgroup), lane);
    if (share.row >= params.tokens) {
        return;
    }
    let start = share.row * params.stride;
    let statistic = statistics_in[share.row]; // lse, Σ scores, Σ chosen scores

    // d_gate_j becomes the gradient of a chosen score, factor · (d_gate_j - mean). Of a softmax' row all scores are
    // pulled down by what the chosen ones gain.
    var mean = 0.0;
    var loss = 0.0;
    @if(gradient) let factor = gate_factor(statistic.z);
    @if(gradient) {
        var products = 0.0;
        for (var j = 0u; j < CHOSEN; j++) {
            products += d_gates[share.row * params.gates_stride + j] * scores_in[start + ids_in[share.row * CHOSEN + j]];
        }
        if (params.normalises != 0u) {
            mean = products / (statistic.z + EPSILON);
        }
        @if(!sigmoid) { loss = factor * (products - mean * statistic.z); }
    }

    @if(balance || z_loss) let seed = step.loss_scale * params.inverse_accumulation;
    @if(balance) let pull_start = share.row / params.sequence * params.pull_stride;
    @if(balance) {
        var products = 0.0;
        for (var e = share.first; e < params.experts; e += share.step) {
            products += seed * pull[pull_start + e] * scores_in[start + e];
        }
        let total = row_sum(products, lane);
        @if(sigmoid) { loss = total / statistic.y; }
        @if(!sigmoid) { loss += total; }
    }

    for (var e = share.first; e < params.stride; e += share.step) {
        var value = 0.0;
        if (e < params.experts) {
            let score = scores_in[start + e];
            var d_score = 0.0;
            @if(balance) { d_score = seed * pull[pull_start + e]; }
            @if(sigmoid) { value = score * (1.0 - score) * (d_score - loss) / statistic.y; }
            @if(!sigmoid) { value = score * (d_score - loss); }
            @if(z_loss) {
                @if(sigmoid) let share_of_sum = exp(logits_in[start + e] - statistic.x);
                @if(!sigmoid) let share_of_sum = score;
                value += seed * params.z_factor * statistic.x * share_of_sum;
            }
        }
        d_logits[start + e] = value;
    }
    @if(gradient) {
        row_barrier(); // what is added to below was written by another invocation
        for (var j = share.first; j < CHOSEN; j += share.step) {
            let at = start + ids_in[share.row * CHOSEN + j]; // choices of a token differ
            let score = scores_in[at];
            var slope = score;
            @if(sigmoid) { slope *= 1.0 - score; }
            d_logits[at] += slope * factor * (d_gates[share.row * params.gates_stride + j] - mean);
        }
    }
}

// What a chosen score is multiplied with to be a gate.
fn gate_factor(chosen_sum: f32) -> f32 {
    var factor = params.scaling;
    if (params.normalises != 0u) {
        factor /= chosen_sum + EPSILON;
    }
    return factor;
}

// A comparison instead of `max`, which may turn a NaN into -80 and hide an overflow.
fn logistic(z: f32) -> f32 {
    return 1.0 / (1.0 + exp(-select(z, -80.0, z < -80.0)));
}

fn selection_key(start: u32, expert: u32) -> u32 {
    return key_of(selection_score(start, expert));
}

@if(bias)
fn selection_score(start: u32, expert: u32) -> f32 {
    return scores[start + expert] + bias[expert];
}

@if(!bias)
fn selection_score(start: u32, expert: u32) -> f32 {
    return scores[start + expert];
}

// The k experts that come first in the order of lib/best, best first.
fn choose_experts(share: Share, lane: u32) -> array<u32, CHOSEN> {
    let start = share.row * params.stride;
    @if(group_limited) let last_group = choose_groups(share, lane);
    var chosen: array<u32, CHOSEN>;
    var taken = FIRST;
    for (var j = 0u; j < CHOSEN; j++) {
        var best = LAST;
        for (var e = share.first; e < params.experts; e += share.step) {
            let candidate = Best(selection_key(start, e), e);
            var allowed = is_before(taken, candidate);
            @if(group_limited) { allowed = allowed && is_in_groups(share.row, e, last_group); }
            if (allowed && is_before(candidate, best)) {
                best = candidate;
            }
        }
        taken = row_best(best, lane);
        chosen[j] = taken.index;
    }
    return chosen;
}

// The last group, in the order of lib/best, whose experts may be chosen; the keys of all groups are left in memory.
@if(group_limited)
fn choose_groups(share: Share, lane: u32) -> Best {
    let start = share.row * params.stride;
    let groups_start = share.row * params.groups_stride;
    let size = params.experts / params.groups;
    for (var group = share.first; group < params.groups; group += share.step) {
        var first = LOWEST;
        var second = LOWEST;
        for (var i = 0u; i < size; i++) {
            let score = selection_score(start, group * size + i);
            second = max(second, min(first, score));
            first = max(first, score);
        }
        group_keys[groups_start + group] = key_of(select(first, first + second, params.takes_best_two != 0u));
    }
    row_barrier();
    var taken = FIRST;
    for (var i = 0u; i < params.groups_chosen; i++) {
        var best = LAST;
        for (var group = share.first; group < params.groups; group += share.step) {
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

@if(shared_tile) fn row_barrier() { storageBarrier(); }
@if(!shared_tile) fn row_barrier() {}
