// Routing statistics of a mixture layer over a step, and the loss-free balancing bias    counts, capacities (E) u32
//
//   tally         adds a micro-batch to the layer's tally row: choices per expert, total choices, dropped choices
//   update_bias   b_e += rate · sign(mean choices − choices_e), once per step; skipped on overflow, while the run is
//                 halted, or if nothing was chosen
//
// The layout of the row is `ops::tally::TallyColumns`. Each entry point is a single workgroup: E is at most 512.
// Numerics: exact, in integers. The mean Σ / E may be fractional; with q = ⌊Σ / E⌋, choices_e is above the mean iff it
// is above q, and below it iff it is below q, or equal to q where E does not divide Σ. No product can exceed 32 bits.
// Source: Wang et al., "Auxiliary-loss-free load balancing strategy for mixture-of-experts", 2024, algorithm 1.

import package::lib::best::row_count;
import package::lib::step_state::StepState;
import package::tile::LANES;

const ROWS: u32 = 0x7fffffffu; // the bits of a capacity that count rows: see ops/permute/config.rs

struct Params {
    experts: u32,
    last: u32, // column where the choices of the last micro-batch start
    totals: u32, // column of the totals: dropped, then choices
    rate: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> counts: array<u32>; // (E)
@group(0) @binding(2) var<storage, read> capacities: array<u32>; // (E)
@group(0) @binding(3) var<storage, read_write> tally_row: array<u32>;

@group(0) @binding(1) var<storage, read> tally_in: array<u32>;
@group(0) @binding(2) var<storage, read_write> bias: array<f32>; // (E)
@group(0) @binding(3) var<storage, read> state: StepState;

@compute @workgroup_size(LANES)
fn tally(@builtin(local_invocation_index) lane: u32) {
    var choices = 0u;
    var dropped = 0u;
    for (var e = lane; e < params.experts; e += LANES) {
        let count = counts[e];
        tally_row[e] += count;
        tally_row[params.last + e] = count;
        choices += count;
        dropped += count - min(count, capacities[e] & ROWS);
    }
    let all_choices = row_count(choices, lane);
    let all_dropped = row_count(dropped, lane);
    if (lane == 0u) {
        tally_row[params.totals] += all_dropped;
        tally_row[params.totals + 1u] += all_choices;
    }
}

@compute @workgroup_size(LANES)
fn update_bias(@builtin(local_invocation_index) lane: u32) {
    var choices = 0u;
    for (var e = lane; e < params.experts; e += LANES) {
        choices += tally_in[e];
    }
    let total = row_count(choices, lane);
    if (total == 0u || state.is_overflow != 0u || state.halt != 0u) {
        return;
    }
    let quotient = total / params.experts;
    let divides = quotient * params.experts == total;
    for (var e = lane; e < params.experts; e += LANES) {
        let count = tally_in[e];
        if (count > quotient) {
            bias[e] -= params.rate;
        } else if (count < quotient || !divides) {
            bias[e] += params.rate;
        }
    }
}
