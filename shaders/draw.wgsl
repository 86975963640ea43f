// Draws the next token of each sequence, and prepares the step that reads it.
//
//   logits (B, V) f32               read; those of tokens that have occurred are penalised in place
//   sampling                        read: SamplingState
//   sequences (B) vec4<u32>         seed, low and high word, and number of draws so far, which is increased by one
//   seen (B, ceil(V / 32)) u32      a bit for each token that has occurred; the bit of the drawn token is set
//   token, position (B) u32         the token is written, and the position is increased by one
//   drawn (DRAWS, B) u32            row `draws mod DRAWS` receives the tokens
//
// The drawn token is the one at a random quantile of the tokens ordered from most to least likely, ties by their
// number. Nothing is sorted: `key_of` maps logits to integers of the same order. The smallest set of most likely tokens
// with a given number or mass consists of the tokens whose keys reach a threshold. Each pass over the row finds two
// bits of the threshold. Tokens that tie with the last token of such a set belong to it. A NaN is never drawn; if all
// logits are NaN, the token is 0. Temperature 0 draws the most likely token.
//
// One workgroup per sequence (lib/reduce). Counts are f32, which is exact for vocabularies up to 2^24.
// Sources: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019 (top_p); Keskar et al., "CTRL", 2019,
// section 4.1 (the penalty).

import package::lib::bits::{INFINITY, is_beyond, order_of};
import package::lib::grid::linear_index;
import package::lib::philox::philox;
import package::lib::reduce::{STEP, first_of, row_max, row_sum, row_sum4};
import package::tile::{DRAWS, LANES};

struct Params {
    sequences: u32, // B
    vocab: u32, // V
    logits_stride: u32, // in elements, as the next
    seen_stride: u32,
    pairs: u32, // pairs of bits in V - 1
}

