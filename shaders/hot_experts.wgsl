// How many rows each expert has where the busiest have more than the others:
//
//   capacities[e] = capacity if fewer than `hot` experts are busier than e, else cold_capacity
//
// f is busier than e if it was chosen more often, or as often and comes first. Chosen anew at the end of the steps that
// are powers of two below update_step, multiples of update_step, or checkpoint_step; at others the capacities stay.
// One invocation has an expert and counts those that are busier: no sort, no exchange. `state.step` counts steps done,
// the one under way included, since finish_step of grad_norm ran before.

import package::lib::grid::linear_index;
import package::lib::step_state::StepState;
import package::tile::LANES;

struct Params {
    experts: u32,
    hot: u32,
    capacity: u32,
    cold_capacity: u32,
    update_step: u32,
    checkpoint_step: u32, // 0: there is none
    counts_offset: u32, // words
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> counts: array<u32>; // (E), of the step
@group(0) @binding(2) var<storage, read> state: StepState;
@group(0) @binding(3) var<storage, read_write> capacities: array<u32>; // (E)

@compute @workgroup_size(LANES)
fn hot_experts(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let expert = linear_index(workgroup) * LANES + lane;
    if (expert >= params.experts || !is_time(state.step)) {
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
