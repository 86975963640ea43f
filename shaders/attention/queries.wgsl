// Shared by the kernels in which an invocation owns ROWS queries of one head, LANES apart, and walks its keys
// (attention/forward and attention/backward_q): masking, dropout words, and loading of keys and values.
//
//   qkv (N, columns) read, starts (1, N) u32 read: index of the first token of each token's document in its sequence
//
// Binding numbers are those of both kernels. attention/backward_kv uses the same params; the forward pass does not read
// those of dout, delta and dqkv.

@if(dropout) import package::lib::dropout::{DropoutState, dropout_words};
import package::lib::element::{Packed, load4};
@if(shuffled) import package::lib::lanes::from_lane;
import package::tile::{D4, LANES, ROWS, TILE, V4};

struct Params {
    tokens: u32, // T
    heads: u32,
    group: u32, // query heads per key and value head
    k_start: u32, // offsets, starts and strides count groups of 4 elements; those of lse and delta count elements
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
    scale: f32, // times log2 e in the forward pass
    window: u32, // with `windowed`: keys that a query sees, itself included
    starts_offset: u32, // in elements, as ends_offset
    ends_offset: u32,
    dropout_site: u32, // see lib/dropout, as seed and threshold; factor is 1 / (1 - p)
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

@if(dropout) var<private> mask_row: array<u32, ROWS>; // index of each query and head, from which words are drawn
@if(dropout) var<private> words_of: array<vec4<u32>, ROWS>; // for 4 keys

// No test against the last token: a valid query sees no key after itself.
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

// Draws the dropout words of the 4 keys starting at `key`, for each query of this invocation.
@if(dropout)
fn draw_words(key: u32) {
    for (var r = 0u; r < ROWS; r++) {
        let seed = vec2<u32>(params.seed_low, params.seed_high);
        words_of[r] = dropout_words(mask_row[r], key / 4u, params.dropout_site, dropout_state, seed);
    }
}

// The first key that query `token` sees; non-decreasing in `token`.
@if(windowed || segmented)
fn first_seen(sequence: u32, token: u32) -> u32 {
    var first = 0u;
    @if(windowed) { first = token - min(token, params.window - 1u); }
    @if(segmented) { first = max(first, starts[params.starts_offset + sequence + token]); }
    return first;
}

// The walk goes tile by tile, and within a tile by 4 keys, whose dropout words are drawn together. Three ways to read a
// tile of keys. (1) No staging: each key is loaded where it is used.
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

// (2) Each lane loads one key and its value (TILE is LANES) and shares them by shuffles.
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

// (3) The workgroup stages the tile in workgroup memory.
@if(shared_tile) const WIDTH: u32 = D4 + V4; // a key and its value
@if(shared_tile) var<workgroup> shared_rows: array<vec4<f32>, TILE * WIDTH>;

@if(shared_tile)
fn load_tile(lane: u32, keys: u32, values: u32, first: u32) {
    workgroupBarrier(); // all reads of the previous tile are done
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
