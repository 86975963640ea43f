// Shared by the kernels that decode against a KV cache:
//
//   qkv (B, columns) read        a row is q (heads · 4 D4) | k (kv heads · 4 D4) | v (kv heads · 4 V4) of the new token
//   positions (B) u32 read       position of the new token in its sequence
//   cache (B · T, columns − q)   k | v of every token so far: row b · T + t is token t of sequence b. The first of the
//                                heads that share the new token's key writes its row; its key and value are read
//                                from qkv. With `ring` only the last T tokens are there, token t in row t mod T
//   table (positions, 2 · pairs) f32 read, with `rotated`: q and k are rotated after loading, as rope.wgsl does it;
//                                a row may hold as many angles again, for q

import package::lib::element::{Packed, load4, store4};
import package::tile::{D4, V4};

struct Params {
    sequences: u32, // B
    tokens: u32, // T, cache rows per sequence
    window: u32,
    heads: u32,
    group: u32, // query heads per key and value head
    k_start: u32, // columns, offsets, starts and strides count groups of 4 elements
    v_start: u32,
    qkv_offset: u32,
    qkv_stride: u32,
    cache_offset: u32,
    cache_stride: u32,
    cached_v_start: u32,
    out_offset: u32,
    out_stride: u32,
    positions_offset: u32, // in elements
    scale: f32, // times log2 e
    pairs: u32, // per head
    table_offset: u32,
    table_stride: u32,
    table_rows: u32,
    query_angles: u32, // from the angles of k to those of q
    parts: u32, // workgroups for a head
    part_keys: u32, // keys of each
    cap: f32, // with `capped`: soft cap of scores, times log2 e; the next is its reciprocal
    inverse_cap: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<Packed>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<storage, read_write> cache: array<Packed>;
@if(rotated) @group(0) @binding(5) var<storage, read> table: array<vec4<f32>>;

// Where the data that one head of one sequence reads are in the tensors.
struct Place {
    position: u32,
    row: u32, // of the new token among those of its sequence in the cache
    query: u32, // in qkv, like the next two
    key: u32,
    value: u32,
    keys: u32, // of the sequence's first row in the cache, like the next
    values: u32,
    angles: u32, // in the table
    appends: bool, // whether the head writes the new token's key and value to the cache
}

fn place_of(sequence: u32, head: u32) -> Place {
    let own = params.qkv_offset + sequence * params.qkv_stride;
    let start = params.cache_offset + sequence * params.tokens * params.cache_stride;
    let kv_head = head / params.group;
    let at = positions[params.positions_offset + sequence];
    // A position past the end of the cache would address another sequence's rows.
    @if(!ring) let position = min(at, params.tokens - 1u);
    @if(!ring) let row = position;
    @if(ring) let position = at;
    @if(ring) let row = at % params.tokens;
    var angles = 0u;
    @if(rotated) { angles = params.table_offset + min(at, params.table_rows - 1u) * params.table_stride; }
    return Place(
        position,
        row,
        own + head * D4,
        own + params.k_start + kv_head * D4,
        own + params.v_start + kv_head * V4,
        start + kv_head * D4,
        start + params.cached_v_start + kv_head * V4,
        angles,
        head % params.group == 0u,
    );
}

// Where the row of the token that is `back` before the new one starts, from the sequence's first row.
fn row_before(place: Place, back: u32) -> u32 {
    @if(!ring) let row = place.row - back;
    @if(ring) let row = select(params.tokens, 0u, back <= place.row) + place.row - back;
    return row * params.cache_stride;
}

// Group c of the query or key at `head`, rotated, and rounded as it is stored.
@if(!rotated)
fn rotated_group(head: u32, c: u32, angles: u32) -> Packed {
    return qkv[head + c];
}

@if(rotated && interleaved)
fn rotated_group(head: u32, c: u32, angles: u32) -> Packed {
    let x = load4(qkv[head + c]);
    let turn = table[angles + min(c, (params.pairs - 1u) / 2u)]; // cos, sin, cos, sin
    let y = x * turn.xxzz + x.yxwz * turn.yyww * vec4<f32>(-1.0, 1.0, -1.0, 1.0);
    let pair = vec4<u32>(2u * c) + vec4<u32>(0u, 0u, 1u, 1u);
    return store4(select(x, y, pair < vec4<u32>(params.pairs)));
}

@if(rotated && !interleaved && !straddling)
fn rotated_group(head: u32, c: u32, angles: u32) -> Packed {
    let half4 = params.pairs / 4u;
    if (c >= 2u * half4) {
        return qkv[head + c];
    }
    let is_second = c >= half4;
    let first = select(c, c - half4, is_second);
    let partner = load4(qkv[head + select(c + half4, first, is_second)]);
    let low = table[angles + 2u * first];
    let high = table[angles + 2u * first + 1u];
    let sines = vec4<f32>(low.yw, high.yw);
    return store4(load4(qkv[head + c]) * vec4<f32>(low.xz, high.xz) + partner * select(-sines, sines, is_second));
}

@if(rotated && !interleaved && straddling)
fn rotated_group(head: u32, c: u32, angles: u32) -> Packed {
    let x = load4(qkv[head + c]);
    var y = x;
    for (var e = 0u; e < 4u; e++) {
        let i = 4u * c + e;
        if (i < 2u * params.pairs) {
            let is_second = i >= params.pairs;
            let pair = select(i, i - params.pairs, is_second);
            let partner = select(i + params.pairs, pair, is_second);
            let turn = table[angles + pair / 2u];
            let cosine = select(turn.x, turn.z, pair % 2u == 1u);
            let sine = select(turn.y, turn.w, pair % 2u == 1u);
            let other = load4(qkv[head + partner / 4u])[partner % 4u];
            y[e] = x[e] * cosine + select(-other, other, is_second) * sine;
        }
    }
    return store4(y);
}
