// Load-balancing losses of a mixture layer, over a micro-batch of B sequences of T tokens, N = B · T
//
//   f_e = fraction of the choices routed to expert e;   p_e = mean over tokens of e's score, where each token's scores
//   are normalised to a sum of 1
//   expert loss = E Σ_e f_e p_e over all tokens;   sequence loss: the same per sequence, averaged;  z loss = mean(lse²)
//
//   sum_choices   from ids (N·k), scores (N, E) and statistics (N, 4): per block of tokens of one sequence and per
//                 expert, the number of choices (u32) and the sum of normalised scores, (B · blocks, E) each
//   balance       reduces those to d_scores (B, E), the gradient of expert_factor · expert loss + sequence_factor ·
//                 sequence loss with respect to the normalised scores of any token of a sequence, f held constant.
//                 With `accumulate` it adds the three losses, unweighted and divided by the number of micro-batches,
//                 to the tally
//
// sum_choices: one invocation per (block, expert). balance: a single workgroup. All sums have a fixed order.
// Sources: Fedus et al., "Switch Transformers", 2021, section 2.2; DeepSeek-V3, 2024, equation 17; Zoph et al.,
// "ST-MoE", 2022, equation 5.

import package::lib::grid::linear_index;
import package::lib::reduce::row_sum;
import package::tile::{CHOSEN, LANES};

struct Params {
    tokens: u32,
    experts: u32,
    stride: u32, // row stride of scores, choices, sums and d_scores
    sequences: u32, // B
    sequence: u32, // T
    block: u32, // tokens per block; the last block of a sequence may have fewer
    blocks: u32, // per sequence
    tally_losses: u32, // index of the first of the three losses in the tally row
    expert_scale: f32, // E / (k N²)
    sequence_scale: f32, // E / (B k T²)
    expert_factor: f32,
    sequence_factor: f32,
    inverse_accumulation: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>; // (N · k)
@group(0) @binding(2) var<storage, read> scores: array<f32>; // (N, E)
@group(0) @binding(3) var<storage, read> statistics: array<vec4<f32>>; // (N): lse, Σ scores, unused, unused
@group(0) @binding(4) var<storage, read_write> choices: array<u32>; // (B · blocks, E)
@group(0) @binding(5) var<storage, read_write> sums: array<f32>; // (B · blocks, E)

@group(0) @binding(1) var<storage, read> choices_in: array<u32>;
@group(0) @binding(2) var<storage, read> sums_in: array<f32>;
@group(0) @binding(4) var<storage, read_write> d_scores: array<f32>; // (B, E)
@if(accumulate) @group(0) @binding(5) var<storage, read_write> tally: array<u32>;

@compute @workgroup_size(LANES)
fn sum_choices(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let columns = (params.stride + LANES - 1u) / LANES; // workgroups per block
    let index = linear_index(workgroup);
    let block = index / columns;
    let expert = index % columns * LANES + lane;
    let sequence = block / params.blocks;
    if (sequence >= params.sequences || expert >= params.experts) {
        return;
    }
    let first = sequence * params.sequence + block % params.blocks * params.block;
    let end = min(first + params.block, (sequence + 1u) * params.sequence);
    var count = 0u;
    for (var choice = first * CHOSEN; choice < end * CHOSEN; choice++) {
        count += select(0u, 1u, ids[choice] == expert);
    }
    var sum = 0.0;
    for (var token = first; token < end; token++) {
        let score = scores[token * params.stride + expert];
        @if(sigmoid) { sum += score / statistics[token].y; }
        @if(!sigmoid) { sum += score; }
    }
    choices[block * params.stride + expert] = count;
    sums[block * params.stride + expert] = sum;
}

@compute @workgroup_size(LANES)
fn balance(@builtin(local_invocation_index) lane: u32) {
    var expert_sum = 0.0;
    var sequence_sum = 0.0;
    for (var e = lane; e < params.stride; e += LANES) {
        let is_expert = e < params.experts;
        var count = 0u;
        var sum = 0.0;
        for (var s = 0u; s < params.sequences; s++) {
            var sequence_count = 0u;
            var part = 0.0;
            for (var b = s * params.blocks; is_expert && b < (s + 1u) * params.blocks; b++) {
                sequence_count += choices_in[b * params.stride + e];
                part += sums_in[b * params.stride + e];
            }
            count += sequence_count;
            sum += part;
            sequence_sum += f32(sequence_count) * part;
            d_scores[s * params.stride + e] = params.sequence_factor * params.sequence_scale * f32(sequence_count);
        }
        expert_sum += f32(count) * sum;
        let everywhere = params.expert_factor * params.expert_scale * f32(count);
        for (var s = 0u; s < params.sequences; s++) {
            d_scores[s * params.stride + e] += everywhere;
        }
    }
    @if(accumulate) {
        var squares = 0.0;
        for (var token = lane; token < params.tokens; token += LANES) {
            squares += statistics[token].x * statistics[token].x;
        }
        let expert_loss = params.expert_scale * row_sum(expert_sum, lane);
        let sequence_loss = params.sequence_scale * row_sum(sequence_sum, lane);
        let z_loss = row_sum(squares, lane) / f32(params.tokens);
        if (lane == 0u) {
            add_to_tally(0u, expert_loss);
            add_to_tally(1u, sequence_loss);
            add_to_tally(2u, z_loss);
        }
    }
}

@if(accumulate)
fn add_to_tally(place: u32, loss: f32) {
    let at = params.tally_losses + place;
    tally[at] = bitcast<u32>(bitcast<f32>(tally[at]) + params.inverse_accumulation * loss);
}
