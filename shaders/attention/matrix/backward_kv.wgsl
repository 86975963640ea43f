// Attention backward, keys and values, matrix tier (formulas, tensors and masks as in
// attention/software/backward_kv.wgsl; tensors are f16 or bf16):
//
//   dv = Σ p dout,   dk = scale Σ ds q      over every query that sees the key, in every head of the key's group
//
// A workgroup owns BLOCK keys of one key head and walks the heads of the group and their queries, TILE at a time
// (attention/matrix/tiles.wgsl). Here a row of scores belongs to a key. Both scores, k·q and v·dout, pass through the
// same workgroup memory, one after the other. Queries and dout are staged twice: as rows for the scores, and as columns
// for the two sums.
// key_parts: a workgroup walks only some heads of the group, and writes its part of dk and dv.
// dropout: the lanes first draw which weights are kept, 4 keys of a query at a time.
// Numerics: as in attention/matrix/backward_q.wgsl; p is rounded to f16 likewise.
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.

@if(windowed || segmented) import package::attention::bounds::end_seen;
import package::attention::gradients_of_keys::{dk_of, dv_of};
import package::attention::matrix::backward::{Columns, along_d, along_v, fetch_gradients, own_of, put_own, write_pair};
import package::attention::matrix::operands::{column, left, owned, stage_columns, stage_owned, stage_rows};
import package::attention::matrix::operands::store_weights;
import package::attention::matrix::scales::{LOG2_GAIN, backward_scales};
import package::attention::matrix::tiles::{BLOCK, D_GROUPS, D_OWN, D_STEPS, D_STRIDE, Fetched, Place, SHARE, SHARE4};
import package::attention::matrix::tiles::{TILE, V_GROUPS, V_OWN, V_STEPS, V_STRIDE, WEIGHT_STRIDE, clear_scores, fetch};
import package::attention::matrix::tiles::{halves, is_owned, keys_in, place_of, queries_in, strips_at_once, taken};
import package::attention::matrix::tiles::{values_in, whole4};
@if(dropout) import package::attention::params::{mask_index, mask_words};
import package::attention::params::params;
import package::lib::attention::LOG2_E;
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::matrix::{OF_SIDE, SIDE, VECTOR};
@if(capped) import package::lib::soft_cap::{soft_cap_slope4, soft_capped4};
import package::tile::{D4, LANES, OPERANDS, V4};

enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;

// ds is stored in the place of the queries' rows, and p in the place of dout's rows.
const QUERIES: u32 = 0u;
const GRADIENTS: u32 = max(TILE * D_STRIDE, BLOCK * WEIGHT_STRIDE);
const COLUMNS_OF_QUERIES: u32 = GRADIENTS + max(TILE * V_STRIDE, BLOCK * WEIGHT_STRIDE);
const COLUMNS_OF_GRADIENTS: u32 = COLUMNS_OF_QUERIES + 4u * D_GROUPS * WEIGHT_STRIDE;

const END: u32 = COLUMNS_OF_GRADIENTS + 4u * V_GROUPS * WEIGHT_STRIDE;

const_assert OPERANDS == VECTOR * max(END, BLOCK * max(D_STRIDE, V_STRIDE));

// lse, times log2 e, and delta of each query of the tile.
struct Statistics {
    lse: f32,
    delta: f32,
}

var<workgroup> statistics: array<Statistics, TILE>;
@if(dropout) var<workgroup> kept: array<u32, TILE * BLOCK / 4u>; // bit r: whether the weight of key 4 i + r is kept

var<private> p: array<vec4<f32>, SHARE4>; // GAIN times the lane's weights
@if(capped) var<private> slopes_of_cap: array<vec4<f32>, SHARE4>;

