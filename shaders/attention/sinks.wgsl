// Attention sinks: each head has a learned logit beside the scores, which has no key and no value,
//
//   p_j = exp(s_j) / (exp(sink) + Σ exp(s))
//
// so the weights of a query may add up to less than 1. An online softmax starts from the sink, as if it were a first
// key whose value is zero, so lse = log(exp(sink) + Σ exp(s)).
//
//   sinks (heads) read
//
// Sources: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2024; OpenAI, "gpt-oss", 2025.

import package::lib::attention::{LOG2_E, LOWEST};
import package::lib::element::{Packed, load4};

@group(0) @binding(12) var<storage, read> sinks: array<Packed>;

// The sink of a head, times log2 e as scores are. As the first running maximum it is no lower than `LOWEST`.
fn sink_of(head: u32) -> f32 {
    let four = load4(sinks[head / 4u]);
    // A vector that is indexed by a variable would lie in memory.
    let place = head % 4u;
    let pair = select(four.xz, four.yw, place % 2u == 1u);
    let sink = LOG2_E * select(pair.x, pair.y, place >= 2u);
    return select(sink, LOWEST, sink < LOWEST); // max may hide a NaN (see lib/bits)
}
