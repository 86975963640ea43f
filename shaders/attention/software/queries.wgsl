// Shared by the software kernels in which an invocation owns ROWS queries of one head, LANES apart, and walks its keys
// (forward and backward_q): masking, dropout words, and loading of keys and values.

@if(dropout) import package::attention::params::mask_words;
import package::attention::params::{params, qkv};
import package::lib::element::load4;
@if(shuffled) import package::attention::software::spread::{column_held, lane_of, register_of, row_held};
@if(shuffled) import package::lib::lanes::from_lane;
import package::tile::{D4, LANES, ROWS, TILE, V4};

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
        words_of[r] = mask_words(mask_row[r], key / 4u);
    }
}

// The walk goes tile by tile, and within a tile by 4 keys, whose dropout words are drawn together. Two ways to read a
// tile of keys. (1) No staging: each key is loaded where it is used.
@if(!shuffled)
fn load_tile(lane: u32, keys: u32, values: u32, first: u32) {}

@if(!shuffled)
fn key_part(keys: u32, key: u32, place: u32, c: u32) -> vec4<f32> {
    return load4(qkv[keys + min(key, params.tokens - 1u) * params.qkv_stride + c]);
}

@if(!shuffled)
fn value_part(values: u32, key: u32, place: u32, c: u32) -> vec4<f32> {
    return load4(qkv[values + min(key, params.tokens - 1u) * params.qkv_stride + c]);
}

// (2) The lanes load the tile together and share it by shuffles.
@if(shuffled) var<private> own_keys: array<vec4<f32>, (D4 * TILE + LANES - 1u) / LANES>;
@if(shuffled) var<private> own_values: array<vec4<f32>, (V4 * TILE + LANES - 1u) / LANES>;

@if(shuffled)
fn load_tile(lane: u32, keys: u32, values: u32, first: u32) {
    let row = min(first + row_held(lane), params.tokens - 1u) * params.qkv_stride;
    for (var i = 0u; i < (D4 * TILE + LANES - 1u) / LANES; i++) {
        own_keys[i] = load4(qkv[keys + row + min(column_held(i, lane), D4 - 1u)]);
    }
    for (var i = 0u; i < (V4 * TILE + LANES - 1u) / LANES; i++) {
        own_values[i] = load4(qkv[values + row + min(column_held(i, lane), V4 - 1u)]);
    }
}

@if(shuffled)
fn key_part(keys: u32, key: u32, place: u32, c: u32) -> vec4<f32> {
    return from_lane(own_keys[register_of(c)], lane_of(place, c));
}

@if(shuffled)
fn value_part(values: u32, key: u32, place: u32, c: u32) -> vec4<f32> {
    return from_lane(own_values[register_of(c)], lane_of(place, c));
}
