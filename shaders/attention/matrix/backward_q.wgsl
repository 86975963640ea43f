// Attention backward, queries, matrix tier (formulas, tensors and masks as in attention/software/backward_q.wgsl; tensors are f16):
//
//   p = exp(scale · q·k − lse),   delta = dout · out,   dp = dout · v,   ds = p (dp − delta),   dq = scale Σ ds k
//
// A workgroup owns BLOCK queries of one head and walks the keys, TILE at a time (attention/matrix/tiles.wgsl). Both scores, q·k and
// dout·v, pass through the same workgroup memory, one after the other. Keys are staged twice: as rows for the scores, and then as
// columns for the sums. delta is stored for backward_kv; it is summed as dp is, so that nothing is left where a query sees one key.
// Numerics: as in attention/matrix/forward.wgsl. p is recomputed from lse without a running maximum; ds is rounded to f16, after a
// factor GAIN that keeps small ones from its subnormals.
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.

import package::attention::matrix::backward::{GAIN, LOG2_GAIN, along_d, along_v, fetch_gradients};
import package::attention::matrix::masks::{first_key, first_of, is_seen, keys_end};
import package::attention::matrix::operands::{column, left, owned, stage_columns, stage_rows, store_weights};
import package::attention::matrix::tiles::{BLOCK, Blocks, D_GROUPS, D_STEPS, D_STRIDE, PARTS, Place, SCORE_STRIDE};
import package::attention::matrix::tiles::{SHARE, SHARE4, TILE, TURNS, V_GROUPS, V_STEPS, V_STRIDE, WEIGHT_STRIDE};
import package::attention::matrix::tiles::{clear_scores, fetch, group_of, is_owned, place_of, put, row_of, score4};
import package::attention::matrix::tiles::{scores, strips_at_once, taken};
import package::attention::params::mask_index;
@if(dropout) import package::attention::params::mask_words;
import package::attention::params::params;
import package::lib::attention::LOG2_E;
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::element::{Packed, store4};
import package::lib::matrix::SIDE;
import package::tile::{D4, LANES, OPERANDS, V4};

enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(2) var<storage, read> out: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read_write> delta: array<f32>;
@group(0) @binding(6) var<storage, read_write> dqkv: array<Packed>;

// Weights take the place of the keys' rows.
const KEYS: u32 = 0u;
const VALUES: u32 = max(TILE * D_STRIDE, BLOCK * WEIGHT_STRIDE);
const COLUMNS_OF_KEYS: u32 = VALUES + TILE * V_STRIDE;

const_assert OPERANDS == max(COLUMNS_OF_KEYS + 4u * D_GROUPS * WEIGHT_STRIDE, BLOCK * max(D_STRIDE, V_STRIDE));

var<private> p: array<vec4<f32>, SHARE4>; // GAIN times the lane's weights
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
    let queries = params.qkv_offset + sequence * params.qkv_stride + head * D4;
    let gradients = params.dout_offset + sequence * params.dout_stride + head * V4;
    let results = params.out_offset + sequence * params.out_stride + head * V4;
    let keys = params.qkv_offset + sequence * params.qkv_stride + params.k_start + kv_head * D4;
    let values = params.qkv_offset + sequence * params.qkv_stride + params.v_start + kv_head * V4;
    let place = place_of(lane);

    let together = strips_at_once(lane, subgroups);
    let strip = min(subgroup, together - 1u) * SIDE; // its first row
    for (var skipped = 0u; skipped < BLOCK; skipped += together * SIDE) {
        let block = owned_from + skipped;
        let token = block + place.row;
        let first_of_row = first_of(sequence, token);
        let start = first_key(sequence, block);
        let end = keys_end(block);
        let row = sequence + min(token, params.tokens - 1u);
        lse_of = LOG2_E * lse[params.lse_offset + row * params.lse_stride + head];
        clear_scores(lane);
        for (var half = 0u; half < BLOCK; half += TILE) {
            stage_rows(lane, fetch(lane, queries, block + half, D4), half * D_STRIDE, D_STRIDE, D4, D_GROUPS);
        }
        workgroupBarrier();
        let zeros = taken(strip, 0u);
        let q0 = owned(strip, 0u, D_STEPS, D_STRIDE);
        let q1 = owned(strip, 1u, D_STEPS, D_STRIDE);
        let q2 = owned(strip, 2u, D_STEPS, D_STRIDE);
        let q3 = owned(strip, 3u, D_STEPS, D_STRIDE);
        workgroupBarrier();
        for (var half = 0u; half < BLOCK; half += TILE) {
            stage_rows(lane, fetch_gradients(lane, gradients, block + half), half * V_STRIDE, V_STRIDE, V4, V_GROUPS);
        }
        workgroupBarrier();
        let g0 = owned(strip, 0u, V_STEPS, V_STRIDE);
        let g1 = owned(strip, 1u, V_STEPS, V_STRIDE);
        let g2 = owned(strip, 2u, V_STEPS, V_STRIDE);
        let g3 = owned(strip, 3u, V_STEPS, V_STRIDE);
        workgroupBarrier();
        for (var half = 0u; half < BLOCK; half += TILE) {
            stage_rows(lane, fetch_results(lane, results, block + half), half * V_STRIDE, V_STRIDE, V4, V_GROUPS);
        }
        workgroupBarrier();
        // Of the products of all dout of a strip with all its out, delta is the diagonal.
        put(along_v(g0, g1, g2, g3, strip * V_STRIDE, zeros), strip, 0u);
        workgroupBarrier();
        delta_of = scores[place.row * SCORE_STRIDE + place.row % SIDE];
        var sum0 = zeros;
        var sum1 = zeros;
        var sum2 = zeros;
        var sum3 = zeros;
        var some_keys: Blocks;
        var some_values: Blocks;
        // Always; without the condition compilers load them before the loop over turns, and hold them that long.
        if (start < end) {
            some_keys = fetch(lane, keys, start, D4);
            some_values = fetch(lane, values, start, V4);
        }
        for (var tile = start; tile < end; tile += TILE) {
            stage_rows(lane, some_keys, KEYS, D_STRIDE, D4, D_GROUPS);
            stage_columns(lane, some_keys, COLUMNS_OF_KEYS, D_GROUPS);
            stage_rows(lane, some_values, VALUES, V_STRIDE, V4, V_GROUPS);
            workgroupBarrier();
            for (var j = 0u; j < TILE / SIDE; j++) {
                put(along_d(q0, q1, q2, q3, KEYS + j * SIDE * D_STRIDE, zeros), strip, j);
            }
            workgroupBarrier();
            weigh(place, head, token, tile, first_of_row);
            workgroupBarrier();
            for (var j = 0u; j < TILE / SIDE; j++) {
                put(along_v(g0, g1, g2, g3, VALUES + j * SIDE * V_STRIDE, zeros), strip, j);
            }
            workgroupBarrier();
            differentiate(place, mask_index(sequence + token, head), tile);
            // The next tile is on its way while this one is multiplied.
            some_keys = fetch(lane, keys, tile + TILE, D4);
            some_values = fetch(lane, values, tile + TILE, V4);
            workgroupBarrier();
            for (var step = 0u; step < TILE; step += SIDE) {
                let weights = left(KEYS + strip * WEIGHT_STRIDE + step, WEIGHT_STRIDE);
                sum0 = coopMultiplyAdd(weights, column(COLUMNS_OF_KEYS, 0u, step), sum0);
                if (D_STEPS > 1u) { sum1 = coopMultiplyAdd(weights, column(COLUMNS_OF_KEYS, 1u, step), sum1); }
                if (D_STEPS > 2u) { sum2 = coopMultiplyAdd(weights, column(COLUMNS_OF_KEYS, 2u, step), sum2); }
                if (D_STEPS > 3u) { sum3 = coopMultiplyAdd(weights, column(COLUMNS_OF_KEYS, 3u, step), sum3); }
            }
            workgroupBarrier();
        }

        let is_there = is_owned(place, token, skipped, together);
        put(sum0, strip, 0u);
        put(sum1, strip, 1u);
        write_columns(place, sequence + token, head, 0u, is_there);
        if (D_STEPS > 2u) {
            put(sum2, strip, 0u);
            put(sum3, strip, 1u);
            write_columns(place, sequence + token, head, 1u, is_there);
        }
        if (is_there) {
            write_delta(place, sequence + token, head);
        }
    }
}

