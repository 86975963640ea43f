// Power iteration for the largest eigenvalue of WᵀW, of each of M matrices W (R, D) that are stacked   W (M · R, D)
//
//   start_vectors         w (M, D): uniform numbers in [-1, 1), a function of seed, stream, step and place
//   normalise             v = w / ‖w‖ and eigenvalues[index + m] = ‖w‖, where w = Σ of the C rows of `partials` of matrix m
//   multiply              u (M · R) = W v
//   multiply_transposed   partials (M · C, D): Σ u W over each block of `block` rows of a matrix
//   square_rows           squares (M · R) = Σ W² of each row
//   fold_squares          sums[index + m] = Σ of the squares of the rows of matrix m
//
// Iteration: v = w / ‖w‖, w = Wᵀ (W v), after which ‖w‖ is at most the largest eigenvalue and never falls. A stack in several
// parts takes a launch of what reads W for each. Everything but W, which has its storage type, is f32.
// multiply, square_rows, normalise, fold_squares: one workgroup for each row or matrix; software tier: one invocation (lib/reduce). In
// multiply_transposed a workgroup owns 16 groups of 4 columns of one block, software tier: a lane one. All sums have a fixed order.
// A matrix of zeros has vectors of zeros and the eigenvalue 0.

import package::lib::element::{Packed, has_overflow, load4};
import package::lib::grid::linear_index;
import package::lib::philox::philox;
import package::lib::reduce::{ROW_STEP, STEP, column_block, down, first_of, row_of, row_sum, row_sum4};
import package::lib::row::keep_inside;
import package::lib::squares::{SMALLEST, Squares, norm_of, squares_of};
import package::lib::step_state::StepState;
import package::tile::LANES;

struct Params {
    matrices: u32, // M
    rows: u32, // of the part; of one matrix in it: multiply_transposed; of one matrix: fold_squares
    cols: u32, // D
    cols4: u32, // groups of 4 in a row of all tensors
    first_row: u32, // of the part, among all rows
    matrix_rows: u32, // R
    block: u32, // rows of a matrix that are summed into one row of partials
    blocks: u32, // normalise: C; multiply_transposed: blocks of each matrix in the part
    first_block: u32, // of the part, among the rows of partials
    index: u32,
    first_matrix: u32, // matrices of the parameter before these, which are on other ranks
    seed_low: u32,
    seed_high: u32,
    stream: u32,
}

const STREAM_HIGH: u32 = 0x20000000u; // upper word of POWER_STREAM in src/gpu/random.rs

@group(0) @binding(0) var<uniform> params: Params;

@group(0) @binding(1) var<storage, read> state: StepState;
@group(0) @binding(2) var<storage, read_write> partials: array<vec4<f32>>;

@group(0) @binding(1) var<storage, read> partials_in: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> v: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> eigenvalues: array<f32>;

@group(0) @binding(1) var<storage, read> matrix: array<Packed>;
@group(0) @binding(2) var<storage, read> v_in: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> u: array<f32>;

@group(0) @binding(2) var<storage, read_write> squares: array<Squares>;

@group(0) @binding(3) var<storage, read> u_in: array<f32>;

@group(0) @binding(1) var<storage, read> squares_in: array<Squares>;
@group(0) @binding(2) var<storage, read_write> sums: array<Squares>;

@compute @workgroup_size(LANES)
fn start_vectors(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let group = linear_index(workgroup) * LANES + lane;
    if (group < params.matrices * params.cols4) {
        let place = params.first_matrix * params.cols4 + group;
        let counter = vec4<u32>(place, state.global_step, params.stream, STREAM_HIGH);
        let words = philox(counter, vec2<u32>(params.seed_low, params.seed_high));
        let value = vec4<f32>(words >> vec4<u32>(8u)) * 1.1920928955078125e-7 - 1.0; // 2^-23
        partials[group] = keep_inside(value, 4u * (group % params.cols4), params.cols);
    }
}

@compute @workgroup_size(LANES)
fn normalise(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let m = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (m >= params.matrices) {
        return;
    }
    let at = m * params.cols4;
    var sum = Squares(0.0);
    for (var i = first; i < params.cols4; i += STEP) {
        var w = vec4<f32>(0.0);
        for (var k = 0u; k < params.blocks; k++) {
            w += partials_in[(m * params.blocks + k) * params.cols4 + i];
        }
        v[at + i] = w;
        sum += squares_of(w, false);
    }
    let norm = norm_of(row_sum4(sum, lane));
    for (var i = first; i < params.cols4; i += STEP) {
        v[at + i] /= max(norm, SMALLEST); // of zeros: 0
    }
    if (first == 0u) {
        eigenvalues[params.index + m] = norm;
    }
}

@compute @workgroup_size(LANES)
fn multiply(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    let vector = (params.first_row + row) / params.matrix_rows * params.cols4;
    var product = 0.0;
    for (var i = first; i < params.cols4; i += STEP) {
        product += dot(load4(matrix[row * params.cols4 + i]), v_in[vector + i]);
    }
    let total = row_sum(product, lane);
    if (first == 0u) {
        u[params.first_row + row] = total;
    }
}

@compute @workgroup_size(LANES)
fn square_rows(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (row >= params.rows) {
        return;
    }
    var sum = Squares(0.0);
    for (var i = first; i < params.cols4; i += STEP) {
        let packed = matrix[row * params.cols4 + i];
        sum += squares_of(load4(packed), has_overflow(packed));
    }
    let total = row_sum4(sum, lane);
    if (first == 0u) {
        squares[params.first_row + row] = total;
    }
}

@compute @workgroup_size(LANES)
fn multiply_transposed(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let local = vec3<u32>(workgroup.x, workgroup.y % params.blocks, 0u);
    let own = column_block(local, lane, params.block, params.rows, params.cols4);
    let start = workgroup.y / params.blocks * params.rows;
    var sum = vec4<f32>(0.0);
    for (var row = start + own.first; row < start + own.end; row += ROW_STEP) {
        sum += u_in[params.first_row + row] * load4(matrix[row * params.cols4 + own.column4]);
    }
    sum = down(sum, lane);
    if (own.is_writer) {
        partials[(params.first_block + workgroup.y) * params.cols4 + own.column4] = sum;
    }
}

@compute @workgroup_size(LANES)
fn fold_squares(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let m = row_of(linear_index(workgroup), lane);
    let first = first_of(lane);
    if (m >= params.matrices) {
        return;
    }
    var sum = Squares(0.0);
    for (var row = first; row < params.rows; row += STEP) {
        sum += squares_in[m * params.rows + row];
    }
    let total = row_sum4(sum, lane);
    if (first == 0u) {
        sums[params.index + m] = total;
    }
}
