// Random words of dropout. An element is dropped if its word is below the threshold 2^32 p. No mask is stored: every
// pass that needs it redraws it from the element's coordinates.

import package::lib::philox::philox;

// The current micro-batch, counted on the device by count_micro_step in dropout.wgsl; `ops::dropout` holds the same
// struct in Rust.
struct DropoutState {
    step: u32, // counted from 1
    micro_step: u32, // within the step, counted from 0
}

// Words for the 4 elements of group `group` in vector `index`, at dropout site `site` of the model. The top bit of the
// last counter word is that of `random::DROPOUT_STREAM`, so no other use of the seed draws these words.
fn dropout_words(index: u32, group: u32, site: u32, state: DropoutState, seed: vec2<u32>) -> vec4<u32> {
    let stream = 0x80000000u | (site << 16u) | (state.micro_step & 0xffffu);
    return philox(vec4<u32>(index, state.step, group, stream), seed);
}
