// Operands of cooperative matrices in workgroup memory (attention/matrix/tiles.wgsl), from the blocks that lanes have
// fetched.

import package::attention::matrix::tiles::{BLOCK, BLOCKS_DOWN, Blocks, Place, Rows, SHARE, TILE, TURNS, WEIGHT_STRIDE};
import package::attention::matrix::tiles::{fetch, group_of, halves, row_of};
import package::lib::matrix::{Left, Right, SIDE};
import package::tile::{LANES, OPERANDS};

enable f16;
enable wgpu_cooperative_matrix;

var<workgroup> operands: array<f16, OPERANDS>;

// Stages blocks as rows from `at` on, `stride` apart: `width` groups, then zeros up to `groups`.
fn stage_rows(lane: u32, blocks: Blocks, at: u32, stride: u32, width: u32, groups: u32) {
    var fetched = blocks; // a variable, to be indexed
    for (var turn = 0u; turn < TURNS; turn++) {
        let e = lane + LANES * turn;
        if (e < BLOCKS_DOWN * groups) {
            for (var i = 0u; i < 16u; i++) {
                let is_there = width == groups || group_of(e) < width;
                let value = select(0.0h, fetched[4u * turn + i / 4u][i % 4u], is_there);
                operands[at + (row_of(e) + i / 4u) * stride + 4u * group_of(e) + i % 4u] = value;
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
            for (var i = 0u; i < 16u; i++) {
                operands[at + (4u * group_of(e) + i / 4u) * WEIGHT_STRIDE + row_of(e) + i % 4u] =
                    fetched[4u * turn + i % 4u][i / 4u];
            }
        }
    }
}

// Stores group i of a lane's weights, which belong to row `place.row` of the weights from `at` on.
fn store_weights(place: Place, at: u32, i: u32, weights: vec4<f32>) {
    let half = vec4<f16>(weights);
    let to = at + place.row * WEIGHT_STRIDE + place.part * SHARE + 4u * i;
    operands[to] = half.x;
    operands[to + 1u] = half.y;
    operands[to + 2u] = half.z;
    operands[to + 3u] = half.w;
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
    return left(strip * stride + min(step, steps - 1u) * SIDE, stride);
}

// Matrix j of the columns staged from `at` on, starting at row `step` of the tile.
fn column(at: u32, j: u32, step: u32) -> Right {
    return right(at + j * SIDE * WEIGHT_STRIDE + step, WEIGHT_STRIDE);
}
