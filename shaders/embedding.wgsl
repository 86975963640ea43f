// Table look-up:   y[n] = table[id[n]]                                              table (V, D), id (N), y (N, D)
//
//   embedding            gather, or add what is gathered to y (`accumulate`)
//   embedding_backward   dtable[v] += Σ of dy[n] over the tokens n with id v
//
// A table too large for one binding comes as several parts, one launch each: a launch handles the ids of its part and
// leaves the others alone.
// The backward walks `order`, the token positions sorted by id (made with the batch). The invocation that meets the
// first token of an id owns that row of the table and adds the id's tokens in order: no atomics, the same sum each run.
// Invocations side by side own neighbouring columns of one row.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    tokens: u32,
    stride4: u32,
    first_row: u32, // of this part
    rows: u32, // in this part
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>; // (N)
@group(0) @binding(2) var<storage, read> table: array<Packed>; // (rows, D)
@group(0) @binding(3) var<storage, read_write> y: array<Packed>; // (N, D)

@group(0) @binding(2) var<storage, read> order: array<u32>; // (N)
@group(0) @binding(3) var<storage, read> dy: array<Packed>; // (N, D)
@group(0) @binding(4) var<storage, read_write> dtable: array<vec4<f32>>; // (rows, D)

// One token and one group of 4 columns for each invocation, columns first.
struct Place {
    token: u32,
    column4: u32,
}

fn place_of(workgroup: vec3<u32>, lane: u32) -> Place {
    let groups = (params.stride4 + LANES - 1u) / LANES; // workgroups a row takes
    let index = linear_index(workgroup);
    return Place(index / groups, (index % groups) * LANES + lane);
}

@compute @workgroup_size(LANES)
fn embedding(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(workgroup, lane);
    if (place.token >= params.tokens || place.column4 >= params.stride4) {
        return;
    }
    let row = ids[place.token] - params.first_row; // wraps below the part, and is then past its end
    if (row < params.rows) {
        let at = place.token * params.stride4 + place.column4;
        let value = table[row * params.stride4 + place.column4];
        @if(accumulate) { y[at] = store4(load4(y[at]) + load4(value)); }
        @if(!accumulate) { y[at] = value; }
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
    dtable[row * params.stride4 + place.column4] += sum;
}