@compute @workgroup_size(LANES)
fn attention_backward_kv(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
) {
    let first_head = workgroup.x * params.share; // the first of the heads that it walks
    let kv_head = first_head / params.group;
    let sequence = workgroup.y * params.tokens;
    let place = place_of(lane);
    let scales = backward_scales();
    let together = strips_at_once(lane, subgroups);
    let own = own_of(subgroup, together);
    for (var skipped = 0u; skipped < BLOCK; skipped += together * SIDE) {
        let block = workgroup.z * BLOCK + skipped;
        let key = block + place.row;
        @if(causal) let start = block; // earlier queries see no key of this block
        @if(!causal) let start = 0u;
        @if(windowed || segmented) let end = end_seen(sequence, min(block + BLOCK, params.tokens) - 1u);
        @if(!windowed && !segmented) let end = params.tokens;
        @if(windowed || segmented) let end_of_row = end_seen(sequence, min(key, params.tokens - 1u));
        @if(!windowed && !segmented) let end_of_row = params.tokens;
        // Number of tiles of one head; none in a turn of rows past the end
        let tiles = (max(end, start) - start + TILE - 1u) / TILE;
        clear_scores(lane);
        stage_owned(lane, keys_in(sequence, kv_head), block, scales.qkv, D_STRIDE, D_GROUPS);
        workgroupBarrier();
        let zeros = taken(own.strip, 0u);
        let k0 = owned(own.strip, own.half * D_OWN, D_STEPS, D_STRIDE);
        let k1 = owned(own.strip, own.half * D_OWN + 1u, D_STEPS, D_STRIDE);
        let k2 = owned(own.strip, own.half * D_OWN + 2u, D_STEPS, D_STRIDE);
        let k3 = owned(own.strip, own.half * D_OWN + 3u, D_STEPS, D_STRIDE);
        workgroupBarrier();
        stage_owned(lane, values_in(sequence, kv_head), block, scales.qkv, V_STRIDE, V_GROUPS);
        workgroupBarrier();
        let v0 = owned(own.strip, own.half * V_OWN, V_STEPS, V_STRIDE);
        let v1 = owned(own.strip, own.half * V_OWN + 1u, V_STEPS, V_STRIDE);
        let v2 = owned(own.strip, own.half * V_OWN + 2u, V_STEPS, V_STRIDE);
        let v3 = owned(own.strip, own.half * V_OWN + 3u, V_STEPS, V_STRIDE);
        var dk0 = zeros;
        var dk1 = zeros;
        var dk2 = zeros;
        var dk3 = zeros;
        var dv0 = zeros;
        var dv1 = zeros;
        var dv2 = zeros;
        var dv3 = zeros;
        workgroupBarrier();
        var head = first_head;
        var tile = start;
        var some_queries: Fetched;
        var some_gradients: Fetched;
        var statistics_of: Statistics;
        // True whenever there is a tile; without the condition compilers load these before the loop over turns, and
        // hold them through it.
        if (start < end) {
            some_queries = fetch(lane, queries_in(sequence, head), tile);
            some_gradients = fetch_gradients(lane, sequence, head, tile);
            statistics_of = load_statistics(lane, sequence, head, tile);
        }
        for (var n = 0u; n < tiles * params.share; n++) {
            let tile_of_queries = halves(some_queries, scales.qkv);
            stage_rows(lane, tile_of_queries, QUERIES, D_STRIDE, D4, D_GROUPS);
            stage_columns(lane, tile_of_queries, COLUMNS_OF_QUERIES, D_GROUPS);
            let tile_of_gradients = halves(some_gradients, scales.dout);
            stage_rows(lane, tile_of_gradients, GRADIENTS, V_STRIDE, V4, V_GROUPS);
            stage_columns(lane, tile_of_gradients, COLUMNS_OF_GRADIENTS, V_GROUPS);
            if (lane < TILE) {
                statistics[lane] = statistics_of;
            }
            @if(dropout) { draw(lane, mask_index(sequence + tile, head), block); }
            workgroupBarrier();
            for (var j = 0u; j < TILE / SIDE; j++) {
                put_own(along_d(own, k0, k1, k2, k3, QUERIES + j * SIDE * D_STRIDE, zeros), own, j);
            }
            workgroupBarrier();
            weigh(place, head, key, tile, end_of_row, LOG2_E * scales.score);
            workgroupBarrier();
            for (var j = 0u; j < TILE / SIDE; j++) {
                put_own(along_v(own, v0, v1, v2, v3, GRADIENTS + j * SIDE * V_STRIDE, zeros), own, j);
            }
            workgroupBarrier();
            differentiate(place, scales.slope);
            tile += TILE;
            if (tile >= end) {
                tile = start;
                head += 1u;
            }
            // The next tile is loaded while this one is multiplied; after the last tile, an existing one is loaded.
            let next_head = min(head, first_head + params.share - 1u);
            some_queries = fetch(lane, queries_in(sequence, next_head), tile);
            some_gradients = fetch_gradients(lane, sequence, next_head, tile);
            statistics_of = load_statistics(lane, sequence, next_head, tile);
            workgroupBarrier();
            let of_gradients = COLUMNS_OF_GRADIENTS + own.half * V_OWN * SIDE * WEIGHT_STRIDE;
            let of_queries = COLUMNS_OF_QUERIES + own.half * D_OWN * SIDE * WEIGHT_STRIDE;
            for (var step = 0u; step < TILE / VECTOR; step += OF_SIDE) {
                let weights = left(GRADIENTS + own.strip * WEIGHT_STRIDE + step, WEIGHT_STRIDE);
                dv0 = coopMultiplyAdd(weights, column(of_gradients, 0u, step), dv0);
                if (V_OWN > 1u) { dv1 = coopMultiplyAdd(weights, column(of_gradients, 1u, step), dv1); }
                if (V_OWN > 2u) { dv2 = coopMultiplyAdd(weights, column(of_gradients, 2u, step), dv2); }
                if (V_OWN > 3u) { dv3 = coopMultiplyAdd(weights, column(of_gradients, 3u, step), dv3); }
                let slopes = left(QUERIES + own.strip * WEIGHT_STRIDE + step, WEIGHT_STRIDE);
                dk0 = coopMultiplyAdd(slopes, column(of_queries, 0u, step), dk0);
                if (D_OWN > 1u) { dk1 = coopMultiplyAdd(slopes, column(of_queries, 1u, step), dk1); }
                if (D_OWN > 2u) { dk2 = coopMultiplyAdd(slopes, column(of_queries, 2u, step), dk2); }
                if (D_OWN > 3u) { dk3 = coopMultiplyAdd(slopes, column(of_queries, 3u, step), dk3); }
            }
            workgroupBarrier();
        }

        let is_there = is_owned(place, key, skipped, together);
        let dk = Columns(dk_of(sequence + key, first_head), D4, scales.dqk, is_there);
        let dv = Columns(dv_of(sequence + key, first_head), V4, scales.dv, is_there);
        write_pair(own, dk0, dk1, 0u, D_OWN, place, dk);
        if (D_OWN > 2u) {
            write_pair(own, dk2, dk3, 1u, D_OWN, place, dk);
        }
        write_pair(own, dv0, dv1, 0u, V_OWN, place, dv);
        if (V_OWN > 2u) {
            write_pair(own, dv2, dv3, 1u, V_OWN, place, dv);
        }
    }
}

