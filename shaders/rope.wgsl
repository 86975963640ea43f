// Rotary position embedding, in place:   (a, b) -> (a cos φ − b sin φ, a sin φ + b cos φ)   for every pair of a head
//
//   qkv (N, columns)                      read and written: its first `items / UNITS` heads, the queries and keys
//   positions (N) u32                     read
//   table (positions, 2 · pairs) f32      read: cos φ and sin φ of each pair, interleaved; as many follow for the
//                                         queries if these grow with the position
//
//   interleaved   pairs (2i, 2i+1): one invocation per group of 4 elements
//   default       pairs (i, i + pairs), `pairs` a multiple of 4: one invocation per group and its partner group
//   straddling    pairs (i, i + pairs), `pairs` not a multiple of 4: one invocation per head, pair by pair
//
// A workgroup stays within one token, so the position is uniform. The backward pass rotates by −φ (`direction`).
// Numerics: f32 between load and store; the host computes the table in f64.
// Source: Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.4.2.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::{LANES, UNITS};

struct Params {
    tokens: u32,
    items: u32, // invocations per token: heads · UNITS
    chunks: u32, // workgroups per token
    head_stride: u32, // offsets and strides count groups of 4 elements
    pairs: u32, // per head
    qkv_offset: u32,
    qkv_stride: u32,
    positions_offset: u32, // in elements
    table_offset: u32,
    table_stride: u32,
    table_rows: u32,
    query_items: u32, // those of `items` that are of queries
    query_angles: u32, // from the angles of keys to those of queries
    direction: f32, // 1, or -1 in the backward pass
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> qkv: array<Packed>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;
@group(0) @binding(3) var<storage, read> table: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn rope(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let token = index / params.chunks;
    let item = index % params.chunks * LANES + lane;
    if (token >= params.tokens || item >= params.items) {
        return;
    }
    let position = min(positions[params.positions_offset + token], params.table_rows - 1u);
    let own = select(0u, params.query_angles, item < params.query_items);
    let angles = params.table_offset + position * params.table_stride + own;
    let head = params.qkv_offset + token * params.qkv_stride + item / UNITS * params.head_stride;
    rotate(head, item % UNITS, angles);
}

@if(interleaved)
fn rotate(head: u32, unit: u32, angles: u32) {
    let x = load4(qkv[head + unit]);
    let turn = table[angles + unit]; // cos, sin, cos, sin
    let c = turn.xxzz;
    let s = params.direction * turn.yyww;
    let y = x * c + x.yxwz * s * vec4<f32>(-1.0, 1.0, -1.0, 1.0);
    // The last group may hold a single pair; its other elements are not rotated.
    let pair = vec4<u32>(2u * unit) + vec4<u32>(0u, 0u, 1u, 1u);
    qkv[head + unit] = store4(select(x, y, pair < vec4<u32>(params.pairs)));
}

@if(!interleaved && !straddling)
fn rotate(head: u32, unit: u32, angles: u32) {
    let partner = head + unit + params.pairs / 4u;
    let a = load4(qkv[head + unit]);
    let b = load4(qkv[partner]);
    let low = table[angles + 2u * unit];
    let high = table[angles + 2u * unit + 1u];
    let c = vec4<f32>(low.xz, high.xz);
    let s = params.direction * vec4<f32>(low.yw, high.yw);
    qkv[head + unit] = store4(a * c - b * s);
    qkv[partner] = store4(a * s + b * c);
}

@if(!interleaved && straddling)
fn rotate(head: u32, unit: u32, angles: u32) {
    for (var i = 0u; i < params.pairs; i++) {
        let j = i + params.pairs;
        let a = load4(qkv[head + i / 4u])[i % 4u];
        let b = load4(qkv[head + j / 4u])[j % 4u];
        let turn = table[angles + i / 2u];
        let c = turn[2u * (i % 2u)];
        let s = params.direction * turn[2u * (i % 2u) + 1u];
        replace(head, i, a * c - b * s);
        replace(head, j, a * s + b * c);
    }
}

// Replaces element `i` of a head; the other three of its group are stored back unchanged, which is exact.
@if(!interleaved && straddling)
fn replace(head: u32, i: u32, value: f32) {
    let is_it = vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(i % 4u);
    let group = load4(qkv[head + i / 4u]);
    qkv[head + i / 4u] = store4(select(group, vec4<f32>(value), is_it));
}
