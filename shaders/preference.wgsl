// Preferences: the loss of pairs of answers, one of which is preferred, from the losses of their tokens.
//
//   log_probabilities   for each answer Σ log p of its targets, and their number: log_probs (2P, 2)
//   pair_losses         of c, the chosen, and r, the rejected answer: x = log p − log p under the reference, n targets,
//                       a = log p / n; by `kind`
//                         DPO     −(1 − ε) log σ(z) − ε log σ(−z),   z = β (x_c − x_r)
//                         IPO     (x_c / n_c − x_r / n_r − 1 / (2 β))²
//                         ORPO    −a_c − β log σ(log odds(a_c) − log odds(a_r)),   odds(a) = e^a / (1 − e^a)
//                         SimPO   as DPO, z = β (a_c − a_r) − γ
//                       adds the sums to LossState, whose count is that of pairs, and to PreferenceState;
//                       slopes (2P) are the derivatives by log p of each answer
//   token_weights       weights (N): −slope of the answer of each token, for the gradient of its cross-entropy
//
// One workgroup per answer (software tier: one invocation, lib/reduce); pair_losses is one workgroup. Sums in f32 have
// a fixed order, as log p has that of many tokens.
// Sources: Rafailov et al., 2023 (DPO); Azar et al., 2023 (IPO), per token as in TRL; Hong et al., 2024 (ORPO); Meng et
// al., 2024 (SimPO).

import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum, row_sum4};
import package::lib::step_state::{LossState, PreferenceState, StepState};
import package::tile::LANES;

struct Params {
    pairs: u32, // P: places for pairs, of which some may be empty
    kind: u32,
    beta: f32,
    smoothing: f32, // ε
    margin: f32, // γ
    ignore: u32, // target id that is not counted
    inverse_accumulation: f32,
    divisor: f32, // N, or 0: the number of pairs
}

const DPO = 0u;
const IPO = 1u;
const ORPO = 2u;

// First token of the chosen answer, first token of the rejected one, end of that, and 1; zeros for an empty place.
@group(0) @binding(1) var<storage, read> pairs: array<vec4<u32>>; // (P)

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> targets: array<u32>; // (N)
@group(0) @binding(3) var<storage, read> losses: array<f32>; // (N)
@group(0) @binding(4) var<storage, read_write> log_probs: array<vec2<f32>>; // (2P)

@group(0) @binding(2) var<storage, read> policy: array<vec4<f32>>; // (P): log_probs of chosen and rejected
@group(0) @binding(3) var<storage, read> reference: array<vec4<f32>>; // (P)
@group(0) @binding(4) var<storage, read> step: StepState;
@group(0) @binding(5) var<storage, read_write> loss: LossState;
@group(0) @binding(6) var<storage, read_write> sums: PreferenceState;
@group(0) @binding(7) var<storage, read_write> slopes: array<vec2<f32>>; // (P)

@group(0) @binding(2) var<storage, read> slopes_in: array<f32>; // (2P)
@group(0) @binding(3) var<storage, read_write> weights: array<f32>; // (N)

// The loss of a pair, and its derivatives by both log-probabilities.
struct Judged {
    loss: f32,
    slopes: vec2<f32>,
}

@compute @workgroup_size(LANES)
fn log_probabilities(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let answer = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (answer >= 2u * params.pairs) {
        return;
    }
    let tokens = tokens_of(answer);
    var sum = 0.0;
    var count = 0.0;
    for (var token = tokens.x + first; token < tokens.y; token += STEP) {
        sum -= losses[token];
        count += select(1.0, 0.0, targets[token] == params.ignore);
    }
    let total = row_sum(sum, lane);
    let counted = row_sum(count, lane);
    if (first == 0u) {
        log_probs[answer] = vec2<f32>(total, counted);
    }
}

