// Shared by the attention kernels of all tiers: sizes, masks and dropout.
//
//   qkv (N, columns) read, starts and ends (1, N) u32 read: for each token the first token of its document and one past
//   the last, counted within its sequence
//
// Binding numbers are those of all kernels except decode; the forward pass does not read the params of dout, delta and
// dqkv.

@if(dropout) import package::lib::dropout::{DropoutState, dropout_words};
import package::lib::element::Packed;

struct Params {
    tokens: u32, // T
    heads: u32,
    group: u32, // query heads per key and value head
    k_start: u32, // offsets, starts and strides count groups of 4 elements; for lse and delta they count elements
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
    starts_offset: u32, // in elements, like ends_offset
    ends_offset: u32,
    dropout_site: u32, // see lib/dropout, like seed and threshold; factor is 1 / (1 - p)
    seed_low: u32,
    seed_high: u32,
    threshold: u32,
    factor: f32,
    // D4 and V4 again, to hide the length of loops from compilers, which would unroll them into too many registers
    d4: u32,
    v4: u32,
    first_head: u32, // the first head here, where ranks divide the heads of a model
    all_heads: u32, // how many heads the whole model has
    rows: u32, // N
    parts: u32, // number of parts of dq, with `split`
    share: u32, // query heads whose gradients for keys and values one workgroup sums
    cap: f32, // with `capped`: soft cap of scores, times log2 e; the next is its reciprocal
    inverse_cap: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> qkv: array<Packed>;
@if(dropout) @group(0) @binding(8) var<storage, read> dropout_state: DropoutState;

// ALiBi's slope of the head whose scores are computed (lib/attention).
@if(alibi) var<private> slope: f32;

// The number of a query and head among those of the whole model.
fn mask_index(query: u32, head: u32) -> u32 {
    return query * params.all_heads + params.first_head + head;
}

// Dropout words of the keys 4 four to 4 four + 3, for the query and head with number `index`.
@if(dropout)
fn mask_words(index: u32, four: u32) -> vec4<u32> {
    let seed = vec2<u32>(params.seed_low, params.seed_high);
    return dropout_words(index, four, params.dropout_site, dropout_state, seed);
}
