// Products of matrices of a chunk:   Σ_k a[k, row] · b[k, column],   of matrices or their transposes
//
// An invocation computes 4 rows by 4 columns, of 4 terms at a time: a block of 4 by 4 numbers of each factor.
// shared_tile: a workgroup computes CHUNK rows by 4 · COLUMNS columns and stages both factors in workgroup memory,
// STEP terms at a time. Without it each invocation loads its blocks itself.
// Numerics: f32, in a fixed order.

import package::gated_delta_rule::params::{Chunk, gates_of, params, scratch, square_of, state_of, values_of};
import package::lib::element::{Packed, load4};
import package::tile::{CHUNK, COLUMNS};
@if(shared_tile) import package::tile::{LANES, ROOM, STEP};

@group(0) @binding(3) var<storage, read> qk: array<Packed>; // (N, columns): queries, and keys from k_start on
@if(gradient) @group(0) @binding(4) var<storage, read> dout: array<Packed>; // (N, heads · 4 v4)

const OF_QK: u32 = 0u;
const OF_DOUT: u32 = 1u;
const OF_SCRATCH: u32 = 2u;
const OF_WRITES: u32 = 3u; // keys times -beta

const GROUPS: u32 = CHUNK / 4u; // groups of 4 rows
@if(shared_tile) const RIGHT: u32 = STEP * GROUPS; // where the right factor is staged, behind the left one

@if(shared_tile) var<workgroup> memory: array<vec4<f32>, ROOM>;

// The part of a block of CHUNK rows by 4 · COLUMNS columns that an invocation computes.
struct Place {
    lane: u32, // among the GROUPS · COLUMNS of the block
    group: u32, // of 4 rows
    column: u32, // group of 4 columns
}

fn place_of(lane: u32) -> Place {
    return Place(lane, lane / COLUMNS, lane % COLUMNS);
}

// A matrix in a tensor; what is outside of it is 0.
struct Matrix {
    source: u32,
    start: u32,
    stride: u32, // of rows
    rows: u32,
    columns: u32, // groups of 4
    gates: u32, // of its first row, for OF_WRITES
    is_transposed: bool, // whether its rows are the columns of the factor
}

// Four rows of 4 columns.
struct Quad {
    x: vec4<f32>,
    y: vec4<f32>,
    z: vec4<f32>,
    w: vec4<f32>,
}

fn queries_of(chunk: Chunk, head: u32) -> Matrix {
    let start = params.qk_offset + chunk.row * params.qk_stride + head / params.group * params.d4;
    return Matrix(OF_QK, start, params.qk_stride, chunk.tokens, params.d4, 0u, false);
}

fn keys_of(chunk: Chunk, head: u32) -> Matrix {
    var keys = queries_of(chunk, head);
    keys.start += params.k_start;
    return keys;
}

fn writes_of(chunk: Chunk, head: u32) -> Matrix {
    var keys = keys_of(chunk, head);
    keys.source = OF_WRITES;
    keys.gates = gates_of(chunk.index, 0u, head);
    return keys;
}

@if(gradient)
fn dout_of(chunk: Chunk, head: u32) -> Matrix {
    let start = params.dout_offset + chunk.row * params.dout_stride + head * params.v4;
    return Matrix(OF_DOUT, start, params.dout_stride, chunk.tokens, params.v4, 0u, false);
}

fn written_of(first: u32, chunk: Chunk, head: u32) -> Matrix {
    let start = values_of(first, chunk.index, 0u, head);
    return Matrix(OF_SCRATCH, start, params.heads * params.v4, chunk.tokens, params.v4, 0u, false);
}

fn state_matrix(first: u32, chunk: Chunk, head: u32) -> Matrix {
    return Matrix(OF_SCRATCH, state_of(first, chunk.index, 0u, head), params.v4, 4u * params.d4, params.v4, 0u, false);
}

fn square_matrix(first: u32, chunk: Chunk, head: u32) -> Matrix {
    return Matrix(OF_SCRATCH, square_of(first, chunk.index, head), GROUPS, CHUNK, GROUPS, 0u, false);
}

// The matrix without its first `columns` groups of 4 columns.
fn from_column(matrix: Matrix, columns: u32) -> Matrix {
    var rest = matrix;
    rest.start += columns;
    rest.columns -= min(columns, matrix.columns);
    return rest;
}

// The matrix without its first `rows` rows.
fn from_row(matrix: Matrix, rows: u32) -> Matrix {
    var rest = matrix;
    rest.start += rows * matrix.stride;
    rest.rows -= min(rows, matrix.rows);
    return rest;
}

fn load(matrix: Matrix, row: u32, column: u32) -> vec4<f32> {
    if (row >= matrix.rows || column >= matrix.columns) {
        return vec4<f32>();
    }
    let at = matrix.start + row * matrix.stride + column;
    @if(gradient) {
        if (matrix.source == OF_DOUT) {
            return load4(dout[at]);
        }
        if (matrix.source == OF_WRITES) {
            return -scratch[matrix.gates + row * params.heads].y * load4(qk[at]);
        }
    }
    if (matrix.source == OF_QK) {
        return load4(qk[at]);
    }
    return scratch[at];
}

fn transposed(matrix: Matrix) -> Matrix {
    var other = matrix;
    other.is_transposed = true;
    return other;
}