@compute @workgroup_size(LANES)
fn pair_losses(@builtin(local_invocation_index) lane: u32) {
    var judged_sums = vec4<f32>(0.0); // losses, pairs, rewards of chosen and rejected
    var others = vec4<f32>(0.0); // pairs whose chosen answer has the higher reward, log-probabilities of both
    for (var pair = lane; pair < params.pairs; pair += LANES) {
        let is_there = pairs[pair].w != 0u;
        if (is_there) {
            let own = policy[pair];
            let rewards = params.beta * rewards_of(pair, own);
            let judged = judge(pair, own);
            slopes[pair] = judged.slopes;
            judged_sums += vec4<f32>(judged.loss, 1.0, rewards);
            let shown = select(own.xz, own.xz / max(own.yw, vec2<f32>(1.0)), params.kind >= ORPO);
            others += vec4<f32>(select(0.0, 1.0, rewards.x > rewards.y), shown, 0.0);
        } else {
            slopes[pair] = vec2<f32>(0.0);
        }
    }
    let total = row_sum4(judged_sums, lane);
    let rest = row_sum4(others, lane);
    if (lane == 0u) {
        let divisor = select(max(total.y, 1.0), params.divisor, params.divisor > 0.0);
        loss.count = total.y;
        loss.seed = step.loss_scale * params.inverse_accumulation / divisor;
        loss.loss_sum += total.x;
        loss.token_sum += total.y;
        loss.mean_sum += params.inverse_accumulation * total.x / max(total.y, 1.0);
        sums.chosen_reward += total.z;
        sums.rejected_reward += total.w;
        sums.accurate += rest.x;
        sums.chosen_log_prob += rest.y;
        sums.rejected_log_prob += rest.z;
    }
}

@compute @workgroup_size(LANES)
fn token_weights(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let answer = row_of(linear_index(workgroup), lane);
    if (answer >= 2u * params.pairs) {
        return;
    }
    let tokens = tokens_of(answer);
    let weight = -slopes_in[answer];
    for (var token = tokens.x + first_of(lane); token < tokens.y; token += STEP) {
        weights[token] = weight;
    }
}

// First token and end of an answer: of the chosen ones the even, of the rejected ones the odd numbers.
fn tokens_of(answer: u32) -> vec2<u32> {
    let pair = pairs[answer / 2u];
    return select(pair.xy, pair.yz, answer % 2u == 1u);
}

// Rewards of the chosen and the rejected answer, divided by β.
fn rewards_of(pair: u32, own: vec4<f32>) -> vec2<f32> {
    if (params.kind >= ORPO) {
        return own.xz / max(own.yw, vec2<f32>(1.0));
    }
    return own.xz - reference[pair].xz;
}

fn judge(pair: u32, own: vec4<f32>) -> Judged {
    let counts = max(own.yw, vec2<f32>(1.0));
    let values = rewards_of(pair, own);
    if (params.kind == DPO) {
        let z = params.beta * (values.x - values.y);
        return Judged(smoothed(z), params.beta * smoothed_slope(z) * vec2<f32>(1.0, -1.0));
    }
    if (params.kind == IPO) {
        let means = values / counts;
        let off = means.x - means.y - 0.5 / params.beta;
        return Judged(off * off, 2.0 * off * vec2<f32>(1.0, -1.0) / counts);
    }
    if (params.kind == ORPO) {
        let misses = vec2<f32>(one_minus_exp(values.x), one_minus_exp(values.y));
        let log_odds = values.x - values.y - (log(misses.x) - log(misses.y));
        let slope = -params.beta * logistic(-log_odds);
        let loss = params.beta * softplus(-log_odds) - values.x;
        return Judged(loss, (slope * vec2<f32>(1.0, -1.0) / misses - vec2<f32>(1.0, 0.0)) / counts);
    }
    let z = params.beta * (values.x - values.y) - params.margin;
    return Judged(smoothed(z), params.beta * smoothed_slope(z) * vec2<f32>(1.0, -1.0) / counts);
}

// −(1 − ε) log σ(z) − ε log σ(−z), and its derivative.
fn smoothed(z: f32) -> f32 {
    return (1.0 - params.smoothing) * softplus(-z) + params.smoothing * softplus(z);
}

fn smoothed_slope(z: f32) -> f32 {
    return params.smoothing * logistic(z) - (1.0 - params.smoothing) * logistic(-z);
}

// log(1 + e^x). A NaN stays one: no max, which may drop it.
fn softplus(x: f32) -> f32 {
    return select(0.0, x, x > 0.0) + log(1.0 + exp(select(x, -x, x > 0.0)));
}

fn logistic(x: f32) -> f32 {
    return 1.0 / (1.0 + exp(-select(x, -80.0, x < -80.0)));
}

// 1 − e^x of x below 0, by its series where the difference would cancel; never 0, since its logarithm is taken.
fn one_minus_exp(x: f32) -> f32 {
    let series = -x * (1.0 + x / 2.0 * (1.0 + x / 3.0 * (1.0 + x / 4.0 * (1.0 + x / 5.0))));
    let value = select(1.0 - exp(x), series, x > -0.1);
    return select(value, 1e-7, value < 1e-7);
}
