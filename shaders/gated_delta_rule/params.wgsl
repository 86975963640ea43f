// Shared by the kernels of the gated delta rule: sizes, and where its tensors are.
//
// What passes between launches lies in one f32 tensor, `scratch`, in groups of 4. For each token and head, with room for
// whole chunks,
//
//   gates     (c, beta, before, after)   c: Σ log decay of the chunk's tokens up to this one
//                                        before: the share that is left of the state before the chunk
//                                        after: the share of what is written here that is left after the chunk
//   written   d (V), what a token writes under its key, and dwritten, its gradient before beta
//
// and for each chunk of CHUNK tokens and head
//
//   squares   two matrices (CHUNK, CHUNK): the inverse and the scores; in the backward pass then their gradients
//   states    the state (K, V) before the chunk, and dstates, the gradient of the state after it
//
// Behind the states of a sequence is the state after its last chunk.
// A launch has some consecutive chunks of each sequence, a segment. The state before a segment, and in the backward pass
// the gradient of the state after it, pass from one segment to the next in `carry_in` and `carry_out`.
// Documents: shares and weights that reach over a boundary are 0.

import package::tile::CHUNK;

struct Params {
    rows: u32, // N
    tokens: u32, // T, of a sequence
    begin: u32, // those of a sequence before the segment
    chunks: u32, // of a sequence, in the segment
    heads: u32, // of values, in this launch
    all_heads: u32,
    group: u32, // value heads per head of keys
    d4: u32, // groups of 4 of a key, and of a value
    v4: u32,
    qk_offset: u32, // offsets, starts and strides of tensors of elements count groups of 4
    qk_stride: u32,
    k_start: u32,
    v_offset: u32,
    v_stride: u32,
    out_offset: u32,
    out_stride: u32,
    dout_offset: u32,
    dout_stride: u32,
    dqk_offset: u32,
    dqk_stride: u32,
    dv_offset: u32,
    dv_stride: u32,
    gate_offset: u32, // in elements, like the next two
    gate_stride: u32,
    beta_start: u32, // from log_decay to beta of a token
    gate_columns: u32, // those that this launch writes: one for each head, and the padding
    starts_offset: u32,
    gates: u32, // where parts of scratch start
    inverse: u32,
    scores: u32,
    written: u32,
    dwritten: u32,
    states: u32,
    dstates: u32,
    dots: u32,
    products: u32,
    carry_in: u32,
    carry_out: u32,
    state_offset: u32, // of the first head in final_state
    block: u32, // groups of columns of a block of dots
    // CHUNK, the groups of 4 terms that are staged at once, and 3: lengths of loops, which are hidden here from
    // compilers, or they would unroll them, barriers and all
    chunk: u32,
    staged4: u32,
    parts: u32,
    scale: f32,
}

// A chunk of a sequence.
struct Chunk {
    index: u32, // among the chunks of the segments of all sequences
    row: u32, // its first token among those of all sequences
    begin: u32, // and within its sequence
    tokens: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> scratch: array<vec4<f32>>;
@if(segmented) @group(0) @binding(2) var<storage, read> starts: array<u32>; // (1, N)

fn chunk_of(index: u32) -> Chunk {
    let sequence = index / params.chunks;
    let begin = params.begin + (index % params.chunks) * CHUNK;
    return Chunk(index, sequence * params.tokens + begin, begin, min(CHUNK, params.tokens - begin));
}

// The first token of the document of `row`, within its sequence.
@if(segmented) fn start_of(row: u32) -> u32 { return starts[params.starts_offset + row]; }
@if(!segmented) fn start_of(row: u32) -> u32 { return 0u; }

// All chunks of the launch.
fn all_chunks() -> u32 {
    return params.rows / params.tokens * params.chunks;
}

// Where the gates of a token of a chunk are.
fn gates_of(chunk: u32, token: u32, head: u32) -> u32 {
    return params.gates + (chunk * CHUNK + token) * params.heads + head;
}

// Where a matrix of a chunk and head starts, of those that start at `first`.
fn square_of(first: u32, chunk: u32, head: u32) -> u32 {
    return first + (chunk * params.heads + head) * (CHUNK * CHUNK / 4u);
}

// Where the state before a chunk of a head starts, of those that start at `first`; `after` is 1 for the state after it.
fn state_of(first: u32, chunk: u32, after: u32, head: u32) -> u32 {
    return carry_of(first, chunk + chunk / params.chunks + after, head);
}

// Where a state of a sequence and head starts, of those that start at `first`.
fn carry_of(first: u32, sequence: u32, head: u32) -> u32 {
    return first + (sequence * params.heads + head) * 4u * params.d4 * params.v4;
}

// Where the values of a token of a chunk and head are, of those that start at `first`.
fn values_of(first: u32, chunk: u32, token: u32, head: u32) -> u32 {
    return first + ((chunk * CHUNK + token) * params.heads + head) * params.v4;
}

// Where the dot products of a token of a chunk and head are, of a half of a block of columns.
fn dots_of(half: u32, chunk: u32, token: u32, head: u32) -> u32 {
    return params.dots + ((half * all_chunks() + chunk) * CHUNK + token) * params.heads + head;
}
