// The gated delta rule within chunks, all of which are computed at once (tensors in gated_delta_rule/params.wgsl):
// with E[t, i] = exp(c[t] − c[i]) for the tokens i <= t of one document,
//
//   prepare    inverse = (I + A)^-1,  A[t, i] = beta[t] E[t, i] k[t]·k[i] for i < t;
//              scores[t, i] = scale E[t, i] q[t]·k[i] for i <= t
//   outputs    out[t] = scale before[t] Sᵀ q[t] + Σ_i scores[t, i] d[i]
//   pairs      in place of the inverse h[t, i] = E[t, i] r[t]·d[i] for i < t, with r = dwritten; in place of the
//              scores w[t, i] = scale E[t, i] dout[t]·d[i]; and dv = beta r
//   gradients  with x[t] = scale before[t] S dout[t] + Σ_i w[t, i] k[i]
//                   y[t] = before[t] S r[t] + Σ_i h[t, i] k[i]
//                   z[t] = after[t] dS d[t] + Σ_s (w[s, t] q[s] − beta[s] h[s, t] k[s])
//              dq = x and dk = z − beta y, summed over the heads that share a key; and for each block of columns
//              dots, from which gated_delta_rule/gates makes the gradients of the gates. A half of the workgroups makes
//              x, and q·x, the other one y and z, −k·(z + beta y) and k·y: together they take too many registers
//
// The exponents are differences of sums of log decays, which are at most 0, so E is at most 1. A difference is as exact
// as its larger term, so the relative error of E is up to 2^-24 |c|, as in the published code; where that is large,
// what came before is all but forgotten.
// The inverse is found by eliminating columns of A from the identity, four at a time: whoever has the four rows that
// are final publishes them, whoever has the next four columns of A publishes those.
// Numerics: f32, in a fixed order.
// Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks", 2024, section 3.3.

import package::gated_delta_rule::params::{Chunk, all_chunks, chunk_of, dots_of, params, scratch, square_of, start_of};
import package::gated_delta_rule::product::{GROUPS, Matrix, Place, Quad, from_column, from_row};
import package::gated_delta_rule::product::{before_of, betas_of, gates_of_row, gates_of_rows, keys_of, place_of};
import package::gated_delta_rule::product::{product, queries_of, row_of, scaled_rows};
import package::gated_delta_rule::product::{square_matrix, state_matrix, transposed, written_of};
@if(gradient) import package::gated_delta_rule::product::{after_of, dout_of, load, writes_of};
@if(shared_tile) import package::gated_delta_rule::product::memory;
import package::lib::element::{Packed, load4, store4};
@if(!shared_tile) import package::lib::grid::linear_index;
import package::tile::{CHUNK, COLUMNS, LANES};

@group(0) @binding(5) var<storage, read_write> out: array<Packed>; // (N, heads · 4 v4)

@group(0) @binding(5) var<storage, read_write> dqk: array<Packed>; // (N, columns), as qk
@group(0) @binding(5) var<storage, read_write> dv: array<Packed>; // (N, heads · 4 v4)

// E of 4 rows and 4 columns of a chunk; `gates` are those of the rows.
fn decays(chunk: Chunk, head: u32, place: Place, gates: Quad) -> Quad {
    let column = 4u * place.column;
    let others = vec4<f32>(
        gates_of_row(chunk, head, column).x,
        gates_of_row(chunk, head, column + 1u).x,
        gates_of_row(chunk, head, column + 2u).x,
        gates_of_row(chunk, head, column + 3u).x,
    );
    let row = 4u * place.group;
    return Quad(
        decays_of(chunk, row, column, gates.x.x - others),
        decays_of(chunk, row + 1u, column, gates.y.x - others),
        decays_of(chunk, row + 2u, column, gates.z.x - others),
        decays_of(chunk, row + 3u, column, gates.w.x - others),
    );
}

// Of a row, given the exponents; those of tokens that it does not see may be above 0.
fn decays_of(chunk: Chunk, row: u32, column: u32, exponents: vec4<f32>) -> vec4<f32> {
    let start = start_of(chunk.row + min(row, chunk.tokens - 1u));
    let tokens = vec4<u32>(column) + vec4<u32>(0u, 1u, 2u, 3u);
    let seen = (tokens <= vec4<u32>(row)) & (tokens + chunk.begin >= vec4<u32>(start));
    return select(vec4<f32>(), exp(min(exponents, vec4<f32>())), seen & vec4<bool>(row < chunk.tokens));
}

