// Rows of dout in the workgroup memory of attention/portable/tiles.wgsl, beside the rows of v for the scores dout · v,
// and alone for the sums. Like attention/portable/staging.wgsl, whose loops cannot be used here because WGSL functions
// cannot take storage buffers.

import package::attention::params::params;
import package::attention::portable::staging::{ROUND, stage_owned, stage_walked};
import package::attention::portable::tiles::{BLOCK, LANES, Place, STEP, Sums, TILE};
import package::attention::portable::tiles::{add_scores, add_weighted, memory, owned_slot, portion_of, row_of_step};
import package::attention::portable::tiles::{row_slot, rows_of_step, walked_row, walked_slot};
import package::lib::element::{Packed, load4};
import package::tile::{CHUNK, SHARE, V4, WIDTH};

@group(0) @binding(3) var<storage, read> dout: array<Packed>;

// The products of the owned gradients from `block` on with the walked values from `tile` on.
fn gradient_value_scores(
    lane: u32,
    place: Place,
    gradients: u32,
    block: u32,
    values: u32,
    tile: u32,
) -> array<vec4<f32>, SHARE> {
    var scores: array<vec4<f32>, SHARE>;
    for (var c = 0u; c < params.v4; c += CHUNK) {
        stage_owned_gradients(lane, gradients, block, c);
        stage_walked(lane, values, tile, c, V4);
        workgroupBarrier();
        scores = add_scores(scores, place, min(CHUNK, params.v4 - c));
        workgroupBarrier();
    }
    return scores;
}

// The products of the owned values from `block` on with the walked gradients from `tile` on.
fn value_gradient_scores(
    lane: u32,
    place: Place,
    values: u32,
    block: u32,
    gradients: u32,
    tile: u32,
) -> array<vec4<f32>, SHARE> {
    var scores: array<vec4<f32>, SHARE>;
    for (var c = 0u; c < params.v4; c += CHUNK) {
        stage_owned(lane, values, block, c, V4);
        stage_walked_gradients(lane, gradients, tile, c);
        workgroupBarrier();
        scores = add_scores(scores, place, min(CHUNK, params.v4 - c));
        workgroupBarrier();
    }
    return scores;
}

fn stage_owned_gradients(lane: u32, rows: u32, block: u32, column: u32) {
    let c = min(column + lane % CHUNK, V4 - 1u);
    for (var first = 0u; first < BLOCK; first += ROUND) {
        let i = first + lane / CHUNK;
        let row = min(block + i, params.tokens - 1u);
        if (ROUND <= BLOCK || i < BLOCK) {
            memory[owned_slot(i, lane % CHUNK)] = load4(dout[rows + row * params.dout_stride + c]);
        }
    }
}

fn stage_walked_gradients(lane: u32, rows: u32, tile: u32, column: u32) {
    let c = min(column + lane % CHUNK, V4 - 1u);
    for (var first = 0u; first < TILE; first += ROUND) {
        let i = first + lane / CHUNK;
        let row = min(tile + walked_row(i), params.tokens - 1u);
        if (ROUND <= TILE || i < TILE) {
            memory[walked_slot(i, lane % CHUNK)] = load4(dout[rows + row * params.dout_stride + c]);
        }
    }
}

// Adds the rows of dout of one step, like `add_rows`.
fn add_gradient_rows(
    sums: Sums,
    lane: u32,
    place: Place,
    rows: u32,
    tile: u32,
    first: u32,
    end: u32,
    columns: u32,
) -> Sums {
    var s = sums;
    let portion = portion_of(columns);
    let there = rows_of_step(first, end - tile);
    for (var skipped = 0u; skipped < STEP; skipped += portion) {
        stage_gradient_rows(lane, rows, tile, first, skipped, portion, columns);
        workgroupBarrier();
        s = add_weighted(s, place, columns, skipped, min(portion, there - min(skipped, there)));
        workgroupBarrier();
    }
    return s;
}

fn stage_gradient_rows(
    lane: u32,
    rows: u32,
    tile: u32,
    first: u32,
    skipped: u32,
    portion: u32,
    columns: u32,
) {
    let pitch = columns * WIDTH;
    for (var k = 0u; k < portion * pitch; k += LANES) {
        let i = k + lane;
        let row = min(tile + row_of_step(first, skipped + i / pitch), params.tokens - 1u);
        memory[row_slot(i)] = load4(dout[rows + row * params.dout_stride + min(i % pitch, V4 - 1u)]);
    }
}
