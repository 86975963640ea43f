// What the kernels share whose invocations own ROWS queries of one head, LANES apart, and walk its keys (attention/forward and
// attention/backward_q): which keys a query sees, what dropout draws for them, and how keys and values are read.
//
// The bindings that these need are declared here, with the numbers that they have in each kernel. The params are those of
// attention/backward_kv too; the forward pass leaves those of dout, delta and dqkv unread.

@if(dropout) import package::lib::dropout::{DropoutState, dropout_words};
import package::lib::element::{Packed, load4};
@if(shuffled) import package::lib::lanes::from_lane;
import package::tile::{D4, LANES, ROWS, TILE, V4};

struct Params {
    tokens: u32, // T
    heads: u32,
    group: u32, // query heads to a key and value head
    k_start: u32, // offsets, starts and strides count groups of 4 elements; those of lse and delta count single ones
    v_start: u32,
    qkv_offset: u32,
    qkv_stride: u32,
    out_offset: u32,
    out_stride: u32,
    dout_offset: u32,
    dout_stride: u32,
    lse_offset: u32,
    lse_stride: u32,
    delta_stride: u32,
    dqkv_offset: u32,
    dqkv_stride: u32,
    scale: f32, // in the forward pass times log2 e
    window: u32, // keys that a query sees, itself included; for `windowed`
    starts_offset: u32,
    ends_offset: u32,
    dropout_site: u32, // of lib/dropout, with seed, threshold and factor 1 / (1 - p)
    seed_low: u32,
    seed_high: u32,
    threshold: u32,
    factor: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<Packed>;
@if(segmented) @group(0) @binding(7) var<storage, read> starts: array<u32>; // (1, N)
@if(dropout) @group(0) @binding(8) var<storage, read> dropout_state: DropoutState;

const BLOCK: u32 = ROWS * LANES;

@if(windowed || segmented) var<private> first_of: array<u32, ROWS>; // the first key that each query sees

@if(dropout) var<private> mask_row: array<u32, ROWS>; // number of each query and head, by which words are drawn
@if(dropout) var<private> words_of: array<vec4<u32>, ROWS>; // of 4 keys

// A query that exists sees no key past the last token, for it sees none after itself.
@if(causal && !windowed && !segmented)
fn is_seen(r: u32, token: u32, key: u32) -> bool {
    return key <= token;
}

@if(!causal)
fn is_seen(r: u32, token: u32, key: u32) -> bool {
    return key < params.tokens;
}

@if(windowed || segmented)
fn is_seen(r: u32, token: u32, key: u32) -> bool {
    return key <= token && key >= first_of[r];
}

// Draws the words of the next 4 keys for each query of this invocation.
@if(dropout)
fn draw_words(key: u32) {
    for (var r = 0u; r < ROWS; r++) {
        let seed = vec2<u32>(params.seed_low, params.seed_high);
        words_of[r] = dropout_words(mask_row[r], key / 4u, params.dropout_site, dropout_state, seed);
    }
}

// The first key that query `token` sees; it never falls as `token` rises.
@if(windowed || segmented)
fn first_seen(sequence: u32, token: u32) -> u32 {
    var first = 0u;
    @if(windowed) { first = token - min(token, params.window - 1u); }
    @if(segmented) { first = max(first, starts[params.starts_offset + sequence + token]); }
    return first;
}

// A walk goes tile by tile, and within a tile by 4 keys, whose words are drawn together. How a tile is read:
// each key where it is needed,
@if(!shared_tile && !shuffled)
fn load_tile(lane: u32, keys: u32, values: u32, first: u32) {}

@if(!shared_tile && !shuffled)
fn key_part(keys: u32, key: u32, c: u32) -> vec4<f32> {
    return load4(qkv[keys + min(key, params.tokens - 1u) * params.qkv_stride + c]);
}

@if(!shared_tile && !shuffled)
fn value_part(values: u32, key: u32, c: u32) -> vec4<f32> {
    return load4(qkv[values + min(key, params.tokens - 1u) * params.qkv_stride + c]);
}

// one key by each lane (TILE is LANES), which all of them hear,
@if(shuffled) var<private> own_key: array<vec4<f32>, D4>;
@if(shuffled) var<private> own_value: array<vec4<f32>, V4>;

@if(shuffled)
fn load_tile(lane: u32, keys: u32, values: u32, first: u32) {
    let row = min(first + lane, params.tokens - 1u) * params.qkv_stride;
    for (var c = 0u; c < D4; c++) {
        own_key[c] = load4(qkv[keys + row + c]);
    }
    for (var c = 0u; c < V4; c++) {
        own_value[c] = load4(qkv[values + row + c]);
    }
}

@if(shuffled)
fn key_part(keys: u32, key: u32, c: u32) -> vec4<f32> {
    return from_lane(own_key[c], key % TILE);
}

@if(shuffled)
fn value_part(values: u32, key: u32, c: u32) -> vec4<f32> {
    return from_lane(own_value[c], key % TILE);
}

// or all of them into workgroup memory.
@if(shared_tile) const WIDTH: u32 = D4 + V4; // a key and its value
@if(shared_tile) var<workgroup> shared_rows: array<vec4<f32>, TILE * WIDTH>;

@if(shared_tile)
fn load_tile(lane: u32, keys: u32, values: u32, first: u32) {
    workgroupBarrier(); // nobody still reads the tile before
    for (var i = lane; i < TILE * WIDTH; i += LANES) {
        let row = min(first + i / WIDTH, params.tokens - 1u) * params.qkv_stride;
        let c = i % WIDTH;
        shared_rows[i] = load4(qkv[row + select(values + c - D4, keys + c, c < D4)]);
    }
    workgroupBarrier();
}

@if(shared_tile)
fn key_part(keys: u32, key: u32, c: u32) -> vec4<f32> {
    return shared_rows[key % TILE * WIDTH + c];
}

@if(shared_tile)
fn value_part(values: u32, key: u32, c: u32) -> vec4<f32> {
    return shared_rows[key % TILE * WIDTH + D4 + c];
}
