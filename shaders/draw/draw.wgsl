// Draws a token of each sequence from its sorted chunks, and prepares the step that reads it (tensors in
// draw/chunks.wgsl, and):
//
//   sequences (B) vec4<u32>     seed, low and high word, and number of draws so far, which is increased by one
//   seen                        the bit of the drawn token is set
//   token, position (B) u32     the token is written, and the position is increased by one
//   drawn (DRAWS, B) u32        row `draws mod DRAWS` receives the tokens
//
// The drawn token is the one at a random quantile of the tokens ordered from most to least likely, ties by their
// number. The smallest set of most likely tokens with a given number or mass consists of the tokens whose keys reach a
// threshold. Each pass over the chunks finds two bits of the threshold, by bisection in each chunk. Tokens that tie
// with the last token of such a set belong to it. A NaN is never drawn; if all logits are NaN, the token is 0.
// Temperature 0 draws the most likely token.
//
// One workgroup per sequence (lib/reduce). Counts are f32, which is exact for vocabularies up to 2^24.
// Source: Holtzman et al., "The Curious Case of Neural Text Degeneration", 2019 (top_p).

import package::draw::chunks::{LOWEST, logit_of, params, sampling, seen, sorted, weight_of};
import package::lib::bits::order_of;
import package::lib::grid::linear_index;
import package::lib::philox::philox;
import package::lib::reduce::{STEP, first_of, row_barrier, row_max, row_sum4};
import package::tile::{CHUNK, DRAWS, LANES};

@group(0) @binding(4) var<storage, read_write> sequences: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> token: array<u32>;
@group(0) @binding(6) var<storage, read_write> position: array<u32>;
@group(0) @binding(7) var<storage, read_write> drawn: array<u32>;

const STREAM: vec2<u32> = vec2<u32>(0u, 256u); // DRAW_STREAM of src/gpu/random.rs, low and high word

// The sorted chunks of a sequence.
struct Row {
    start: u32,
    lane: u32,
    top: f32, // the largest logit
}

@compute @workgroup_size(LANES)
fn draw(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let local = linear_index(workgroup);
    if (local >= params.sequences) {
        return;
    }
    let sequence = params.first + local;
    let start = local * params.sorted_stride;
    var top = LOWEST;
    for (var c = first_of(lane); c < params.chunks; c += STEP) {
        top = max(top, top_of(start, c));
    }
    let row = Row(start, lane, row_max(top, lane));
    let state = sequences[sequence];
    var chosen = 0u;
    if (sampling.temperature == 0.0) {
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
        let tie = floor((wanted - mass_from(row, key + 1u)) / weight_of(logit_of(key), row.top));
        chosen = tied(row, key, max(tie, 0.0));
    }
    row_barrier(); // all invocations have read what the first one writes below
    if (first_of(lane) == 0u) {
        drawn[state.z % DRAWS * params.batch + sequence] = chosen;
        token[sequence] = chosen;
        position[sequence] += 1u;
        seen[sequence * params.seen_stride + chosen / 32u] |= 1u << (chosen % 32u);
        sequences[sequence].z = state.z + 1u;
    }
}

// The largest logit of a chunk.
fn top_of(start: u32, chunk: u32) -> f32 {
    return bitcast<f32>(sorted[start + 3u * CHUNK * params.chunks + chunk]);
}

// How many tokens of a chunk have keys of at least `key`, for three keys.
fn count_from(row: Row, chunk: u32, key: vec3<u32>) -> vec3<u32> {
    let at = row.start + CHUNK * chunk;
    var count = vec3<u32>(0u);
    for (var half = CHUNK / 2u; half > 0u; half /= 2u) {
        count += select(vec3<u32>(0u), vec3<u32>(half), words_at(vec3<u32>(at + half - 1u) + count) >= key);
    }
    return count + select(vec3<u32>(0u), vec3<u32>(1u), words_at(vec3<u32>(at) + count) >= key);
}

fn words_at(at: vec3<u32>) -> vec3<u32> {
    return vec3<u32>(sorted[at.x], sorted[at.y], sorted[at.z]);
}

