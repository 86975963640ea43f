// Attention forward, matrix tier (formula, tensors and masks as in attention/software/forward.wgsl; qkv and out are
// f16 or bf16):
//
//   out = softmax(mask(scale · q kᵀ)) v   and   lse = log Σ exp(mask(scale · q kᵀ)),   per head
//
// A workgroup owns BLOCK queries of one head and walks the keys, TILE at a time (attention/matrix/tiles.wgsl).
// A weight is exp2(score − `reference`), with a reference for each query. When the reference is set, it is USUAL below
// the largest score. It is set again only if a score exceeds it by more than MOST; then the sums have to be rescaled,
// which no lane can do in its registers, so they go through workgroup memory.
// Numerics: scores and sums are f32 (products exact). Weights are rounded to f16 and fill its range: 2^-14 is 2^-21 of
// the largest. Scores are scaled by log2 e so that exp2 can be used; lse is a natural logarithm. Masked scores are
// finite, and lower than the first reference. attention/matrix/scales.wgsl has the scales of bf16.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Ainslie et al., "GQA", 2023.

import package::attention::heads::results_of;
import package::attention::matrix::masks::{first_key, first_of, is_seen, keys_end};
import package::attention::matrix::operands::{column, left, owned, right, stage_columns, stage_owned, stage_rows};
import package::attention::matrix::operands::store_weights;
import package::attention::matrix::scales::forward_scales;
import package::attention::matrix::tiles::{BLOCK, D_GROUPS, D_STEPS, D_STRIDE, PARTS, Place, SHARE, SHARE4};
import package::attention::matrix::tiles::{Fetched, TILE, V_GROUPS, V_STEPS, WEIGHT_STRIDE, clear_scores, fetch};
import package::attention::matrix::tiles::{halves, is_owned, keys_in, place_of, put, put_both, queries_in, score4};
import package::attention::matrix::tiles::{scores, scores_at};
import package::attention::matrix::tiles::{strips_at_once, taken, values_in};
import package::attention::params::mask_index;
@if(dropout) import package::attention::params::mask_words;
import package::attention::params::params;
@if(sinks) import package::attention::sinks::sink_of;
import package::lib::attention::{LN_2, LOWEST, MASKED};
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::element::{Packed, store4};
import package::lib::matrix::{OF_FOUR, OF_SIDE, Right, SIDE, VECTOR};
@if(capped) import package::lib::soft_cap::soft_capped4;
import package::tile::{D4, LANES, OPERANDS, V4};

enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(2) var<storage, read_write> out: array<Packed>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;
@if(logits) @group(0) @binding(9) var<storage, read_write> logits: array<f32>; // laid out as lse

const USUAL: f32 = 7.0;
const MOST: f32 = 15.0; // 2^15 is half of the largest f16

// The weights are stored in the place of the keys, and the queries in the place of both keys and values.
const KEYS: u32 = 0u;
const VALUES: u32 = max(TILE * D_STRIDE, BLOCK * WEIGHT_STRIDE);

const_assert OPERANDS == VECTOR * max(VALUES + 4u * V_GROUPS * WEIGHT_STRIDE, BLOCK * D_STRIDE);

var<workgroup> partials: array<f32, LANES>;
// First: whether a reference was set again, so that the sums are to be multiplied. Atomic, since several lanes may say
// so at once; four, for the reason given for `subgroups_there`.
var<workgroup> is_raised: array<atomic<u32>, 4>;

var<private> reference: f32; // of the lane's query
var<private> highest: f32; // its largest score
var<private> total: f32; // Σ p over this lane's keys
var<private> decay: f32; // rescales the sums to a new reference

