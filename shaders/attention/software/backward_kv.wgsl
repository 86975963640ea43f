// Attention backward, keys and values, from the saved log-sum-exp (p, dp and ds as in
// attention/software/backward_q.wgsl):
//
//   dv = Σ p dout,   dk = scale Σ ds q      over every query that sees the key, in every head of the key's group
//
//   qkv (N, columns), dout (N, heads · 4 V4), lse and delta (N, heads) f32   read
//   dqkv (N, columns), its columns of keys and values   written (attention/gradients_of_keys)
//
// An invocation owns ROWS keys of one key head, LANES apart, and walks `share` heads of the group and their queries,
// STEP at a time. The order of summation is fixed, and there are no atomics. Neighbouring invocations own neighbouring
// keys and visit the same queries together.
// windowed, segmented, capped, alibi: as in attention/software/forward.wgsl; the document of a key ends before ends[key]. The
// walk ends with the last query that sees the last key of the block.
// dropout: dv = Σ mask p dout / (1 − p_drop), and dp as in attention/software/backward_q.wgsl.
// shuffled: the lanes load a tile of queries together and share them by shuffles (attention/software/spread).
// Numerics: f32; p is set to zero where masked.
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.

@if(windowed || segmented) import package::attention::bounds::end_seen;
import package::attention::gradients_of_keys::{dk_of, dv_of, put_gradient};
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{LOG2_E, add_dot};
import package::attention::heads::{gradients_of, keys_of, queries_of, values_of};
@if(dropout) import package::attention::params::{mask_index, mask_words};
@if(alibi) import package::attention::params::slope;
import package::attention::params::{params, qkv};
import package::lib::element::{Packed, load4};
@if(capped) import package::lib::soft_cap::{soft_cap_slope, soft_capped};
@if(shuffled) import package::attention::software::spread::{column_held, lane_of, register_of, row_held};
import package::attention::software::spread::place_of;
@if(shuffled) import package::lib::lanes::from_lane;
import package::tile::{D4, LANES, STEP, ROWS, TILE, V4};

@group(0) @binding(3) var<storage, read> dout: array<Packed>;
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;

const BLOCK: u32 = ROWS * LANES;

var<private> k: array<array<vec4<f32>, D4>, ROWS>; // times scale · log2 e
var<private> v: array<array<vec4<f32>, V4>, ROWS>;
var<private> dk: array<array<vec4<f32>, D4>, ROWS>;
var<private> dv: array<array<vec4<f32>, V4>, ROWS>;
@if(windowed || segmented) var<private> end_of: array<u32, ROWS>; // one past the last query that sees each key

@compute @workgroup_size(LANES)
fn attention_backward_kv(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let first_head = workgroup.y * params.share;
    let kv_head = first_head / params.group;
    let sequence = workgroup.z * params.tokens;
    let block = workgroup.x * BLOCK;
    let token = block + lane;
    for (var r = 0u; r < ROWS; r++) {
        let row = sequence + min(token + r * LANES, params.tokens - 1u);
        @if(windowed || segmented) { end_of[r] = end_seen(sequence, row - sequence); }
        let k_at = keys_of(row, kv_head);
        let v_at = values_of(row, kv_head);
        for (var c = 0u; c < D4; c++) {
            k[r][c] = (params.scale * LOG2_E) * load4(qkv[k_at + c]);
        }
        for (var c = 0u; c < V4; c++) {
            v[r][c] = load4(qkv[v_at + c]);
        }
    }

    @if(causal) let first = block; // earlier queries see no key of this block
    @if(!causal) let first = 0u;
    @if(windowed || segmented) let end = end_seen(sequence, min(block + BLOCK, params.tokens) - 1u);
    @if(!windowed && !segmented) let end = params.tokens;
    for (var head = first_head; head < first_head + params.share; head++) {
        @if(alibi) { slope = alibi_slope(params.first_head + head, params.all_heads); }
        for (var tile = first; tile < end; tile += TILE) {
            load_tile(lane, sequence, head, tile);
            for (var query = tile; query < min(tile + TILE, end); query += STEP) {
                gather_from(token, sequence, head, query, place_of(query, tile));
            }
        }
    }

    for (var r = 0u; r < ROWS; r++) {
        if (token + r * LANES < params.tokens) {
            let row = sequence + token + r * LANES;
            for (var c = 0u; c < D4; c++) {
                put_gradient(dk_of(row, first_head) + c, params.scale * dk[r][c]);
            }
            for (var c = 0u; c < V4; c++) {
                put_gradient(dv_of(row, first_head) + c, dv[r][c]);
            }
        }
    }
}