// The 4 terms from 4 k4 on, one in each row, of rows or columns 4 index .. 4 index + 3 of the product.
fn block_of(factor: Matrix, k4: u32, index: u32) -> Quad {
    let row = 4u * select(k4, index, factor.is_transposed);
    let column = select(index, k4, factor.is_transposed);
    let rows = Quad(
        load(factor, row, column),
        load(factor, row + 1u, column),
        load(factor, row + 2u, column),
        load(factor, row + 3u, column),
    );
    if (!factor.is_transposed) {
        return rows;
    }
    return Quad(
        vec4<f32>(rows.x.x, rows.y.x, rows.z.x, rows.w.x),
        vec4<f32>(rows.x.y, rows.y.y, rows.z.y, rows.w.y),
        vec4<f32>(rows.x.z, rows.y.z, rows.z.z, rows.w.z),
        vec4<f32>(rows.x.w, rows.y.w, rows.z.w, rows.w.w),
    );
}

// sum + the product of `terms` terms, for the rows and columns at `place`.
@if(shared_tile)
fn product(sum: Quad, a: Matrix, b: Matrix, terms: u32, place: Place) -> Quad {
    var s = sum;
    for (var k4 = 0u; 4u * k4 < terms; k4 += STEP / 4u) {
        // The last lanes stage the right factor, so that where there are lanes enough both are staged at once.
        stage(a, k4, 0u, GROUPS, place.lane);
        stage(b, k4, RIGHT, COLUMNS, LANES - 1u - place.lane);
        workgroupBarrier();
        s = multiply(s, RIGHT, place);
        workgroupBarrier();
    }
    return s;
}

// Stages STEP terms of a factor, from term 4 k4 on, in rows of `width` vec4s from `to` on.
@if(shared_tile)
fn stage(factor: Matrix, k4: u32, to: u32, width: u32, lane: u32) {
    for (var i = lane; i < STEP / 4u * width; i += LANES) {
        // Neighbouring lanes load what is side by side.
        let term = select(i / width, i % (STEP / 4u), factor.is_transposed);
        let index = select(i % width, i / (STEP / 4u), factor.is_transposed);
        let block = block_of(factor, k4 + term, index);
        let at = to + 4u * term * width + index;
        memory[at] = block.x;
        memory[at + width] = block.y;
        memory[at + 2u * width] = block.z;
        memory[at + 3u * width] = block.w;
    }
}

// Adds the products of STEP staged terms of the left factor with those of a right factor at `right`.
@if(shared_tile)
fn multiply(sum: Quad, right: u32, place: Place) -> Quad {
    var s = sum;
    for (var k4 = 0u; k4 < params.staged4; k4++) {
        let left = 4u * k4 * GROUPS + place.group;
        let a = Quad(memory[left], memory[left + GROUPS], memory[left + 2u * GROUPS], memory[left + 3u * GROUPS]);
        let at = right + 4u * k4 * COLUMNS + place.column;
        let b = Quad(memory[at], memory[at + COLUMNS], memory[at + 2u * COLUMNS], memory[at + 3u * COLUMNS]);
        s = add_terms(s, a, b);
    }
    return s;
}

@if(!shared_tile)
fn product(sum: Quad, a: Matrix, b: Matrix, terms: u32, place: Place) -> Quad {
    var s = sum;
    for (var k4 = 0u; 4u * k4 < terms; k4++) {
        s = add_terms(s, block_of(a, k4, place.group), block_of(b, k4, place.column));
    }
    return s;
}

fn add_terms(sum: Quad, a: Quad, b: Quad) -> Quad {
    return add_term(add_term(add_term(add_term(sum, a.x, b.x), a.y, b.y), a.z, b.z), a.w, b.w);
}

fn add_term(sum: Quad, a: vec4<f32>, b: vec4<f32>) -> Quad {
    return Quad(
        fma(vec4<f32>(a.x), b, sum.x),
        fma(vec4<f32>(a.y), b, sum.y),
        fma(vec4<f32>(a.z), b, sum.z),
        fma(vec4<f32>(a.w), b, sum.w),
    );
}

// The gates of 4 rows of a chunk; 0 past its end.
fn gates_of_rows(chunk: Chunk, head: u32, place: Place) -> Quad {
    let row = 4u * place.group;
    return Quad(
        gates_of_row(chunk, head, row),
        gates_of_row(chunk, head, row + 1u),
        gates_of_row(chunk, head, row + 2u),
        gates_of_row(chunk, head, row + 3u),
    );
}

fn gates_of_row(chunk: Chunk, head: u32, row: u32) -> vec4<f32> {
    let gates = scratch[gates_of(chunk.index, min(row, chunk.tokens - 1u), head)];
    return select(vec4<f32>(), gates, row < chunk.tokens);
}

// Of these gates those of one kind.
fn betas_of(gates: Quad) -> vec4<f32> {
    return vec4<f32>(gates.x.y, gates.y.y, gates.z.y, gates.w.y);
}

fn before_of(gates: Quad) -> vec4<f32> {
    return vec4<f32>(gates.x.z, gates.y.z, gates.z.z, gates.w.z);
}

fn after_of(gates: Quad) -> vec4<f32> {
    return vec4<f32>(gates.x.w, gates.y.w, gates.z.w, gates.w.w);
}

fn row_of(quad: Quad, r: u32) -> vec4<f32> {
    return select(select(quad.x, quad.y, r == 1u), select(quad.z, quad.w, r == 3u), r > 1u);
}

// The rows of `quad`, each times one of `factors`.
fn scaled_rows(quad: Quad, factors: vec4<f32>) -> Quad {
    return Quad(factors.x * quad.x, factors.y * quad.y, factors.z * quad.z, factors.w * quad.w);
}
