// Attention backward, queries, matrix tier (formulas, tensors and masks as in attention/software/backward_q.wgsl;
// tensors are f16 or bf16):
//
//   p = exp(scale · q·k − lse),   delta = dout · out,   dp = dout · v,   ds = p (dp − delta),   dq = scale Σ ds k
//
// A workgroup owns BLOCK queries of one head and walks the keys, TILE at a time (attention/matrix/tiles.wgsl). Both
// scores, q·k and dout·v, pass through the same workgroup memory, one after the other. Keys are staged twice: as rows
// for the scores, and then as columns for the sums. delta is stored for backward_kv; it is summed in the same way as
// dp, so that nothing is left of their difference where a query sees one key.
// Numerics: as in attention/matrix/forward.wgsl. p is recomputed from lse without a running maximum. ds is rounded to
// f16 after it was multiplied by GAIN, which keeps small values above the subnormals. attention/matrix/scales.wgsl has
// the scales of bf16; delta is in units of these.
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.

import package::attention::heads::results_of;
import package::attention::matrix::backward::{Columns, along_d, along_v, fetch_gradients, own_of, put_own, write_pair};
import package::attention::matrix::masks::{first_key, first_of, is_seen, keys_end};
import package::attention::matrix::operands::{column, left, owned, stage_columns, stage_owned, stage_rows};
import package::attention::matrix::operands::store_weights;
import package::attention::matrix::scales::{LOG2_GAIN, Stored, backward_scales};
import package::attention::matrix::tiles::{BLOCK, D_GROUPS, D_OWN, D_STEPS, D_STRIDE, Fetched, PARTS, Place, Rows};
import package::attention::matrix::tiles::{SHARE, SHARE4, TILE, TURNS, V_GROUPS, V_OWN, V_STEPS};
import package::attention::matrix::tiles::{V_STRIDE, WEIGHT_STRIDE, clear_scores, fetch, halves, is_owned, keys_in};
import package::attention::matrix::tiles::{one_score, place_of, queries_in, source_of, strips_at_once};
import package::attention::matrix::tiles::{taken, values_in, whole4};
import package::attention::params::mask_index;
@if(dropout) import package::attention::params::mask_words;
import package::attention::params::params;
import package::lib::attention::LOG2_E;
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::matrix::{OF_SIDE, SIDE, VECTOR};
@if(capped) import package::lib::soft_cap::{soft_cap_slope4, soft_capped4};
import package::tile::{D4, LANES, OPERANDS, V4};

enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(2) var<storage, read> out: array<Stored>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read_write> delta: array<f32>;

// The weights are stored in the place of the keys' rows.
const KEYS: u32 = 0u;
const VALUES: u32 = max(TILE * D_STRIDE, BLOCK * WEIGHT_STRIDE);
const COLUMNS_OF_KEYS: u32 = VALUES + TILE * V_STRIDE;

const END: u32 = COLUMNS_OF_KEYS + 4u * D_GROUPS * WEIGHT_STRIDE;

const_assert OPERANDS == VECTOR * max(END, BLOCK * max(D_STRIDE, V_STRIDE));

var<private> p: array<vec4<f32>, SHARE4>; // GAIN times the lane's weights, and the derivative of a cap
var<private> lse_of: f32; // of the lane's query, times log2 e
var<private> delta_of: f32;