struct SamplingState {
    temperature: f32, // 0: greedy
    top_p: f32, // 1: all
    repetition_penalty: f32, // 1: none
    top_k: u32, // 0: all
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> logits: array<f32>;
@group(0) @binding(2) var<storage, read> sampling: SamplingState;
@group(0) @binding(3) var<storage, read_write> sequences: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> seen: array<u32>;
@group(0) @binding(5) var<storage, read_write> token: array<u32>;
@group(0) @binding(6) var<storage, read_write> position: array<u32>;
@group(0) @binding(7) var<storage, read_write> drawn: array<u32>;

const STREAM: vec2<u32> = vec2<u32>(0u, 256u); // DRAW_STREAM of src/gpu/random.rs, low and high word
const LOWEST: f32 = -3.4028234e38;

// A row of logits, and what turns a logit into a weight.
struct Row {
    start: u32,
    lane: u32,
    top: f32, // the largest logit
    rate: f32, // 1 / temperature
}

@compute @workgroup_size(LANES)
fn draw(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let sequence = linear_index(workgroup);
    if (sequence >= params.sequences) {
        return;
    }
    let start = sequence * params.logits_stride;
    let words = sequence * params.seen_stride;
    var top = LOWEST;
    for (var i = first_of(lane); i < params.vocab; i += STEP) {
        let loaded = logits[start + i];
        var logit = loaded;
        if (((seen[words + i / 32u] >> (i % 32u)) & 1u) == 1u) {
            logit *= select(sampling.repetition_penalty, 1.0 / sampling.repetition_penalty, logit > 0.0);
            logits[start + i] = logit;
        }
        if (logit > top && !is_beyond(bitcast<u32>(loaded), INFINITY)) {
            top = logit;
        }
    }
    let is_greedy = sampling.temperature == 0.0;
    let row = Row(start, lane, row_max(top, lane), 1.0 / select(sampling.temperature, 1.0, is_greedy));
    let state = sequences[sequence];
    var chosen = 0u;
    if (is_greedy) {
        chosen = first_with(row, order_of(row.top));
    } else {
        let random = philox(vec4<u32>(state.z, 0u, STREAM), state.xy);
        var lowest = 1u; // the key of the least likely token that may be drawn; not that of a NaN
        if (sampling.top_k > 0u) {
            lowest = threshold(row, lowest, f32(min(sampling.top_k, params.vocab)), true, false);
        }
        if (sampling.top_p < 1.0) {
            lowest = threshold(row, lowest, sampling.top_p * mass_from(row, lowest), false, false);
        }
        let wanted = f32(random.y >> 8u) / 16777216.0 * mass_from(row, lowest);
        let key = threshold(row, lowest, wanted, false, true);
        let tie = floor((wanted - mass_from(row, key + 1u)) / weight_of(row, logit_of(key)));
        chosen = tied(row, key, max(tie, 0.0));
    }
    if (first_of(lane) == 0u) {
        drawn[state.z % DRAWS * params.sequences + sequence] = chosen;
        token[sequence] = chosen;
        position[sequence] += 1u;
        seen[words + chosen / 32u] |= 1u << (chosen % 32u);
        sequences[sequence].z = state.z + 1u;
    }
}

// An integer with the order of the logits, from a logit as loaded. A NaN has the lowest one, 0.
fn key_of(logit: f32) -> u32 {
    return select(order_of(logit), 0u, is_beyond(bitcast<u32>(logit), INFINITY));
}

fn logit_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

fn weight_of(row: Row, logit: f32) -> f32 {
    return select(exp((logit - row.top) * row.rate), 1.0, logit == row.top); // the largest may be infinite
}

// The sum of the weights of the tokens whose keys are at least `key`.
fn mass_from(row: Row, key: u32) -> f32 {
    var sum = 0.0;
    for (var i = first_of(row.lane); i < params.vocab; i += STEP) {
        let logit = logits[row.start + i];
        if (key_of(logit) >= key) {
            sum += weight_of(row, logit);
        }
    }
    return row_sum(sum, row.lane);
}

// The largest key for which the tokens with at least that key reach `wanted`, or exceed it, in number or in mass; at
// least `lowest`. Each pass finds two bits.
fn threshold(row: Row, lowest: u32, wanted: f32, counts: bool, exceeds: bool) -> u32 {
    var key = 0u;
    for (var pairs = 16u; pairs > 0u; pairs--) {
        let keys = vec4<u32>(key) | (vec4<u32>(1u, 2u, 3u, 0u) << vec4<u32>(2u * pairs - 2u));
        let tried = max(keys, vec4<u32>(lowest));
        var reached = vec4<f32>(0.0);
        for (var i = first_of(row.lane); i < params.vocab; i += STEP) {
            let logit = logits[row.start + i];
            let value = select(weight_of(row, logit), 1.0, counts);
            reached += select(vec4<f32>(0.0), vec4<f32>(value), vec4<u32>(key_of(logit)) >= tried);
        }
        reached = row_sum4(reached, row.lane);
        let does = (reached > vec4<f32>(wanted)) | (vec4<bool>(!exceeds) & (reached == vec4<f32>(wanted)));
        key = select(select(select(key, keys.x, does.x), keys.y, does.y), keys.z, does.z);
    }
    return max(key, lowest);
}

// The token number `tie` of those with `key`, or the last of them: the largest token with no more than `tie` of them
// before it.
fn tied(row: Row, key: u32, tie: f32) -> u32 {
    var chosen = 0u;
    for (var pairs = params.pairs; pairs > 0u; pairs--) {
        let next = vec4<u32>(chosen) | (vec4<u32>(1u, 2u, 3u, 0u) << vec4<u32>(2u * pairs - 2u));
        let tried = vec4<u32>(next.xyz, params.vocab); // all of them are before the last
        var before = vec4<f32>(0.0);
        for (var i = first_of(row.lane); i < params.vocab; i += STEP) {
            let counts = (vec4<u32>(i) < tried) & vec4<bool>(key_of(logits[row.start + i]) == key);
            before += select(vec4<f32>(0.0), vec4<f32>(1.0), counts);
        }
        before = row_sum4(before, row.lane);
        let does = (before <= vec4<f32>(tie)) & (before < before.wwww);
        chosen = select(select(select(chosen, tried.x, does.x), tried.y, does.y), tried.z, does.z);
    }
    return chosen;
}

// The first token with `key`; 0 if there is none, as when all logits are NaN.
fn first_with(row: Row, key: u32) -> u32 {
    var nearest = LOWEST;
    for (var i = first_of(row.lane); i < params.vocab; i += STEP) {
        if (key_of(logits[row.start + i]) == key) {
            nearest = max(nearest, -f32(i));
        }
    }
    nearest = row_max(nearest, row.lane);
    return select(u32(max(-nearest, 0.0)), 0u, nearest == LOWEST);
}
