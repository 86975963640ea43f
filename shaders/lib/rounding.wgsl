// The rounding of updated weights to their storage. In f32 there is none. In bfloat16, where the weights have no f32
// copy, it is stochastic: to nearest, a weight would lose every update smaller than half the distance to its neighbour.
//
// A bfloat16 is the upper half of an f32. 16 random bits are added to the lower half, and what remains of it is cut
// off: the result is one of the two neighbours, in proportion to how near the value is to each, so its mean is the
// value.
// Representable values, infinities and NaN stay what they are: the random bits are too few to change the upper half of
// one that ends in zeros, and a carry into the sign, which would turn a NaN into zero, is cut off. (A NaN that only its
// lower half tells from infinity may become infinity.) Beyond the largest finite bfloat16 the upper neighbour is
// infinity.
// The bits are a pure function of seed, update and the weight's place in the whole model, the same as `RoundingBits` in
// tests/draws. Where ranks hold some columns of a matrix, or rows of several, runs of a launch lie apart in the whole
// model.
// Source: Gupta et al., "Deep learning with limited numerical precision", ICML 2015.

import package::lib::element::{Packed, store4};
import package::lib::philox::philox;

const STREAM_HIGH: u32 = 0x40000000u; // upper word of ROUNDING_STREAM in src/gpu/random.rs

// Places of the weights of a launch, in groups of 4. The first run of consecutive places may have begun before them.
struct Places {
    first4: u32,   // of the first group
    skipped4: u32, // groups of the first run before it
    run4: u32,     // groups of a run
    gap4: u32,     // places between two runs
}

// `i` counts groups of 4 weights of the launch, `update` the updates of the run.
@if(f32)
fn round4(value: vec4<f32>, i: u32, places: Places, update: u32, seed: vec2<u32>) -> Packed {
    return store4(value);
}

@if(!f32)
fn round4(value: vec4<f32>, i: u32, places: Places, update: u32, seed: vec2<u32>) -> Packed {
    let place = places.first4 + i + (i + places.skipped4) / places.run4 * places.gap4;
    let words = philox(vec4<u32>(place, update, 0u, STREAM_HIGH), seed);
    let bits = bitcast<vec4<u32>>(value);
    let room = vec4<u32>(0x7fffffffu) - (bits & vec4<u32>(0x7fffffffu));
    let rounded = bits + min(words >> vec4<u32>(16u), room);
    return store4(bitcast<vec4<f32>>(rounded & vec4<u32>(0xffff0000u)));
}
