// The states of the gated delta rule from chunk to chunk, portable tier (tensors in gated_delta_rule/params.wgsl):
//
//   states           for each chunk, from the first: x[t] = beta[t] (v[t] − before[t] Sᵀ k[t]),  d = inverse · x,
//                    S ← before[last] S + Σ_t after[t] k[t] d[t]ᵀ
//   states_backward  for each chunk, from the last: u[i] = Σ_t scores[t, i] dout[t] + after[i] dSᵀ k[i],
//                    r = inverseᵀ · u,
//                    dS ← before[last] dS + Σ_t before[t] (scale q[t] dout[t]ᵀ − beta[t] k[t] r[t]ᵀ)
//
// S before each chunk and after the last one, d, dS after each chunk and r = dwritten are left in scratch. A segment
// starts from the state that the one before has left, or its gradient from that which the one after has. With
// `final_state` S after the last chunk is left in final_state (sequences · heads · 4 d4, 4 v4).
// A workgroup owns 4 · COLUMNS columns of the state of one head in one sequence, which it keeps in workgroup memory,
// together with as many columns of x, d or their gradients; the other factors are staged (gated_delta_rule/product).
// Numerics: f32, in a fixed order.
// Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024, section 3.3.

import package::gated_delta_rule::params::{Chunk, carry_of, chunk_of, gates_of, params, scratch, state_of, values_of};
import package::gated_delta_rule::product::{GROUPS, Matrix, Place, Quad, RIGHT, from_column, stage};
import package::gated_delta_rule::product::{after_of, gates_of_rows, keys_of, memory, multiply, place_of};
import package::gated_delta_rule::product::{queries_of, row_of, scaled_rows};
import package::gated_delta_rule::product::{square_matrix, transposed};
@if(gradient) import package::gated_delta_rule::product::{before_of, betas_of, dout_of, load};
import package::lib::element::{Packed, load4};
import package::tile::{CHUNK, COLUMNS, D4, LANES, STEP};

@if(!gradient) @group(0) @binding(4) var<storage, read> v: array<Packed>; // (N, heads · 4 v4)
@if(final_state) @group(0) @binding(5) var<storage, read_write> final_state: array<vec4<f32>>;

const DEPTH: u32 = (4u * D4 + STEP - 1u) / STEP * STEP; // rows of the state, in whole steps
const STATE: u32 = RIGHT; // where the state is in workgroup memory: row by row, COLUMNS vec4s each
const VALUES: u32 = STATE + DEPTH * COLUMNS; // and where x, d and their like are

// The columns of a head that a workgroup owns.
struct Owned {
    head: u32,
    first: u32, // group of columns
}

fn set_values(place: Place, values: Quad) {
    let to = VALUES + 4u * place.group * COLUMNS + place.column;
    memory[to] = values.x;
    memory[to + COLUMNS] = values.y;
    memory[to + 2u * COLUMNS] = values.z;
    memory[to + 3u * COLUMNS] = values.w;
}

// Starts from the state that starts at `at` in scratch, or from zeros.
fn get_state(is_carried: bool, at: u32, owned: Owned, lane: u32) {
    for (var i = lane; i < DEPTH * COLUMNS; i += LANES) {
        var value = vec4<f32>();
        if (is_carried && i < 4u * D4 * COLUMNS && owned.first + i % COLUMNS < params.v4) {
            value = scratch[at + i / COLUMNS * params.v4 + owned.first + i % COLUMNS];
        }
        memory[STATE + i] = value;
    }
}

// Copies the owned columns of the state to that which starts at `to` in scratch.
fn put_state(to: u32, owned: Owned, lane: u32) {
    for (var i = lane; i < 4u * D4 * COLUMNS; i += LANES) {
        if (owned.first + i % COLUMNS < params.v4) {
            scratch[to + i / COLUMNS * params.v4 + owned.first + i % COLUMNS] = memory[STATE + i];
        }
    }
}

// sum + the product of a matrix and what is in workgroup memory from `right` on.
fn product_with(sum: Quad, a: Matrix, right: u32, terms: u32, place: Place) -> Quad {
    var s = sum;
    for (var k4 = 0u; 4u * k4 < terms; k4 += STEP / 4u) {
        stage(a, k4, 0u, GROUPS, place.lane);
        workgroupBarrier();
        s = multiply(s, right + 4u * k4 * COLUMNS, place);
        workgroupBarrier();
    }
    return s;
}

// The state times `share` plus Σ_t a[t] values[t]ᵀ.
fn add_outer(share: f32, a: Matrix, place: Place) {
    for (var block = 0u; block < params.d4; block += GROUPS) {
        let at = STATE + 4u * (block + place.group) * COLUMNS + place.column;
        let is_row = block + place.group < D4;
        var state: Quad;
        if (is_row) {
            state = Quad(
                share * memory[at],
                share * memory[at + COLUMNS],
                share * memory[at + 2u * COLUMNS],
                share * memory[at + 3u * COLUMNS],
            );
        }
        state = product_with(state, from_column(a, block), VALUES, params.chunk, place);
        if (is_row) {
            memory[at] = state.x;
            memory[at + COLUMNS] = state.y;
            memory[at + 2u * COLUMNS] = state.z;
            memory[at + 3u * COLUMNS] = state.w;
        }
    }
}