@compute @workgroup_size(LANES)
fn attention(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    let head = workgroup.x;
    let kv_head = head / params.group;
    let sequence = workgroup.y * params.tokens;
    // Last blocks first: they see the most keys, and starting with the longest work balances the tail.
    let owned_from = ((params.tokens - 1u) / BLOCK - workgroup.z) * BLOCK;
    let keys = keys_in(sequence, kv_head);
    let values = values_in(sequence, kv_head);
    let place = place_of(lane);
    let scales = forward_scales();

    let together = strips_at_once(lane, subgroups);
    let strip = min(subgroup, together - 1u) * SIDE; // its first row
    for (var skipped = 0u; skipped < BLOCK; skipped += together * SIDE) {
        let block = owned_from + skipped;
        let token = block + place.row;
        let first_of_row = first_of(sequence, token);
        let start = first_key(sequence, block);
        let end = keys_end(block);
        clear_scores(lane);
        stage_owned(lane, queries_in(sequence, head), block, scales.qkv, D_STRIDE, D_GROUPS);
        workgroupBarrier();
        let zeros = taken(strip, 0u);
        let q0 = owned(strip, 0u, D_STEPS, D_STRIDE);
        let q1 = owned(strip, 1u, D_STEPS, D_STRIDE);
        let q2 = owned(strip, 2u, D_STEPS, D_STRIDE);
        let q3 = owned(strip, 3u, D_STEPS, D_STRIDE);
        let q4 = owned(strip, 4u, D_STEPS, D_STRIDE);
        let q5 = owned(strip, 5u, D_STEPS, D_STRIDE);
        let q6 = owned(strip, 6u, D_STEPS, D_STRIDE);
        let q7 = owned(strip, 7u, D_STEPS, D_STRIDE);
        var sum0 = zeros;
        var sum1 = zeros;
        var sum2 = zeros;
        var sum3 = zeros;
        var sum4 = zeros;
        var sum5 = zeros;
        var sum6 = zeros;
        var sum7 = zeros;
        workgroupBarrier();
        reference = LOWEST;
        highest = MASKED;
        total = 0.0;
        @if(sinks) {
            highest = sink_of(head);
            reference = highest - USUAL;
            total = select(0.0, exp2(USUAL), place.part == 0u);
        }
        var some_keys: Fetched;
        var some_values: Fetched;
        // Always true; without the condition compilers load these before the loop over turns, and hold them through it.
        if (start < end) {
            some_keys = fetch(lane, keys, start);
            some_values = fetch(lane, values, start);
        }
        for (var tile = start; tile < end; tile += TILE) {
            stage_rows(lane, halves(some_keys, scales.qkv), KEYS, D_STRIDE, D4, D_GROUPS);
            stage_columns(lane, halves(some_values, scales.qkv), VALUES, V_GROUPS);
            workgroupBarrier();
            // With wide heads there are not enough registers for the operands of both matrices at once. Compilers load
            // both if they know how many matrices there are.
            let matrices = select(TILE / SIDE, (min(end - tile, TILE) + SIDE - 1u) / SIDE, D_STEPS > 4u);
            for (var j = 0u; j < matrices; j++) {
                var score = coopMultiplyAdd(q0, key(0u, j), zeros);
                if (D_STEPS > 1u) { score = coopMultiplyAdd(q1, key(1u, j), score); }
                if (D_STEPS > 2u) { score = coopMultiplyAdd(q2, key(2u, j), score); }
                if (D_STEPS > 3u) { score = coopMultiplyAdd(q3, key(3u, j), score); }
                if (D_STEPS > 4u) { score = coopMultiplyAdd(q4, key(4u, j), score); }
                if (D_STEPS > 5u) { score = coopMultiplyAdd(q5, key(5u, j), score); }
                if (D_STEPS > 6u) { score = coopMultiplyAdd(q6, key(6u, j), score); }
                if (D_STEPS > 7u) { score = coopMultiplyAdd(q7, key(7u, j), score); }
                put(score, strip, j);
            }
            workgroupBarrier();
            weigh(lane, place, mask_index(sequence + token, head), head, token, tile, first_of_row, scales.score);
            if (workgroupUniformLoad(&is_raised[0]) != 0u) {
                put_both(sum0, sum1, strip);
                decay_put(place);
                sum0 = taken(strip, 0u);
                sum1 = taken(strip, 1u);
                if (V_STEPS > 2u) {
                    workgroupBarrier();
                    put_both(sum2, sum3, strip);
                    decay_put(place);
                    sum2 = taken(strip, 0u);
                    sum3 = taken(strip, 1u);
                }
                if (V_STEPS > 4u) {
                    workgroupBarrier();
                    put_both(sum4, sum5, strip);
                    decay_put(place);
                    sum4 = taken(strip, 0u);
                    sum5 = taken(strip, 1u);
                }
                if (V_STEPS > 6u) {
                    workgroupBarrier();
                    put_both(sum6, sum7, strip);
                    decay_put(place);
                    sum6 = taken(strip, 0u);
                    sum7 = taken(strip, 1u);
                }
            }
            // The next tile is loaded while this one is multiplied.
            some_keys = fetch(lane, keys, tile + TILE);
            some_values = fetch(lane, values, tile + TILE);
            for (var step = 0u; step < TILE / VECTOR; step += OF_SIDE) {
                let weights = left(KEYS + strip * WEIGHT_STRIDE + step, WEIGHT_STRIDE);
                sum0 = coopMultiplyAdd(weights, column(VALUES, 0u, step), sum0);
                if (V_STEPS > 1u) { sum1 = coopMultiplyAdd(weights, column(VALUES, 1u, step), sum1); }
                if (V_STEPS > 2u) { sum2 = coopMultiplyAdd(weights, column(VALUES, 2u, step), sum2); }
                if (V_STEPS > 3u) { sum3 = coopMultiplyAdd(weights, column(VALUES, 3u, step), sum3); }
                if (V_STEPS > 4u) { sum4 = coopMultiplyAdd(weights, column(VALUES, 4u, step), sum4); }
                if (V_STEPS > 5u) { sum5 = coopMultiplyAdd(weights, column(VALUES, 5u, step), sum5); }
                if (V_STEPS > 6u) { sum6 = coopMultiplyAdd(weights, column(VALUES, 6u, step), sum6); }
                if (V_STEPS > 7u) { sum7 = coopMultiplyAdd(weights, column(VALUES, 7u, step), sum7); }
            }
            workgroupBarrier();
        }

        let is_there = is_owned(place, token, skipped, together);
        add_totals(lane, place);
        put_both(sum0, sum1, strip);
        write_columns(place, sequence + token, head, 0u, is_there, scales.out);
        if (V_STEPS > 2u) {
            put_both(sum2, sum3, strip);
            write_columns(place, sequence + token, head, 1u, is_there, scales.out);
        }
        if (V_STEPS > 4u) {
            put_both(sum4, sum5, strip);
            write_columns(place, sequence + token, head, 2u, is_there, scales.out);
        }
        if (V_STEPS > 6u) {
            put_both(sum6, sum7, strip);
            write_columns(place, sequence + token, head, 3u, is_there, scales.out);
        }
        if (is_there) {
            write_statistics(place, sequence + token, head);
        }
    }
}

