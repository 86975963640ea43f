// Which elements dropout drops: those whose random word is below the threshold 2^32 p. No mask is stored; whoever needs
// it draws it again from what identifies an element.

import package::lib::philox::philox;

// The micro-batch under way, on the device: `train` records the kernel that counts it.
struct DropoutState {
    step: u32, // counted from 1
    micro_step: u32, // of the step, counted from 0
}

// Words for 4 neighbours: number `group` of vector `index`, at dropout site `site` of the model. The last counter is
// the upper half of `random::DROPOUT_STREAM`, so no other use of the seed sees these words.
fn dropout_words(index: u32, group: u32, site: u32, state: DropoutState, seed: vec2<u32>) -> vec4<u32> {
    let stream = 0x80000000u | (site << 16u) | (state.micro_step & 0xffffu);
    return philox(vec4<u32>(index, state.step, group, stream), seed);
}
