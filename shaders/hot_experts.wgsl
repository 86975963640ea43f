// Row capacities of experts, when the busiest ones get more rows than the others           counts, capacities (E) u32
//
//   hot_experts        capacities[e] = capacity if fewer than `hot` experts are busier than e, else cold_capacity
//   hot_experts_last   groups[e]: the place of e where cold experts come first and hot ones last, both in order;
//                      cold_offsets[e] (E + 1): its first row among those of cold experts, of which a hot one has none;
//                      hot_offsets[s] (hot + 1): the first row of hot expert number s among those of hot ones
//
// Expert f is busier than e if it was chosen more often in the step, or equally often and f < e. Capacities are
// reassigned at the end of steps that are powers of two below update_step, multiples of update_step, or
// checkpoint_step; other steps leave them unchanged, and so do steps that overflowed and a halted run, as with the
// weights. `state.step` already includes the current step: finish_step of grad_norm ran before.
// In `capacities` the hot experts have the largest words: `capacity` may have a bit above its number of rows for that.
// One invocation per expert counts the larger ones: E² comparisons, but no sort. hot_experts_last is one workgroup,
// whose lane 0 numbers the experts.

import package::lib::grid::linear_index;
import package::lib::step_state::StepState;
import package::tile::LANES;

struct Params {
    experts: u32,
    hot: u32,
    capacity: u32,
    cold_capacity: u32,
    update_step: u32,
    checkpoint_step: u32, // 0: none
    counts_offset: u32, // in 32-bit words
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> counts: array<u32>; // (E), over the step
@group(0) @binding(2) var<storage, read> state: StepState;
@group(0) @binding(3) var<storage, read_write> capacities: array<u32>; // (E)

@group(0) @binding(1) var<storage, read> chosen: array<u32>; // capacities (E)
@group(0) @binding(2) var<storage, read_write> groups: array<u32>; // (E)
@group(0) @binding(3) var<storage, read_write> cold_offsets: array<u32>; // (E + 1)
@group(0) @binding(4) var<storage, read_write> hot_offsets: array<u32>; // (hot + 1)

@compute @workgroup_size(LANES)
fn hot_experts(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let expert = linear_index(workgroup) * LANES + lane;
    let is_skipped = state.is_overflow != 0u || state.halt != 0u;
    if (expert >= params.experts || is_skipped || !is_time(state.step)) {
        return;
    }
    let mine = counts[params.counts_offset + expert];
    var busier = 0u;
    for (var other = 0u; other < params.experts; other++) {
        let count = counts[params.counts_offset + other];
        busier += select(0u, 1u, count > mine || (count == mine && other < expert));
    }
    capacities[expert] = select(params.cold_capacity, params.capacity, busier < params.hot);
}

fn is_time(step: u32) -> bool {
    let is_early = step < params.update_step && countOneBits(step) == 1u;
    let is_checkpoint = params.checkpoint_step != 0u && step == params.checkpoint_step;
    return is_early || is_checkpoint || step % params.update_step == 0u;
}

@compute @workgroup_size(LANES)
fn hot_experts_last(@builtin(local_invocation_index) lane: u32) {
    for (var expert = lane; expert < params.experts; expert += LANES) {
        let mine = chosen[expert];
        var larger = 0u;
        for (var other = 0u; other < params.experts; other++) {
            larger += select(0u, 1u, chosen[other] > mine || (chosen[other] == mine && other < expert));
        }
        groups[expert] = select(0u, 1u, larger < params.hot); // whether it is hot
    }
    storageBarrier();
    if (lane != 0u) {
        return;
    }
    var cold = 0u;
    var hot = 0u;
    for (var expert = 0u; expert < params.experts; expert++) {
        cold_offsets[expert] = cold * params.cold_capacity;
        let is_hot = groups[expert] == 1u;
        groups[expert] = select(cold, params.experts - params.hot + hot, is_hot);
        if (is_hot) {
            hot_offsets[hot] = hot * params.capacity;
        }
        hot += select(0u, 1u, is_hot);
        cold += select(1u, 0u, is_hot);
    }
    cold_offsets[params.experts] = cold * params.cold_capacity;
    hot_offsets[params.hot] = hot * params.capacity;
}
