// Embedding look-up:   y[n] = table[ids[n]]                                     table (V, D), ids (N) u32, y (N, D)
//
//   embedding            gathers rows; with `accumulate` adds them to y
//                        with `scaled` times a factor, as is the gradient
//                        with `sliced` a range of the table's columns, as wide as y; the others are not read
//   embedding_backward   dtable[v] += Σ dy[n] over the tokens n with ids[n] = v;   dy (N, D), dtable (V, D) f32
//
// A table over the binding limit is split into parts of whole rows, one launch each, which skips ids outside its part.
// The backward pass walks `order` (N), the token positions sorted by id (prepared with the batch). The invocation at
// the first token of a run of equal ids owns that row of the table and sums the run in order: no atomics, the same bits
// each run. One invocation per token and group of 4 columns, columns fastest. Numerics: sums in f32.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    tokens: u32,
    stride4: u32,
    first_row: u32, // of this part
    rows: u32, // in this part
    factor: f32, // with `scaled`
    table_stride4: u32, // with `sliced`
    table_offset4: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>; // (N)
@group(0) @binding(2) var<storage, read> table: array<Packed>; // (rows, D)
@group(0) @binding(3) var<storage, read_write> y: array<Packed>; // (N, D)

@group(0) @binding(2) var<storage, read> order: array<u32>; // (N)
@group(0) @binding(3) var<storage, read> dy: array<Packed>; // (N, D)
@group(0) @binding(4) var<storage, read_write> dtable: array<vec4<f32>>; // (rows, D)

// The token and group of 4 columns of an invocation; columns vary fastest.
struct Place {
    token: u32,
    column4: u32,
}

fn place_of(workgroup: vec3<u32>, lane: u32) -> Place {
    let groups = (params.stride4 + LANES - 1u) / LANES; // workgroups per row
    let index = linear_index(workgroup);
    return Place(index / groups, (index % groups) * LANES + lane);
}

// Of a group of columns in a row of the table.
fn table_place(row: u32, column4: u32) -> u32 {
    @if(!sliced) { return row * params.stride4 + column4; }
    @if(sliced) { return row * params.table_stride4 + params.table_offset4 + column4; }
}

@compute @workgroup_size(LANES)
fn embedding(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.token >= params.tokens || place.column4 >= params.stride4) {
        return;
    }
    let row = ids[place.token] - params.first_row; // ids below the part wrap around and fail the test
    if (row < params.rows) {
        let at = place.token * params.stride4 + place.column4;
        let source = table_place(row, place.column4);
        @if(!scaled && !accumulate) { y[at] = table[source]; }
        @if(scaled && !accumulate) { y[at] = store4(params.factor * load4(table[source])); }
        @if(!scaled && accumulate) { y[at] = store4(load4(y[at]) + load4(table[source])); }
        @if(scaled && accumulate) { y[at] = store4(load4(y[at]) + params.factor * load4(table[source])); }
    }
}

@compute @workgroup_size(LANES)
fn embedding_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.token >= params.tokens || place.column4 >= params.stride4) {
        return;
    }
    let id = ids[order[place.token]];
    let row = id - params.first_row;
    if (row >= params.rows || (place.token > 0u && ids[order[place.token - 1u]] == id)) {
        return;
    }
    var sum = vec4<f32>(0.0);
    for (var i = place.token; i < params.tokens; i++) {
        let token = order[i];
        if (ids[token] != id) {
            break;
        }
        sum += load4(dy[token * params.stride4 + place.column4]);
    }
    @if(scaled) { sum *= params.factor; }
    dtable[table_place(row, place.column4)] += sum;
}
