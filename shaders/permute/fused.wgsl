// Permutation between token order and expert order, one pass each          x, y (N, D), rows (R, D), gates (N, k) f32
//
//   permute            rows[r] = x[t] where choice j of token t has row r, 0 where no choice has it
//   permute_backward   dx[t] [+]= Σ_j d_rows[place(t, j)]
//   combine            y[t] = Σ_j gate(t, j) · rows[place(t, j)] [+ residual[t]]
//   combine_backward   d_rows[r] = gate(t, j) · dy[t];   d_gates(t, j) = <dy[t], rows[place(t, j)]>
//
// `places` and its inverse `sources` come from sort.wgsl; a dropped choice has no place, adds nothing and gets no
// gradient. Sums over choices are gathers in the order of j: no two invocations write one element, and each run gives
// the same bits. permute, permute_backward, combine: a workgroup stays within one row and an invocation computes 4
// columns, so places and gates are loaded from uniform addresses. combine_backward: one workgroup per row; software
// tier: one invocation (lib/reduce). Numerics: f32 between load and store; products are added by fma here and in
// benches/unfused/permute.wgsl, so that both give the same bits.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum};
import package::tile::LANES;

const NONE: u32 = 0xffffffffu;
const CLEARED: u32 = 16u; // gates that each extra item of combine_backward clears; ops/permute.rs has the same

struct Params {
    tokens: u32, // N
    chosen: u32, // k
    rows: u32, // R
    stride4: u32, // of x, y and rows
    gates_stride: u32, // in elements
}

@group(0) @binding(0) var<uniform> params: Params;

@group(0) @binding(1) var<storage, read> x: array<Packed>; // (N, D)
@group(0) @binding(2) var<storage, read> sources: array<u32>; // (R): choice t·k + j
@group(0) @binding(3) var<storage, read_write> rows_out: array<Packed>; // (R, D)

@group(0) @binding(1) var<storage, read> d_rows: array<Packed>; // (R, D)
@group(0) @binding(2) var<storage, read> places: array<u32>; // (N·k)
@group(0) @binding(3) var<storage, read_write> dx: array<Packed>; // (N, D)

@group(0) @binding(1) var<storage, read> rows: array<Packed>; // (R, D)
@group(0) @binding(3) var<storage, read_write> y: array<Packed>; // (N, D)
@group(0) @binding(4) var<storage, read> gates: array<f32>; // (N, k)
@if(residual) @group(0) @binding(5) var<storage, read> residual: array<Packed>; // (N, D)

@group(0) @binding(3) var<storage, read> choice_places: array<u32>; // (N·k)
@group(0) @binding(5) var<storage, read> dy: array<Packed>; // (N, D)
@group(0) @binding(6) var<storage, read_write> d_rows_out: array<Packed>; // (R, D)
@group(0) @binding(7) var<storage, read_write> d_gates: array<f32>; // (N, k)

@compute @workgroup_size(LANES)
fn permute(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane, params.rows);
    let source = sources[place.row];
    var value = store4(vec4<f32>(0.0));
    if (source != NONE) {
        value = x[(source / params.chosen) * params.stride4 + place.column];
    }
    if (place.is_inside) {
        rows_out[place.row * params.stride4 + place.column] = value;
    }
}

@compute @workgroup_size(LANES)
fn permute_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane, params.tokens);
    var sum = vec4<f32>(0.0);
    for (var choice = place.row * params.chosen; choice < (place.row + 1u) * params.chosen; choice++) {
        let row = places[choice];
        if (row != NONE) {
            sum += load4(d_rows[row * params.stride4 + place.column]);
        }
    }
    if (place.is_inside) {
        let at = place.row * params.stride4 + place.column;
        @if(accumulate) { sum += load4(dx[at]); }
        dx[at] = store4(sum);
    }
}

@compute @workgroup_size(LANES)
fn combine(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane, params.tokens);
    var sum = vec4<f32>(0.0);
    for (var j = 0u; j < params.chosen; j++) {
        let row = places[place.row * params.chosen + j];
        let gate = gates[place.row * params.gates_stride + j];
        if (row != NONE) {
            sum = fma(vec4<f32>(gate), load4(rows[row * params.stride4 + place.column]), sum);
        }
    }
    if (place.is_inside) {
        let at = place.row * params.stride4 + place.column;
        @if(residual) { sum += load4(residual[at]); }
        y[at] = store4(sum);
    }
}

// Items are the R rows, followed by groups of CLEARED gates: those that no row writes are set to zero.
@compute @workgroup_size(LANES)
fn combine_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        for (var i = first; i < CLEARED; i += STEP) {
            clear_gate((row - params.rows) * CLEARED + i);
        }
        return;
    }
    let source = sources[row];
    let is_claimed = source != NONE;
    let choice = select(0u, source, is_claimed);
    let token = choice / params.chosen;
    let gate_at = token * params.gates_stride + choice % params.chosen;
    let gate = gates[gate_at];
    var sum = vec4<f32>(0.0);
    for (var column = first; column < params.stride4; column += STEP) {
        let incoming = load4(dy[token * params.stride4 + column]);
        let at = row * params.stride4 + column;
        sum = fma(incoming, load4(rows[at]), sum);
        d_rows_out[at] = store4(select(vec4<f32>(0.0), gate * incoming, is_claimed));
    }
    let total = row_sum(dot(sum, vec4<f32>(1.0)), lane);
    if (is_claimed && first == 0u) {
        d_gates[gate_at] = total;
    }
}

// Zeroes a gate gradient that is padding or belongs to a dropped choice.
fn clear_gate(index: u32) {
    let token = index / params.gates_stride;
    let j = index % params.gates_stride;
    if (token >= params.tokens) {
        return;
    }
    var is_kept = false;
    if (j < params.chosen) {
        is_kept = choice_places[token * params.chosen + j] != NONE;
    }
    if (!is_kept) {
        d_gates[index] = 0.0;
    }
}

// The row of a workgroup and the 4 columns of an invocation, clamped to the last ones; stores are skipped past the end.
struct Place {
    row: u32,
    column: u32, // in groups of 4
    is_inside: bool,
}

fn place_of(workgroup: vec3<u32>, lane: u32, count: u32) -> Place {
    let groups = (params.stride4 + LANES - 1u) / LANES; // workgroups per row
    let index = linear_index(workgroup);
    let row = index / groups;
    let column = (index % groups) * LANES + lane;
    let is_inside = row < count && column < params.stride4;
    return Place(min(row, count - 1u), min(column, params.stride4 - 1u), is_inside);
}