// The part below the diagonal of a matrix that has nothing above it.
fn strict(values: Quad, place: Place) -> Quad {
    let is_diagonal = place.group == place.column;
    let zeros = select(vec4<f32>(1.0), vec4<f32>(), is_diagonal);
    return Quad(
        values.x * vec4<f32>(zeros.x, 1.0, 1.0, 1.0),
        values.y * vec4<f32>(1.0, zeros.y, 1.0, 1.0),
        values.z * vec4<f32>(1.0, 1.0, zeros.z, 1.0),
        values.w * vec4<f32>(1.0, 1.0, 1.0, zeros.w),
    );
}

fn times(a: Quad, b: Quad) -> Quad {
    return Quad(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

// Writes 4 rows and 4 columns of the matrix of a chunk.
fn put_square(first: u32, chunk: Chunk, head: u32, place: Place, values: Quad) {
    let to = square_of(first, chunk.index, head) + 4u * place.group * GROUPS + place.column;
    scratch[to] = values.x;
    scratch[to + GROUPS] = values.y;
    scratch[to + 2u * GROUPS] = values.z;
    scratch[to + 3u * GROUPS] = values.w;
}

@if(shared_tile)
@compute @workgroup_size(LANES)
fn gated_delta_rule_prepare(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(lane);
    let chunk = chunk_of(workgroup.y);
    let head = workgroup.x;
    let keys = transposed(keys_of(chunk, head));
    let gates = gates_of_rows(chunk, head, place);
    let weights = decays(chunk, head, place, gates);
    let scores = product(Quad(), transposed(queries_of(chunk, head)), keys, 4u * params.d4, place);
    put_square(params.scores, chunk, head, place, times(scaled_rows(scores, vec4<f32>(params.scale)), weights));
    let same = product(Quad(), keys, keys, 4u * params.d4, place);
    let a = scaled_rows(times(same, strict(weights, place)), betas_of(gates));
    put_square(params.inverse, chunk, head, place, inverse_of(a, place));
}

// Where four columns of A and four rows of the inverse are published: three, and two, of each take turns, so that
// nobody overwrites what others still read.
@if(shared_tile) const COLUMNS_OF_A: u32 = 0u;
@if(shared_tile) const ROWS_OF_INVERSE: u32 = 3u * CHUNK;

@if(shared_tile)
fn inverse_of(a: Quad, place: Place) -> Quad {
    let is_diagonal = place.group == place.column;
    var t = Quad(
        select(vec4<f32>(), vec4<f32>(1.0, 0.0, 0.0, 0.0), is_diagonal),
        select(vec4<f32>(), vec4<f32>(0.0, 1.0, 0.0, 0.0), is_diagonal),
        select(vec4<f32>(), vec4<f32>(0.0, 0.0, 1.0, 0.0), is_diagonal),
        select(vec4<f32>(), vec4<f32>(0.0, 0.0, 0.0, 1.0), is_diagonal),
    );
    if (place.column == 0u) {
        put_columns(a, place, 0u);
    }
    workgroupBarrier();
    for (var block = 0u; 4u * block < params.chunk; block++) {
        let columns = COLUMNS_OF_A + block % 3u * CHUNK + 4u * place.group;
        let rows = ROWS_OF_INVERSE + block % 2u * CHUNK + place.column;
        if (place.group == block) {
            let second = memory[columns + 1u];
            let third = memory[columns + 2u];
            let fourth = memory[columns + 3u];
            t.y -= second.x * t.x;
            t.z -= third.x * t.x + third.y * t.y;
            t.w -= fourth.x * t.x + fourth.y * t.y + fourth.z * t.z;
            memory[rows] = t.x;
            memory[rows + GROUPS] = t.y;
            memory[rows + 2u * GROUPS] = t.z;
            memory[rows + 3u * GROUPS] = t.w;
        }
        if (place.column == block + 1u) {
            put_columns(a, place, block + 1u);
        }
        workgroupBarrier();
        if (place.group > block) {
            let b = Quad(memory[rows], memory[rows + GROUPS], memory[rows + 2u * GROUPS], memory[rows + 3u * GROUPS]);
            t.x -= weighted(memory[columns], b);
            t.y -= weighted(memory[columns + 1u], b);
            t.z -= weighted(memory[columns + 2u], b);
            t.w -= weighted(memory[columns + 3u], b);
        }
    }
    return t;
}

@if(shared_tile)
fn put_columns(a: Quad, place: Place, block: u32) {
    let to = COLUMNS_OF_A + block % 3u * CHUNK + 4u * place.group;
    memory[to] = a.x;
    memory[to + 1u] = a.y;
    memory[to + 2u] = a.z;
    memory[to + 3u] = a.w;
}

@if(shared_tile)
fn weighted(weights: vec4<f32>, b: Quad) -> vec4<f32> {
    return weights.x * b.x + weights.y * b.y + weights.z * b.z + weights.w * b.w;
}

@if(shared_tile)
@compute @workgroup_size(LANES)
fn gated_delta_rule_outputs(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(lane);
    let chunk = chunk_of(workgroup.y);
    let head = workgroup.x;
    let first = workgroup.z * COLUMNS;
    let state = from_column(state_matrix(params.states, chunk, head), first);
    let read = product(Quad(), transposed(queries_of(chunk, head)), state, 4u * params.d4, place);
    let before = params.scale * before_of(gates_of_rows(chunk, head, place));
    let scores = transposed(square_matrix(params.scores, chunk, head));
    let written = from_column(written_of(params.written, chunk, head), first);
    let sums = product(scaled_rows(read, before), scores, written, params.chunk, place);
    let column = first + place.column;
    for (var r = 0u; r < 4u; r++) {
        let row = 4u * place.group + r;
        if (row < chunk.tokens && column < params.v4) {
            let to = params.out_offset + (chunk.row + row) * params.out_stride + head * params.v4 + column;
            out[to] = store4(row_of(sums, r));
        }
    }
}

@if(gradient)
@compute @workgroup_size(LANES)
fn gated_delta_rule_pairs(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(shared_tile) let place = place_of(lane);
    @if(shared_tile) let chunk = chunk_of(workgroup.y);
    @if(shared_tile) let head = workgroup.x;
    @if(!shared_tile) let item = linear_index(workgroup) * LANES + lane;
    @if(!shared_tile) let place = place_of(item % (GROUPS * COLUMNS));
    @if(!shared_tile) let outer = item / (GROUPS * COLUMNS);
    @if(!shared_tile) let head = outer % params.heads;
    @if(!shared_tile) let index = outer / params.heads;
    @if(!shared_tile) {
        if (index >= all_chunks()) {
            return;
        }
    }
    @if(!shared_tile) let chunk = chunk_of(index);
    let written = written_of(params.written, chunk, head);
    let dwritten = written_of(params.dwritten, chunk, head);
    let gates = gates_of_rows(chunk, head, place);
    let weights = decays(chunk, head, place, gates);
    let h = product(Quad(), transposed(dwritten), transposed(written), 4u * params.v4, place);
    put_square(params.inverse, chunk, head, place, times(h, strict(weights, place)));
    let w = product(Quad(), transposed(dout_of(chunk, head)), transposed(written), 4u * params.v4, place);
    put_square(params.scores, chunk, head, place, times(scaled_rows(w, vec4<f32>(params.scale)), weights));
    let betas = betas_of(gates);
    for (var r = 0u; r < 4u; r++) {
        let row = 4u * place.group + r;
        if (row < chunk.tokens) {
            let to = params.dv_offset + (chunk.row + row) * params.dv_stride + head * params.v4;
            for (var c = place.column; c < params.v4; c += COLUMNS) {
                dv[to + c] = store4(betas[r] * load(dwritten, row, c));
            }
        }
    }
}

@if(gradient) const X: u32 = 0u;
@if(gradient) const Y: u32 = 1u;
@if(gradient) const Z: u32 = 2u;

// Of 4 rows: q·x, or k·(z + beta y) and k·y.
@if(gradient)
struct Dots {
    all: vec4<f32>,
    y: vec4<f32>,
}

@if(gradient)
@compute @workgroup_size(LANES)
fn gated_delta_rule_gradients(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(shared_tile) let place = place_of(lane);
    @if(shared_tile) let chunk = chunk_of(workgroup.y);
    @if(shared_tile) let key_head = workgroup.x;
    @if(shared_tile) let half = workgroup.z;
    @if(!shared_tile) let item = linear_index(workgroup) * LANES + lane;
    @if(!shared_tile) let place = place_of(item % (GROUPS * COLUMNS));
    @if(!shared_tile) let halves = 2u * ((params.d4 + COLUMNS - 1u) / COLUMNS);
    @if(!shared_tile) let half = item / (GROUPS * COLUMNS) % halves;
    @if(!shared_tile) let outer = item / (GROUPS * COLUMNS) / halves;
    @if(!shared_tile) let key_head = outer % (params.heads / params.group);
    @if(!shared_tile) let index = outer / (params.heads / params.group);
    @if(!shared_tile) {
        if (index >= all_chunks()) {
            return;
        }
    }
    @if(!shared_tile) let chunk = chunk_of(index);
    let first = half / 2u * COLUMNS;
    let is_of_queries = half % 2u == 0u;
    let queries = from_column(queries_of(chunk, key_head * params.group), first);
    let keys = from_column(keys_of(chunk, key_head * params.group), first);
    let terms = 4u * params.v4;
    var gradient: Quad; // dq or dk
    for (var i = 0u; i < params.group; i++) {
        let head = key_head * params.group + i;
        let h = square_matrix(params.inverse, chunk, head);
        let w = square_matrix(params.scores, chunk, head);
        let gates = gates_of_rows(chunk, head, place);
        let betas = betas_of(gates);
        var dots: Dots;
        // x, y and z are made by the same code, or a kernel would hold each of its products several times.
        for (var which = select(Y, X, is_of_queries); which < select(params.parts, Y, is_of_queries); which++) {
            var value = dout_of(chunk, head);
            var share = params.scale * before_of(gates);
            var states = params.states;
            var weights = transposed(w);
            var others = keys;
            var beside = queries;
            if (which == Y) {
                value = written_of(params.dwritten, chunk, head);
                share = before_of(gates);
                weights = transposed(h);
                beside = keys;
            }
            if (which == Z) {
                value = written_of(params.written, chunk, head);
                share = after_of(gates);
                states = params.dstates;
                weights = w;
                others = queries;
                beside = keys;
            }
            let state = from_row(state_matrix(states, chunk, head), 4u * first);
            var sum = product(Quad(), transposed(value), transposed(state), terms, place);
            sum = scaled_rows(sum, share);
            if (which == Z) {
                sum = product(sum, h, from_column(writes_of(chunk, head), first), params.chunk, place);
            }
            sum = product(sum, weights, others, params.chunk, place);
            let products = row_dots(sum, beside, place);
            let factors = select(vec4<f32>(1.0), betas, which == Y);
            dots.all += factors * products;
            dots.y = select(dots.y, products, which == Y);
            gradient = added(gradient, scaled_rows(sum, select(factors, -factors, which == Y)));
        }
        dots = row_totals(dots, place.lane);
        let sign = select(-1.0, 1.0, is_of_queries);
        for (var r = 0u; r < 4u; r++) {
            let row = 4u * place.group + r;
            if (place.column == 0u && row < chunk.tokens) {
                let to = dots_of(half, chunk.index, row, head);
                scratch[to] = vec4<f32>(sign * dots.all[r], dots.y[r], 0.0, 0.0);
            }
        }
    }
    let column = first + place.column;
    for (var r = 0u; r < 4u; r++) {
        let row = 4u * place.group + r;
        if (row < chunk.tokens && column < params.d4) {
            let to = params.dqk_offset + (chunk.row + row) * params.dqk_stride + key_head * params.d4 + column;
            dqk[to + select(params.k_start, 0u, is_of_queries)] = store4(row_of(gradient, r));
        }
    }
}

@if(gradient)
fn added(a: Quad, b: Quad) -> Quad {
    return Quad(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

// The products of 4 rows with those of a matrix, over the columns of the invocation.
@if(gradient)
fn row_dots(values: Quad, matrix: Matrix, place: Place) -> vec4<f32> {
    let row = 4u * place.group;
    return vec4<f32>(
        dot(values.x, load(matrix, row, place.column)),
        dot(values.y, load(matrix, row + 1u, place.column)),
        dot(values.z, load(matrix, row + 2u, place.column)),
        dot(values.w, load(matrix, row + 3u, place.column)),
    );
}

// The sums of three of the vectors over the COLUMNS invocations with the same rows, for the first of them.
@if(gradient && shared_tile)
fn row_totals(dots: Dots, lane: u32) -> Dots {
    memory[lane] = dots.all;
    memory[LANES + lane] = dots.y;
    workgroupBarrier();
    let first = lane / COLUMNS * COLUMNS;
    var total: Dots;
    for (var i = 0u; i < COLUMNS; i++) {
        total.all += memory[first + i];
        total.y += memory[LANES + first + i];
    }
    workgroupBarrier();
    return total;
}

@if(gradient && !shared_tile) fn row_totals(dots: Dots, lane: u32) -> Dots { return dots; }
