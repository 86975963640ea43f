// The masks of the portable kernels in which a workgroup owns queries and walks keys (forward, backward_q).

@if(windowed || segmented) import package::attention::bounds::first_seen;
import package::attention::params::params;
import package::attention::portable::tiles::{BLOCK, TILE};

@if(windowed || segmented) var<private> first_of: vec4<u32>; // the first key that each of the 4 queries sees

// Reads what the masks need for the 4 queries from `token` on.
fn load_bounds(sequence: u32, token: u32) {
    @if(windowed || segmented) {
        let last = params.tokens - 1u;
        for (var r = 0u; r < 4u; r++) {
            first_of[r] = first_seen(sequence, min(token + r, last));
        }
    }
}

// Whether each of the 4 queries from `token` on sees `key`. Causal keys are not compared with the last token, because a
// valid query sees no key after itself.
@if(!causal)
fn is_seen(token: u32, key: u32) -> vec4<bool> {
    return vec4<bool>(key < params.tokens);
}

@if(causal)
fn is_seen(token: u32, key: u32) -> vec4<bool> {
    let keys = vec4<u32>(key);
    let seen = keys <= token + vec4<u32>(0u, 1u, 2u, 3u);
    @if(windowed || segmented) { return seen & (keys >= first_of); }
    @if(!windowed && !segmented) { return seen; }
}

// The key where the walk of a block of queries starts: a multiple of TILE, so that kernels with the same TILE sum the
// same keys together with and without a window.
fn first_key(sequence: u32, block: u32) -> u32 {
    @if(windowed || segmented) { return first_seen(sequence, block) / TILE * TILE; }
    @if(!windowed && !segmented) { return 0u; }
}

// One past the last key of the walk.
fn keys_end(block: u32) -> u32 {
    @if(causal) { return min(params.tokens, block + BLOCK); }
    @if(!causal) { return params.tokens; }
}
