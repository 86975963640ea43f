// Shared by the kernels that draw the next token of each sequence, in two launches:
//
//   sort   a workgroup sorts CHUNK tokens, from most to least likely, ties by their number, and sums their weights
//   draw   a workgroup draws a token of a sequence from its sorted chunks
//
//   sampling                                 read: SamplingState
//   seen (B, ceil(V / 32)) u32               a bit for each token that has occurred
//   sorted (sequences, CHUNK · 3 C + C) u32  of C chunks, each in its own order: the keys of all tokens; the weights of
//                                            a token and those before it in its chunk, added up, f32; the tokens; then
//                                            the largest logit of each chunk, f32, beside which its weights are
//
// `order_of` maps logits to keys, integers of the same order; that of a NaN is 0.

struct Params {
    batch: u32, // B
    first: u32, // the first of the sequences of this launch
    sequences: u32, // of this launch
    vocab: u32, // V
    logits_stride: u32, // in groups of 4
    seen_stride: u32,
    chunks: u32, // C, of a sequence
    sorted_stride: u32,
    pairs: u32, // pairs of bits in C - 1
    cap: f32, // with `capped`: soft cap of the logits; the next is its reciprocal
    inverse_cap: f32,
}

struct SamplingState {
    temperature: f32, // 0: greedy
    top_p: f32, // 1: all
    repetition_penalty: f32, // 1: none
    top_k: u32, // 0: all
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> sampling: SamplingState;
@group(0) @binding(2) var<storage, read_write> seen: array<u32>;
@group(0) @binding(3) var<storage, read_write> sorted: array<u32>;

const LOWEST: f32 = -3.4028234e38;

fn logit_of(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

// The weight of a token beside one with the logit `top`.
fn weight_of(logit: f32, top: f32) -> f32 {
    let rate = 1.0 / select(sampling.temperature, 1.0, sampling.temperature == 0.0);
    return select(exp((logit - top) * rate), 1.0, logit == top); // the largest may be infinite
}