@compute @workgroup_size(LANES)
fn attention_backward_q(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    let head = workgroup.x;
    let kv_head = head / params.group;
    let sequence = workgroup.y * params.tokens;
    // Last blocks first, as in the forward pass.
    let owned_from = ((params.tokens - 1u) / BLOCK - workgroup.z) * BLOCK;
    let keys = keys_in(sequence, kv_head);
    let values = values_in(sequence, kv_head);
    let place = place_of(lane);
    let scales = backward_scales();

    let together = strips_at_once(lane, subgroups);
    let own = own_of(subgroup, together);
    for (var skipped = 0u; skipped < BLOCK; skipped += together * SIDE) {
        let block = owned_from + skipped;
        let token = block + place.row;
        let first_of_row = first_of(sequence, token);
        let start = first_key(sequence, block);
        let end = keys_end(block);
        let row = sequence + min(token, params.tokens - 1u);
        lse_of = LOG2_E * lse[params.lse_offset + row * params.lse_stride + head];
        clear_scores(lane);
        stage_owned(lane, queries_in(sequence, head), block, scales.qkv, D_STRIDE, D_GROUPS);
        workgroupBarrier();
        let zeros = taken(own.strip, 0u);
        let q0 = owned(own.strip, own.half * D_OWN, D_STEPS, D_STRIDE);
        let q1 = owned(own.strip, own.half * D_OWN + 1u, D_STEPS, D_STRIDE);
        let q2 = owned(own.strip, own.half * D_OWN + 2u, D_STEPS, D_STRIDE);
        let q3 = owned(own.strip, own.half * D_OWN + 3u, D_STEPS, D_STRIDE);
        workgroupBarrier();
        for (var half = 0u; half < BLOCK; half += TILE) {
            let some = halves(fetch_gradients(lane, sequence, head, block + half), scales.dout);
            stage_rows(lane, some, half * V_STRIDE, V_STRIDE, V4, V_GROUPS);
        }
        workgroupBarrier();
        let g0 = owned(own.strip, own.half * V_OWN, V_STEPS, V_STRIDE);
        let g1 = owned(own.strip, own.half * V_OWN + 1u, V_STEPS, V_STRIDE);
        let g2 = owned(own.strip, own.half * V_OWN + 2u, V_STEPS, V_STRIDE);
        let g3 = owned(own.strip, own.half * V_OWN + 3u, V_STEPS, V_STRIDE);
        workgroupBarrier();
        for (var half = 0u; half < BLOCK; half += TILE) {
            let some = halves(fetch_results(lane, sequence, head, block + half), scales.out);
            stage_rows(lane, some, half * V_STRIDE, V_STRIDE, V4, V_GROUPS);
        }
        workgroupBarrier();
        // delta is the diagonal of the products of all dout of a strip with all its out.
        put_own(along_v(own, g0, g1, g2, g3, own.strip * V_STRIDE, zeros), own, 0u);
        workgroupBarrier();
        delta_of = scales.delta * diagonal(place);
        var sum0 = zeros;
        var sum1 = zeros;
        var sum2 = zeros;
        var sum3 = zeros;
        var some_keys: Fetched;
        var some_values: Fetched;
        // Always true; without the condition compilers load these before the loop over turns, and hold them through it.
        if (start < end) {
            some_keys = fetch(lane, keys, start);
            some_values = fetch(lane, values, start);
        }
        for (var tile = start; tile < end; tile += TILE) {
            let tile_of_keys = halves(some_keys, scales.qkv);
            stage_rows(lane, tile_of_keys, KEYS, D_STRIDE, D4, D_GROUPS);
            stage_columns(lane, tile_of_keys, COLUMNS_OF_KEYS, D_GROUPS);
            stage_rows(lane, halves(some_values, scales.qkv), VALUES, V_STRIDE, V4, V_GROUPS);
            workgroupBarrier();
            for (var j = 0u; j < TILE / SIDE; j++) {
                put_own(along_d(own, q0, q1, q2, q3, KEYS + j * SIDE * D_STRIDE, zeros), own, j);
            }
            workgroupBarrier();
            weigh(place, head, token, tile, first_of_row, LOG2_E * scales.score);
            workgroupBarrier();
            for (var j = 0u; j < TILE / SIDE; j++) {
                put_own(along_v(own, g0, g1, g2, g3, VALUES + j * SIDE * V_STRIDE, zeros), own, j);
            }
            workgroupBarrier();
            differentiate(place, mask_index(sequence + token, head), tile, scales.slope);
            // The next tile is loaded while this one is multiplied.
            some_keys = fetch(lane, keys, tile + TILE);
            some_values = fetch(lane, values, tile + TILE);
            workgroupBarrier();
            let own_columns = COLUMNS_OF_KEYS + own.half * D_OWN * SIDE * WEIGHT_STRIDE;
            for (var step = 0u; step < TILE / VECTOR; step += OF_SIDE) {
                let weights = left(KEYS + own.strip * WEIGHT_STRIDE + step, WEIGHT_STRIDE);
                sum0 = coopMultiplyAdd(weights, column(own_columns, 0u, step), sum0);
                if (D_OWN > 1u) { sum1 = coopMultiplyAdd(weights, column(own_columns, 1u, step), sum1); }
                if (D_OWN > 2u) { sum2 = coopMultiplyAdd(weights, column(own_columns, 2u, step), sum2); }
                if (D_OWN > 3u) { sum3 = coopMultiplyAdd(weights, column(own_columns, 3u, step), sum3); }
            }
            workgroupBarrier();
        }

        let is_there = is_owned(place, token, skipped, together);
        let dq_at = params.dqkv_offset + (sequence + token) * params.dqkv_stride + head * D4;
        let dq = Columns(dq_at, D4, scales.dqk, is_there);
        write_pair(own, sum0, sum1, 0u, D_OWN, place, dq);
        if (D_OWN > 2u) {
            write_pair(own, sum2, sum3, 1u, D_OWN, place, dq);
        }
        if (is_there) {
            write_delta(place, sequence + token, head);
        }
    }
}