// Adds the contribution of STEP queries starting at `query`; `place` is the index of the first one in its tile.
fn gather_from(token: u32, sequence: u32, head: u32, query: u32, place: u32) {
    var p: array<array<f32, STEP>, ROWS>; // holds the scores first
    for (var c = 0u; c < D4; c++) {
        for (var i = 0u; i < STEP; i++) {
            let q = query_part(sequence, head, query + i, place + i, c);
            for (var r = 0u; r < ROWS; r++) {
                p[r][i] = add_dot(p[r][i], q, k[r][c]);
            }
        }
    }

    var ds: array<array<f32, STEP>, ROWS>; // holds dp first
    for (var c = 0u; c < V4; c++) {
        for (var i = 0u; i < STEP; i++) {
            let dy = dout_part(sequence, head, query + i, place + i, c);
            for (var r = 0u; r < ROWS; r++) {
                ds[r][i] = add_dot(ds[r][i], dy, v[r][c]);
            }
        }
    }

    for (var i = 0u; i < STEP; i++) {
        let statistics = statistics_of(sequence, head, query + i, place + i);
        let lse_of = statistics.x;
        let delta_of = statistics.y;
        @if(dropout) let row = sequence + min(query + i, params.tokens - 1u);
        for (var r = 0u; r < ROWS; r++) {
            @if(capped) { p[r][i] = soft_capped(p[r][i], params.cap, params.inverse_cap); }
            @if(capped) let slope_of_cap = soft_cap_slope(p[r][i], params.inverse_cap);
            @if(alibi) { p[r][i] += slope * (f32(token + r * LANES) - f32(query + i)); }
            p[r][i] = select(0.0, exp2(p[r][i] - lse_of), sees(r, query + i, token + r * LANES));
            @if(dropout) let mask = mask_of(mask_index(row, head), token + r * LANES);
            @if(dropout) { ds[r][i] *= mask; }
            ds[r][i] = p[r][i] * (ds[r][i] - delta_of);
            @if(capped) { ds[r][i] *= slope_of_cap; }
            @if(dropout) { p[r][i] *= mask; }
        }
    }

    for (var c = 0u; c < V4; c++) {
        for (var i = 0u; i < STEP; i++) {
            let dy = dout_part(sequence, head, query + i, place + i, c);
            for (var r = 0u; r < ROWS; r++) {
                dv[r][c] = fma(vec4<f32>(p[r][i]), dy, dv[r][c]);
            }
        }
    }
    for (var c = 0u; c < D4; c++) {
        for (var i = 0u; i < STEP; i++) {
            let q = query_part(sequence, head, query + i, place + i, c);
            for (var r = 0u; r < ROWS; r++) {
                dk[r][c] = fma(vec4<f32>(ds[r][i]), q, dk[r][c]);
            }
        }
    }
}

@if(causal && !windowed && !segmented)
fn sees(r: u32, query: u32, key: u32) -> bool {
    return key <= query && query < params.tokens;
}

@if(!causal)
fn sees(r: u32, query: u32, key: u32) -> bool {
    return query < params.tokens;
}

@if(windowed || segmented)
fn sees(r: u32, query: u32, key: u32) -> bool {
    return key <= query && query < end_of[r];
}

// Dropout factor of the weight of `key`; `index` numbers the query and head. Only 1 of the 4 words drawn is used:
// the neighbouring keys belong to other invocations.
@if(dropout)
fn mask_of(index: u32, key: u32) -> f32 {
    return select(0.0, params.factor, mask_words(index, key / 4u)[key % 4u] >= params.threshold);
}

fn query_at(sequence: u32, head: u32, query: u32) -> u32 {
    return queries_of(sequence + min(query, params.tokens - 1u), head);
}

fn dout_at(sequence: u32, head: u32, query: u32) -> u32 {
    return gradients_of(sequence + min(query, params.tokens - 1u), head);
}

// (log2 e · log-sum-exp, delta) of a query.
fn read_statistics(sequence: u32, head: u32, query: u32) -> vec4<f32> {
    let row = sequence + min(query, params.tokens - 1u);
    let lse_of = LOG2_E * lse[params.lse_offset + row * params.lse_stride + head];
    return vec4<f32>(lse_of, delta[row * params.delta_stride + head], 0.0, 0.0);
}

// Two ways to read a tile of queries. (1) No staging: each query is loaded where it is used.
@if(!shuffled)
fn load_tile(lane: u32, sequence: u32, head: u32, first: u32) {}

@if(!shuffled)
fn query_part(sequence: u32, head: u32, query: u32, place: u32, c: u32) -> vec4<f32> {
    return load4(qkv[query_at(sequence, head, query) + c]);
}

@if(!shuffled)
fn dout_part(sequence: u32, head: u32, query: u32, place: u32, c: u32) -> vec4<f32> {
    return load4(dout[dout_at(sequence, head, query) + c]);
}

@if(!shuffled)
fn statistics_of(sequence: u32, head: u32, query: u32, place: u32) -> vec4<f32> {
    return read_statistics(sequence, head, query);
}

// (2) The lanes load the tile together and share it by shuffles.
@if(shuffled) var<private> own_queries: array<vec4<f32>, (D4 * TILE + LANES - 1u) / LANES>;
@if(shuffled) var<private> own_dout: array<vec4<f32>, (V4 * TILE + LANES - 1u) / LANES>;
@if(shuffled) var<private> own_statistics: vec4<f32>;

@if(shuffled)
fn load_tile(lane: u32, sequence: u32, head: u32, first: u32) {
    let query = first + row_held(lane);
    for (var i = 0u; i < (D4 * TILE + LANES - 1u) / LANES; i++) {
        own_queries[i] = load4(qkv[query_at(sequence, head, query) + min(column_held(i, lane), D4 - 1u)]);
    }
    for (var i = 0u; i < (V4 * TILE + LANES - 1u) / LANES; i++) {
        own_dout[i] = load4(dout[dout_at(sequence, head, query) + min(column_held(i, lane), V4 - 1u)]);
    }
    own_statistics = read_statistics(sequence, head, query);
}

@if(shuffled)
fn query_part(sequence: u32, head: u32, query: u32, place: u32, c: u32) -> vec4<f32> {
    return from_lane(own_queries[register_of(c)], lane_of(place, c));
}

@if(shuffled)
fn dout_part(sequence: u32, head: u32, query: u32, place: u32, c: u32) -> vec4<f32> {
    return from_lane(own_dout[register_of(c)], lane_of(place, c));
}

@if(shuffled)
fn statistics_of(sequence: u32, head: u32, query: u32, place: u32) -> vec4<f32> {
    return from_lane(own_statistics, lane_of(place, 0u));
}
