// What decoding against a KV cache shares:
//
//   qkv (B, columns) read        a row is q (heads · 4 D4) | k (kv heads · 4 D4) | v (kv heads · 4 V4) of the new token
//   cache (B · T, columns − q)   k | v of every token so far: row b · T + t is token t of sequence b
//   positions (B) u32 read       position of the new token in its sequence

import package::lib::element::Packed;

struct Params {
    sequences: u32, // B
    tokens: u32, // T, cache rows per sequence
    window: u32,
    heads: u32,
    group: u32, // query heads per key and value head
    copied4: u32, // columns of a cache row; columns, offsets, starts and strides count groups of 4 elements
    k_start: u32,
    qkv_offset: u32,
    qkv_stride: u32,
    cache_offset: u32,
    cache_stride: u32,
    cached_v_start: u32,
    out_offset: u32,
    out_stride: u32,
    positions_offset: u32, // in elements
    scale: f32, // times log2 e
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<Packed>;
@group(0) @binding(2) var<storage, read> positions: array<u32>;

// Clamped: a position past the end of the cache would address another sequence's rows.
fn position_of(sequence: u32) -> u32 {
    return min(positions[params.positions_offset + sequence], params.tokens - 1u);
}