// The blocks of a tile of out that a lane stages, as `fetch` of attention/matrix/tiles.wgsl loads those of qkv.
fn fetch_results(lane: u32, sequence: u32, head: u32, tile: u32) -> Fetched {
    let rows = Rows(results_of(sequence, head), params.out_stride, V4);
    var fetched: Fetched;
    for (var i = 0u; i < 4u * TURNS; i++) {
        fetched[i] = out[source_of(lane, rows, tile, i)];
    }
    return fetched;
}

// Of the products of a strip's rows with each other, that of the lane's row with itself.
fn diagonal(place: Place) -> f32 {
    let row = min(place.row, BLOCK - 1u);
    @if(!wide_heads) { return one_score(row, row % SIDE); }
    @if(wide_heads) { return one_score(row, row % SIDE) + one_score(row + BLOCK, row % SIDE); }
}

// Turns the scores q · k of a lane into the weights p, zero where masked.
fn weigh(place: Place, head: u32, token: u32, tile: u32, first_of_row: u32, factor: f32) {
    @if(wide_heads) { if (place.row >= BLOCK) { return; } }
    @if(alibi) let slope = alibi_slope(params.first_head + head, params.all_heads);
    for (var i = 0u; i < SHARE4; i++) {
        let key = tile + place.part * SHARE + 4u * i;
        @if(!capped) var score = factor * whole4(place, i) + (LOG2_GAIN - lse_of);
        @if(capped) let capped = soft_capped4(factor * whole4(place, i), params.cap, params.inverse_cap);
        @if(capped) var score = capped + (LOG2_GAIN - lse_of);
        @if(alibi) { score += slope * (f32(i32(key) - i32(token)) + vec4<f32>(0.0, 1.0, 2.0, 3.0)); }
        p[i] = select(vec4<f32>(), exp2(score), is_seen(token, first_of_row, key));
        @if(capped) { p[i] *= soft_cap_slope4(capped, params.inverse_cap); }
    }
}

// Turns p and the scores dout · v into the weights ds; `index` numbers the query and its head, for dropout.
fn differentiate(place: Place, index: u32, tile: u32, slope: f32) {
    @if(wide_heads) { if (place.row >= BLOCK) { return; } }
    for (var i = 0u; i < SHARE4; i++) {
        var dp = whole4(place, i);
        @if(dropout) {
            let is_kept = mask_words(index, (tile + place.part * SHARE) / 4u + i) >= vec4<u32>(params.threshold);
            dp = select(vec4<f32>(), params.factor * dp, is_kept);
        }
        store_weights(place, KEYS, i, slope * p[i] * (dp - delta_of));
    }
}

// The last head also clears the padding of the row of delta.
fn write_delta(place: Place, row: u32, head: u32) {
    let heads = select(1u, params.delta_stride - head, head == params.heads - 1u);
    for (var i = place.part; i < heads; i += PARTS) {
        delta[row * params.delta_stride + head + i] = select(0.0, delta_of, i == 0u);
    }
}