// Matrix j of the keys of the tile, at step `step`.
fn key(step: u32, j: u32) -> Right {
    return right(KEYS + j * SIDE * D_STRIDE + step * OF_SIDE, D_STRIDE);
}

// One step of the online softmax: turns the scores of a lane into weights. `index` numbers its query and head, for
// dropout.
fn weigh(lane: u32, place: Place, index: u32, head: u32, token: u32, tile: u32, first_of_row: u32, factor: f32) {
    @if(alibi) let slope = alibi_slope(params.first_head + head, params.all_heads);
    var p: array<vec4<f32>, SHARE4>;
    var top4 = vec4<f32>(MASKED);
    for (var i = 0u; i < SHARE4; i++) {
        let key = tile + place.part * SHARE + 4u * i;
        var score = factor * score4(place, i);
        @if(capped) { score = soft_capped4(score, params.cap, params.inverse_cap); }
        @if(alibi) { score += slope * (f32(i32(key) - i32(token)) + vec4<f32>(0.0, 1.0, 2.0, 3.0)); }
        p[i] = select(vec4<f32>(MASKED), score, is_seen(token, first_of_row, key));
        top4 = max(top4, p[i]);
    }
    partials[lane] = max(max(top4.x, top4.y), max(top4.z, top4.w));
    if (lane == 0u) {
        atomicStore(&is_raised[0], 0u);
    }
    workgroupBarrier();
    var top = partials[place.row * PARTS];
    for (var i = 1u; i < PARTS; i++) {
        top = max(top, partials[place.row * PARTS + i]);
    }
    highest = max(highest, top);
    decay = 1.0;
    if (top > reference + MOST) {
        // The sums of a query that has seen nothing yet are zeros.
        if (reference > LOWEST) {
            decay = exp2(reference - (top - USUAL));
            total *= decay;
            atomicStore(&is_raised[0], 1u);
        }
        reference = top - USUAL;
    }
    var total4: vec4<f32>;
    for (var i = 0u; i < SHARE4; i++) {
        var weight = exp2(p[i] - reference);
        total4 += weight;
        @if(dropout) {
            let is_kept = mask_words(index, (tile + place.part * SHARE) / 4u + i) >= vec4<u32>(params.threshold);
            weight = select(vec4<f32>(), weight, is_kept);
        }
        store_weights(place, KEYS, i, weight);
    }
    total += total4.x + total4.y + total4.z + total4.w;
}

// Multiplies the values that were put in the place of the lane's scores by `decay`.
fn decay_put(place: Place) {
    workgroupBarrier();
    for (var i = 0u; i < SHARE4 * OF_FOUR; i++) {
        scores[scores_at(place) + i] *= decay;
    }
    workgroupBarrier();
}

// Adds up the totals of a row, in a fixed order.
fn add_totals(lane: u32, place: Place) {
    partials[lane] = total;
    workgroupBarrier();
    total = partials[place.row * PARTS];
    for (var i = 1u; i < PARTS; i++) {
        total += partials[place.row * PARTS + i];
    }
}

// Writes the values that were put in the place of the lane's scores to the lane's row of `out`, to the columns from
// pair · TILE on.
fn write_columns(place: Place, row: u32, head: u32, pair: u32, is_there: bool, factor: f32) {
    workgroupBarrier();
    for (var i = 0u; i < SHARE4; i++) {
        let column = (pair * TILE + place.part * SHARE) / 4u + i;
        var sum = score4(place, i);
        @if(dropout) { sum *= params.factor; }
        if (is_there && column < V4) {
            out[results_of(row, head) + column] = store4(factor * (sum / total));
        }
    }
    workgroupBarrier();
}

// Writes the statistics of a row; the last head also clears the padding of the rows of lse and logits.
fn write_statistics(place: Place, row: u32, head: u32) {
    let heads = select(1u, params.lse_stride - head, head == params.heads - 1u);
    let at = params.lse_offset + row * params.lse_stride + head;
    for (var i = place.part; i < heads; i += PARTS) {
        lse[at + i] = select(0.0, (reference + log2(total)) * LN_2, i == 0u);
        @if(logits) { logits[at + i] = select(0.0, highest * LN_2, i == 0u); }
    }
}
