// Operands of cooperative matrices in workgroup memory (attention/matrix/tiles.wgsl), from the blocks that lanes have
// fetched.

import package::attention::matrix::tiles::{BLOCK, BLOCKS_DOWN, Blocks, Place, Rows, SHARE, TILE, TURNS, WEIGHT_STRIDE};
import package::attention::matrix::tiles::{fetch, group_of, halves, row_of};
import package::lib::matrix::{Halves, Left, OF_FOUR, OF_SIDE, Right, SIDE, VECTOR};
import package::tile::{LANES, OPERANDS};

enable f16;
enable wgpu_cooperative_matrix;

var<workgroup> operands: array<Halves, OPERANDS / VECTOR>;

// Stages blocks as rows from `at` on, `stride` apart: `width` groups, then zeros up to `groups`.
fn stage_rows(lane: u32, blocks: Blocks, at: u32, stride: u32, width: u32, groups: u32) {
    var fetched = blocks; // a variable, to be indexed
    for (var turn = 0u; turn < TURNS; turn++) {
        let e = lane + LANES * turn;
        if (e < BLOCKS_DOWN * groups) {
            let is_there = width == groups || group_of(e) < width;
            for (var i = 0u; i < 4u; i++) {
                let four = select(vec4<f16>(), fetched[4u * turn + i], is_there);
                store_four(at + (row_of(e) + i) * stride + OF_FOUR * group_of(e), four);
            }
        }
    }
}

// Stages, at the start, the rows of qkv that the block from `block` on owns.
fn stage_owned(lane: u32, rows: Rows, block: u32, scale: f32, stride: u32, groups: u32) {
    for (var half = 0u; half < BLOCK; half += TILE) {
        let some = halves(fetch(lane, rows, block + half), scale);
        stage_rows(lane, some, half * stride, stride, rows.width, groups);
    }
}

// Stages blocks as columns, each of which runs along the rows of the tile.
fn stage_columns(lane: u32, blocks: Blocks, at: u32, groups: u32) {
    var fetched = blocks;
    for (var turn = 0u; turn < TURNS; turn++) {
        let e = lane + LANES * turn;
        if (e < BLOCKS_DOWN * groups) {
            let block = 4u * turn;
            for (var i = 0u; i < 4u; i++) {
                let four = vec4<f16>(
                    fetched[block][i], fetched[block + 1u][i], fetched[block + 2u][i], fetched[block + 3u][i]);
                store_four(at + (4u * group_of(e) + i) * WEIGHT_STRIDE + row_of(e) / VECTOR, four);
            }
        }
    }
}

// Stores group i of a lane's weights, which belong to row `place.row` of the weights from `at` on.
fn store_weights(place: Place, at: u32, i: u32, weights: vec4<f32>) {
    let to = at + place.row * WEIGHT_STRIDE + (place.part * SHARE + 4u * i) / VECTOR;
    store_four(to, vec4<f16>(weights));
}

@if(!scalar_pointers) fn store_four(at: u32, four: vec4<f16>) { operands[at] = four; }
@if(scalar_pointers)
fn store_four(at: u32, four: vec4<f16>) {
    operands[at] = four.x;
    operands[at + 1u] = four.y;
    operands[at + 2u] = four.z;
    operands[at + 3u] = four.w;
}

// The matrix of a left factor whose first element is at `at`; its rows lie along k.
fn left(at: u32, stride: u32) -> Left {
    return coopLoadT<Left>(&operands[at], stride);
}

// The matrix of a right factor whose first element is at `at`; its columns lie along k.
fn right(at: u32, stride: u32) -> Right {
    return coopLoad<Right>(&operands[at], stride);
}

// The matrix of the owned rows from `strip` on at step `step` of `steps`. For steps past the last one it is the last
// matrix, and is not used.
fn owned(strip: u32, step: u32, steps: u32, stride: u32) -> Left {
    return left(strip * stride + min(step, steps - 1u) * OF_SIDE, stride);
}

// Matrix j of the columns staged from `at` on, starting at row VECTOR · step of the tile.
fn column(at: u32, j: u32, step: u32) -> Right {
    return right(at + j * SIDE * WEIGHT_STRIDE + step, WEIGHT_STRIDE);
}