fn put_rows(first: u32, chunk: Chunk, owned: Owned, place: Place, values: Quad) {
    let column = owned.first + place.column;
    for (var r = 0u; r < 4u; r++) {
        let row = 4u * place.group + r;
        if (row < chunk.tokens && column < params.v4) {
            scratch[values_of(first, chunk.index, row, owned.head) + column] = row_of(values, r);
        }
    }
}

@if(!gradient)
@compute @workgroup_size(LANES)
fn gated_delta_rule_states(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(lane);
    let owned = Owned(workgroup.x, workgroup.z * COLUMNS);
    let head = owned.head;
    get_state(params.begin > 0u, carry_of(params.carry_in, workgroup.y, head), owned, lane);
    for (var i = 0u; i < params.chunks; i++) {
        let chunk = chunk_of(workgroup.y * params.chunks + i);
        workgroupBarrier();
        put_state(state_of(params.states, chunk.index, 0u, head), owned, lane);
        let keys = keys_of(chunk, head);
        let held = product_with(Quad(), transposed(keys), STATE, 4u * params.d4, place);
        let gates = gates_of_rows(chunk, head, place);
        set_values(place, Quad(
            missing(chunk, owned, place, 0u, gates.x, held.x),
            missing(chunk, owned, place, 1u, gates.y, held.y),
            missing(chunk, owned, place, 2u, gates.z, held.z),
            missing(chunk, owned, place, 3u, gates.w, held.w),
        ));
        let written =
            product_with(Quad(), transposed(square_matrix(params.inverse, chunk, head)), VALUES, params.chunk, place);
        put_rows(params.written, chunk, owned, place, written);
        set_values(place, scaled_rows(written, after_of(gates)));
        add_outer(scratch[gates_of(chunk.index, chunk.tokens - 1u, head)].z, keys, place);
    }
    workgroupBarrier();
    put_state(state_of(params.states, (workgroup.y + 1u) * params.chunks - 1u, 1u, head), owned, lane);
    if (params.begin + params.chunks * CHUNK < params.tokens) {
        put_state(carry_of(params.carry_out, workgroup.y, head), owned, lane);
    }
    @if(final_state) {
        let states = params.state_offset + (workgroup.y * params.all_heads + head) * 4u * D4 * params.v4;
        let to = states + owned.first;
        for (var i = lane; i < 4u * D4 * COLUMNS; i += LANES) {
            if (owned.first + i % COLUMNS < params.v4) {
                final_state[to + i / COLUMNS * params.v4 + i % COLUMNS] = memory[STATE + i];
            }
        }
    }
}

// beta (v − before Sᵀk) of row r, given Sᵀk.
@if(!gradient)
fn missing(
    chunk: Chunk,
    owned: Owned,
    place: Place,
    r: u32,
    gates: vec4<f32>,
    held: vec4<f32>,
) -> vec4<f32> {
    let row = chunk.row + min(4u * place.group + r, chunk.tokens - 1u);
    let column = min(owned.first + place.column, params.v4 - 1u);
    let value = load4(v[params.v_offset + row * params.v_stride + owned.head * params.v4 + column]);
    return gates.y * (value - gates.z * held);
}

@if(gradient)
@compute @workgroup_size(LANES)
fn gated_delta_rule_states_backward(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let place = place_of(lane);
    let owned = Owned(workgroup.x, workgroup.z * COLUMNS);
    let head = owned.head;
    let is_carried = params.begin + params.chunks * CHUNK < params.tokens;
    get_state(is_carried, carry_of(params.carry_in, workgroup.y, head), owned, lane);
    for (var i = params.chunks; i > 0u; i--) {
        let chunk = chunk_of(workgroup.y * params.chunks + i - 1u);
        workgroupBarrier();
        put_state(state_of(params.dstates, chunk.index, 0u, head), owned, lane);
        let keys = keys_of(chunk, head);
        let gates = gates_of_rows(chunk, head, place);
        var sum = product_with(Quad(), transposed(keys), STATE, 4u * params.d4, place);
        sum = scaled_rows(sum, after_of(gates));
        let dout = from_column(dout_of(chunk, head), owned.first);
        let row = 4u * place.group;
        let gradient = Quad(
            load(dout, row, place.column),
            load(dout, row + 1u, place.column),
            load(dout, row + 2u, place.column),
            load(dout, row + 3u, place.column),
        );
        set_values(place, gradient);
        sum = product_with(sum, square_matrix(params.scores, chunk, head), VALUES, params.chunk, place);
        set_values(place, sum);
        let inverse = square_matrix(params.inverse, chunk, head);
        let dwritten = product_with(Quad(), inverse, VALUES, params.chunk, place);
        put_rows(params.dwritten, chunk, owned, place, dwritten);

        let before = before_of(gates);
        set_values(place, scaled_rows(dwritten, -before * betas_of(gates)));
        add_outer(scratch[gates_of(chunk.index, chunk.tokens - 1u, head)].z, keys, place);
        set_values(place, scaled_rows(gradient, params.scale * before));
        add_outer(1.0, queries_of(chunk, head), place);
    }
    if (params.begin > 0u) {
        workgroupBarrier();
        put_state(carry_of(params.carry_out, workgroup.y, head), owned, lane);
    }
}
