// Which blocks of keys contribute to which part of dq (attention/portable/backward_kv.wgsl with `split`). Parts take
// blocks in turns, forwards and then backwards, so that the parts are equal although many queries see early keys and
// few see late ones.

import package::attention::params::params;

// Block i of part `part`.
fn block_of(part: u32, i: u32) -> u32 {
    return i * params.parts + select(part, params.parts - 1u - part, i % 2u == 1u);
}

// The first block of a part that is not before block `first`.
fn next_block(part: u32, first: u32) -> u32 {
    let turn = first / params.parts;
    let block = block_of(part, turn);
    return select(block_of(part, turn + 1u), block, block >= first);
}
