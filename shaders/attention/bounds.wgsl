// The part of a sequence that windows and documents leave. Kernels that walk keys bind `starts`, and kernels that walk
// queries bind `ends`.

import package::attention::params::params;

@if(segmented) @group(0) @binding(7) var<storage, read> starts: array<u32>; // (1, N)
@if(segmented) @group(0) @binding(7) var<storage, read> ends: array<u32>; // (1, N)

// The first key that query `token` sees; non-decreasing in `token`.
@if(windowed || segmented)
fn first_seen(sequence: u32, token: u32) -> u32 {
    var first = 0u;
    @if(windowed) { first = token - min(token, params.window - 1u); }
    @if(segmented) { first = max(first, starts[params.starts_offset + sequence + token]); }
    return first;
}

// One past the last query that sees `key`; non-decreasing in `key`.
@if(windowed || segmented)
fn end_seen(sequence: u32, key: u32) -> u32 {
    var end = params.tokens;
    @if(windowed) { end = min(end, key + params.window); }
    @if(segmented) { end = min(end, ends[params.ends_offset + sequence + key]); }
    return end;
}
