// The operations of shaders/permute/fused.wgsl, composed from single-purpose kernels, one pass over memory each
//                                               choice t·k + j is choice j of token t; tensors by choice are (N·k, D)
//   repeat_rows      y[t·k + j] = x[t]
//   gather_rows      y[r] = x[index[r]], 0 where index is NONE
//   sum_choices      y[t] [+]= Σ_j x[t·k + j]
//   weigh_choices    y[t] = Σ_j gate(t, j) · x[t·k + j] [+ residual[t]]
//   scale_rows       y[t·k + j] = gate(t, j) · x[t·k + j]
//   dot_rows         d_gates(t, j) = <x[t·k + j], z[t·k + j]>
//
// Each sum has the order of the fused kernel, so the bits are the same; the difference is memory traffic: intermediate
// (N·k, D) tensors are written and read. dot_rows: one workgroup per row; software tier: one invocation (lib/reduce).
// The others: a workgroup stays within one row, an invocation computes 4 columns. Numerics: f32 between load and store.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::lib::reduce::{STEP, first_of, row_of, row_sum};
import package::tile::LANES;

const NONE: u32 = 0xffffffffu;

struct Params {
    rows: u32, // of the result; N·k for dot_rows
    chosen: u32, // k
    stride4: u32,
    gates_stride: u32, // in elements
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@group(0) @binding(3) var<storage, read> index: array<u32>; // (rows)
@group(0) @binding(3) var<storage, read> gates: array<f32>; // (N, k)
@if(residual) @group(0) @binding(4) var<storage, read> residual: array<Packed>; // (N, D)

@group(0) @binding(2) var<storage, read> z: array<Packed>; // (N·k, D)
@group(0) @binding(3) var<storage, read_write> d_gates: array<f32>; // (N, k)

@compute @workgroup_size(LANES)
fn repeat_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.is_inside) {
        y[at(place.row, place)] = x[at(place.row / params.chosen, place)];
    }
}

@compute @workgroup_size(LANES)
fn gather_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    let origin = index[place.row];
    var value = store4(vec4<f32>(0.0));
    if (origin != NONE) {
        value = x[at(origin, place)];
    }
    if (place.is_inside) {
        y[at(place.row, place)] = value;
    }
}

@compute @workgroup_size(LANES)
fn sum_choices(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    var sum = vec4<f32>(0.0);
    for (var j = 0u; j < params.chosen; j++) {
        sum += load4(x[at(place.row * params.chosen + j, place)]);
    }
    if (place.is_inside) {
        @if(accumulate) { sum += load4(y[at(place.row, place)]); }
        y[at(place.row, place)] = store4(sum);
    }
}

@compute @workgroup_size(LANES)
fn weigh_choices(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    var sum = vec4<f32>(0.0);
    for (var j = 0u; j < params.chosen; j++) {
        let gate = gates[place.row * params.gates_stride + j];
        sum = fma(vec4<f32>(gate), load4(x[at(place.row * params.chosen + j, place)]), sum);
    }
    if (place.is_inside) {
        @if(residual) { sum += load4(residual[at(place.row, place)]); }
        y[at(place.row, place)] = store4(sum);
    }
}

@compute @workgroup_size(LANES)
fn scale_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    let gate = gates[(place.row / params.chosen) * params.gates_stride + place.row % params.chosen];
    if (place.is_inside) {
        y[at(place.row, place)] = store4(gate * load4(x[at(place.row, place)]));
    }
}

@compute @workgroup_size(LANES)
fn dot_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let item = row_of(linear_index(workgroup), lane);
    let row = min(item, params.rows - 1u);
    var sum = vec4<f32>(0.0);
    for (var column = first_of(lane); column < params.stride4; column += STEP) {
        let i = row * params.stride4 + column;
        sum = fma(load4(x[i]), load4(z[i]), sum);
    }
    let total = row_sum(dot(sum, vec4<f32>(1.0)), lane);
    if (item >= params.rows || first_of(lane) != 0u) {
        return;
    }
    let first = (row / params.chosen) * params.gates_stride;
    let j = row % params.chosen;
    d_gates[first + j] = total;
    if (j + 1u == params.chosen) {
        for (var pad = params.chosen; pad < params.gates_stride; pad++) {
            d_gates[first + pad] = 0.0;
        }
    }
}

// The row of a workgroup and the 4 columns of an invocation, clamped to the last ones; stores are skipped past the end.
struct Place {
    row: u32,
    column: u32, // in groups of 4
    is_inside: bool,
}

fn place_of(workgroup: vec3<u32>, lane: u32) -> Place {
    let groups = (params.stride4 + LANES - 1u) / LANES; // workgroups per row
    let i = linear_index(workgroup);
    let row = i / groups;
    let column = (i % groups) * LANES + lane;
    let is_inside = row < params.rows && column < params.stride4;
    return Place(min(row, params.rows - 1u), min(column, params.stride4 - 1u), is_inside);
}

fn at(row: u32, place: Place) -> u32 {
    return row * params.stride4 + place.column;
}