fn load_statistics(lane: u32, sequence: u32, head: u32, tile: u32) -> Statistics {
    let row = sequence + min(tile + lane % TILE, params.tokens - 1u);
    let lse_of = LOG2_E * lse[params.lse_offset + row * params.lse_stride + head];
    return Statistics(lse_of, delta[row * params.delta_stride + head]);
}

// Draws which weights are kept, for all queries of the tile and keys of the block; `index` numbers the first query and
// the head.
@if(dropout)
fn draw(lane: u32, index: u32, block: u32) {
    for (var i = lane; i < TILE * BLOCK / 4u; i += LANES) {
        let four = (block + 4u * (i / TILE)) / 4u;
        let is_kept = mask_words(index + i % TILE * params.all_heads, four) >= vec4<u32>(params.threshold);
        let bits = select(vec4<u32>(), vec4<u32>(1u, 2u, 4u, 8u), is_kept);
        kept[i] = bits.x | bits.y | bits.z | bits.w;
    }
}

// The dropout factors of a lane's weights for the queries of its group i.
@if(dropout)
fn factors(place: Place, i: u32) -> vec4<f32> {
    let at = place.row / 4u * TILE + place.part * SHARE + 4u * i;
    let bits = vec4<u32>(kept[at], kept[at + 1u], kept[at + 2u], kept[at + 3u]) >> vec4<u32>(place.row % 4u);
    return select(vec4<f32>(), vec4<f32>(params.factor), (bits & vec4<u32>(1u)) != vec4<u32>());
}

// Turns the scores k · q of a lane into the weights p, zero where masked.
fn weigh(place: Place, head: u32, key: u32, tile: u32, end: u32, factor: f32) {
    @if(wide_heads) { if (place.row >= BLOCK) { return; } }
    @if(alibi) let slope = alibi_slope(params.first_head + head, params.all_heads);
    for (var i = 0u; i < SHARE4; i++) {
        let at = place.part * SHARE + 4u * i;
        let query = tile + at + vec4<u32>(0u, 1u, 2u, 3u);
        let lse_of =
            vec4<f32>(statistics[at].lse, statistics[at + 1u].lse, statistics[at + 2u].lse, statistics[at + 3u].lse);
        @if(!capped) var score = factor * whole4(place, i) - lse_of + LOG2_GAIN;
        @if(capped) let capped = soft_capped4(factor * whole4(place, i), params.cap, params.inverse_cap);
        @if(capped) { slopes_of_cap[i] = soft_cap_slope4(capped, params.inverse_cap); }
        @if(capped) var score = capped - lse_of + LOG2_GAIN;
        @if(alibi) { score -= slope * (f32(i32(tile + at) - i32(key)) + vec4<f32>(0.0, 1.0, 2.0, 3.0)); }
        var sees = query < vec4<u32>(end);
        @if(causal) { sees &= vec4<u32>(key) <= query; }
        p[i] = select(vec4<f32>(), exp2(score), sees);
    }
}

// Stores the weights p, and the weights ds, which follow from p and the scores v · dout.
fn differentiate(place: Place, slope: f32) {
    @if(wide_heads) { if (place.row >= BLOCK) { return; } }
    for (var i = 0u; i < SHARE4; i++) {
        let at = place.part * SHARE + 4u * i;
        let delta_of =
            vec4<f32>(statistics[at].delta, statistics[at + 1u].delta, statistics[at + 2u].delta, statistics[at + 3u].delta);
        var dp = whole4(place, i);
        var dropped = p[i];
        @if(dropout) {
            dp *= factors(place, i);
            dropped *= factors(place, i);
        }
        store_weights(place, GRADIENTS, i, dropped);
        @if(capped) { p[i] *= slopes_of_cap[i]; }
        store_weights(place, QUERIES, i, slope * p[i] * (dp - delta_of));
    }
}