// The number of tokens whose keys are at least `key`, or the sum of their weights.
fn reached(row: Row, key: vec3<u32>, counts: bool) -> vec3<f32> {
    var sum = vec3<f32>(0.0);
    for (var c = first_of(row.lane); c < params.chunks; c += STEP) {
        let count = count_from(row, c, key);
        if (counts) {
            sum += vec3<f32>(count);
        } else {
            let last = vec3<u32>(row.start + CHUNK * (params.chunks + c)) + max(count, vec3<u32>(1u)) - 1u;
            let masses = weight_of(top_of(row.start, c), row.top) * bitcast<vec3<f32>>(words_at(last));
            sum += select(vec3<f32>(0.0), masses, count > vec3<u32>(0u));
        }
    }
    return row_sum4(vec4<f32>(sum.x, sum.y, sum.z, 0.0), row.lane).xyz;
}

fn mass_from(row: Row, key: u32) -> f32 {
    return reached(row, vec3<u32>(key), false).x;
}

// The largest key for which the tokens with at least that key reach `wanted`, or exceed it, in number or in mass; at
// least `lowest`. Each pass finds two bits.
fn threshold(row: Row, lowest: u32, wanted: f32, counts: bool, exceeds: bool) -> u32 {
    var key = 0u;
    for (var pairs = 16u; pairs > 0u; pairs--) {
        let keys = vec3<u32>(key) | (vec3<u32>(1u, 2u, 3u) << vec3<u32>(2u * pairs - 2u));
        let found = reached(row, max(keys, vec3<u32>(lowest)), counts);
        let does = (found > vec3<f32>(wanted)) | (vec3<bool>(!exceeds) & (found == vec3<f32>(wanted)));
        key = select(select(select(key, keys.x, does.x), keys.y, does.y), keys.z, does.z);
    }
    return max(key, lowest);
}

// The token number `tie` of those with `key`, or the last of them. Its chunk is the largest with no more than `tie` of
// them before it. 0 if there is none, as when all logits are NaN.
fn tied(row: Row, key: u32, tie: f32) -> u32 {
    var chosen = 0u;
    var skipped = 0.0;
    for (var pairs = params.pairs; pairs > 0u; pairs--) {
        let next = vec4<u32>(chosen) | (vec4<u32>(1u, 2u, 3u, 0u) << vec4<u32>(2u * pairs - 2u));
        let tried = vec4<u32>(next.xyz, params.chunks); // all of them are before the last
        var before = vec4<f32>(0.0);
        for (var c = first_of(row.lane); c < params.chunks; c += STEP) {
            let count = count_from(row, c, vec3<u32>(key, key + 1u, key));
            before += select(vec4<f32>(0.0), vec4<f32>(f32(count.x - count.y)), vec4<u32>(c) < tried);
        }
        before = row_sum4(before, row.lane);
        let does = (before <= vec4<f32>(tie)) & (before < before.wwww);
        chosen = select(select(select(chosen, tried.x, does.x), tried.y, does.y), tried.z, does.z);
        skipped = select(select(select(skipped, before.x, does.x), before.y, does.y), before.z, does.z);
    }
    let count = count_from(row, chosen, vec3<u32>(key, key + 1u, key));
    if (count.x <= count.y) {
        return 0u;
    }
    let place = count.y + u32(min(tie - skipped, f32(count.x - count.y - 1u)));
    return sorted[row.start + CHUNK * (2u * params.chunks + chosen) + min(place, CHUNK - 1u)];
}

// The first token with `key`; 0 if there is none, as when all logits are NaN.
fn first_with(row: Row, key: u32) -> u32 {
    var nearest = LOWEST;
    for (var c = first_of(row.lane); c < params.chunks; c += STEP) {
        if (sorted[row.start + CHUNK * c] == key) {
            nearest = max(nearest, -f32(sorted[row.start + CHUNK * (2u * params.chunks + c)]));
        }
    }
    nearest = row_max(nearest, row.lane);
    return select(u32(max(-nearest, 0.0)), 0u, nearest == LOWEST);
}
