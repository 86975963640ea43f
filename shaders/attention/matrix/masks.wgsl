// The masks of attention by matrices, in the kernels that walk keys: which keys a query sees.

@if(windowed || segmented) import package::attention::bounds::first_seen;
import package::attention::matrix::tiles::{BLOCK, TILE};
import package::attention::params::params;

// The first key that query `token` sees, for the masks to compare with.
fn first_of(sequence: u32, token: u32) -> u32 {
    @if(windowed || segmented) { return first_seen(sequence, min(token, params.tokens - 1u)); }
    @if(!windowed && !segmented) { return 0u; }
}

// Whether query `token`, which sees keys from `first` on, sees each of the 4 keys from `key` on. Causal keys are not
// compared with the last token, because a valid query sees no key after itself.
fn is_seen(token: u32, first: u32, key: u32) -> vec4<bool> {
    let keys = key + vec4<u32>(0u, 1u, 2u, 3u);
    @if(!causal) { return keys < vec4<u32>(params.tokens); }
    @if(causal && (windowed || segmented)) { return (keys <= vec4<u32>(token)) & (keys >= vec4<u32>(first)); }
    @if(causal && !windowed && !segmented) { return keys <= vec4<u32>(token); }
}

// The key where the walk of a block of queries starts: a multiple of TILE, so that the same keys are summed together
// without a window as with a window that covers everything.
fn first_key(sequence: u32, block: u32) -> u32 {
    return first_of(sequence, block) / TILE * TILE;
}

// One past the last key of the walk.
fn keys_end(block: u32) -> u32 {
    @if(causal) { return min(params.tokens, block + BLOCK); }
    @if(!causal) { return params.tokens; }
}
