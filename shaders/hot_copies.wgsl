// Copies of the hot experts' matrices, and what is summed over them     stack, copies: matrices of `matrix` words each
//
//   hot_copies             copies[slot] = stack[expert]           words of any storage type
//   hot_copies_backward    stack[expert] += copies[slot]          gradients, f32
//
// Both work on the hot experts of which this rank has a part in the bound range of the stack, and whose slots are
// bound. A hot expert's slot is its place behind the cold ones, from groups (hot_experts.wgsl). Words of other experts'
// slots are left as they are. An invocation moves WORDS consecutive words of the range. Each element of the stack is
// written by one invocation.

import package::lib::grid::linear_index;
import package::tile::LANES;

const WORDS: u32 = 4u; // ops/hot_copies.rs has the same

struct Params {
    first_expert: u32, // the expert that the range's matrix number 0 belongs to
    cold: u32, // how many experts are cold
    first_slot: u32,
    slots: u32,
    matrix: u32, // words of a matrix
    start: u32, // the first word of the range, counted from matrix number 0
    words: u32, // in the range
    stack_offset: u32, // in words
    copies_offset: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> groups: array<u32>; // (E)

@group(0) @binding(2) var<storage, read> stack: array<u32>;
@group(0) @binding(3) var<storage, read_write> copies: array<u32>;

@group(0) @binding(2) var<storage, read> sums: array<f32>;
@group(0) @binding(3) var<storage, read_write> gradients: array<f32>;

@compute @workgroup_size(LANES)
fn hot_copies(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = (linear_index(workgroup) * LANES + lane) * WORDS;
    for (var word = first; word < min(first + WORDS, params.words); word++) {
        let copy = copy_of(word);
        if (copy.is_bound) {
            copies[copy.word] = stack[params.stack_offset + word];
        }
    }
}

@compute @workgroup_size(LANES)
fn hot_copies_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = (linear_index(workgroup) * LANES + lane) * WORDS;
    for (var word = first; word < min(first + WORDS, params.words); word++) {
        let copy = copy_of(word);
        if (copy.is_bound) {
            gradients[params.stack_offset + word] += sums[copy.word];
        }
    }
}

struct Copy {
    word: u32,
    is_bound: bool,
}

// The copy of a word of the range.
fn copy_of(word: u32) -> Copy {
    let at = params.start + word;
    let group = groups[params.first_expert + at / params.matrix];
    let slot = group - params.cold; // for a cold expert, larger than any slot
    let is_bound = group >= params.cold && slot >= params.first_slot && slot - params.first_slot < params.slots;
    let matrix = select(0u, slot - params.first_slot, is_bound);
    return Copy(params.copies_offset + matrix * params.matrix + at % params.matrix, is_bound);
}