// What a lane stages of the rows of out of a tile, as attention/matrix/tiles.wgsl does of those of qkv.
fn fetch_results(lane: u32, rows: u32, tile: u32) -> Blocks {
    var blocks: Blocks;
    for (var i = 0u; i < 4u * TURNS; i++) {
        let e = lane + LANES * (i / 4u);
        let row = min(tile + row_of(e) + i % 4u, params.tokens - 1u);
        blocks[i] = out[rows + row * params.out_stride + min(group_of(e), V4 - 1u)];
    }
    return blocks;
}

// Turns the scores q · k of a lane into the weights p, zero where masked.
fn weigh(place: Place, head: u32, token: u32, tile: u32, first_of_row: u32) {
    @if(alibi) let slope = alibi_slope(params.first_head + head, params.all_heads);
    for (var i = 0u; i < SHARE4; i++) {
        let key = tile + place.part * SHARE + 4u * i;
        var score = (params.scale * LOG2_E) * score4(place, i) + (LOG2_GAIN - lse_of);
        @if(alibi) { score += slope * (f32(i32(key) - i32(token)) + vec4<f32>(0.0, 1.0, 2.0, 3.0)); }
        p[i] = select(vec4<f32>(), exp2(score), is_seen(token, first_of_row, key));
    }
}

// Turns p and the scores dout · v into the weights ds; `index` numbers the query and its head, for dropout.
fn differentiate(place: Place, index: u32, tile: u32) {
    for (var i = 0u; i < SHARE4; i++) {
        var dp = score4(place, i);
        @if(dropout) {
            let is_kept = mask_words(index, (tile + place.part * SHARE) / 4u + i) >= vec4<u32>(params.threshold);
            dp = select(vec4<f32>(), params.factor * dp, is_kept);
        }
        store_weights(place, KEYS, i, p[i] * (dp - delta_of));
    }
}

// Writes what was put in the places of the lane's scores to its row of `dqkv`: columns pair · TILE on.
fn write_columns(place: Place, row: u32, head: u32, pair: u32, is_there: bool) {
    workgroupBarrier();
    for (var i = 0u; i < SHARE4; i++) {
        let column = (pair * TILE + place.part * SHARE) / 4u + i;
        if (is_there && column < D4) {
            let at = params.dqkv_offset + row * params.dqkv_stride + head * D4 + column;
            dqkv[at] = store4((params.scale / GAIN) * score4(place, i));
        }
    }
    workgroupBarrier();
}

// The last head also clears the padding of the row of delta.
fn write_delta(place: Place, row: u32, head: u32) {
    let heads = select(1u, params.delta_stride - head, head == params.heads - 1u);
    for (var i = place.part; i < heads; i += PARTS) {
        delta[row * params.delta_stride + head + i] = select(0.0, delta_of, i == 0u);
    }
}
