// Row capacities of experts, when the busiest ones get more rows than the others           counts, capacities (E) u32
//
//   capacities[e] = capacity if fewer than `hot` experts are busier than e, else cold_capacity
//
// Expert f is busier than e if it was chosen more often in the step, or equally often and f < e. Capacities are
// reassigned at the end of steps that are powers of two below update_step, multiples of update_step, or
// checkpoint_step; other steps leave them unchanged, and so do steps that overflowed and a halted run, as with the
// weights. `state.step` already includes the current step: finish_step of grad_norm ran before.
// One invocation per expert counts the busier ones: E² comparisons, but no sort and no barrier.

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
