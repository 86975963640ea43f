// Rows of qkv in the workgroup memory of attention/portable/tiles.wgsl: CHUNK vec4s of them for the scores, whole rows
// for the sums. `rows` is where the head's columns start in the first row of the sequence, and `width` is how many
// vec4s they take. Rows past the end repeat the last token's row, which masks exclude. Columns past the last vec4
// repeat that vec4, and their results are not read.

import package::attention::params::{params, qkv};
import package::attention::portable::tiles::{BLOCK, LANES, Place, STEP, Sums, TILE};
import package::attention::portable::tiles::{add_scores, add_weighted, memory, owned_slot, portion_of, row_of_step};
import package::attention::portable::tiles::{row_slot, rows_of_step, walked_row, walked_slot};
import package::lib::element::load4;
import package::tile::{CHUNK, D4, SHARE, WIDTH};

const ROUND: u32 = LANES / CHUNK; // rows that are staged at once for the scores

// The products q · k of the owned rows from `block` on with the walked rows from `tile` on. One side is queries and the
// other keys; their columns start at `owned` and `walked`. `width` is D4, or params.d4 to hide it from compilers.
fn query_key_scores(
    lane: u32,
    place: Place,
    owned: u32,
    block: u32,
    walked: u32,
    tile: u32,
    width: u32,
) -> array<vec4<f32>, SHARE> {
    var scores: array<vec4<f32>, SHARE>;
    for (var c = 0u; c < width; c += CHUNK) {
        stage_owned(lane, owned, block, c, D4);
        stage_walked(lane, walked, tile, c, D4);
        workgroupBarrier();
        scores = add_scores(scores, place, min(CHUNK, width - c));
        workgroupBarrier();
    }
    return scores;
}

// Stages the vec4s of the owned rows from `column` on.
fn stage_owned(lane: u32, rows: u32, block: u32, column: u32, width: u32) {
    let c = min(column + lane % CHUNK, width - 1u);
    for (var first = 0u; first < BLOCK; first += ROUND) {
        let i = first + lane / CHUNK;
        let row = min(block + i, params.tokens - 1u);
        if (ROUND <= BLOCK || i < BLOCK) {
            memory[owned_slot(i, lane % CHUNK)] = load4(qkv[rows + row * params.qkv_stride + c]);
        }
    }
}

// Stages the vec4s of the walked rows from `column` on.
fn stage_walked(lane: u32, rows: u32, tile: u32, column: u32, width: u32) {
    let c = min(column + lane % CHUNK, width - 1u);
    for (var first = 0u; first < TILE; first += ROUND) {
        let i = first + lane / CHUNK;
        let row = min(tile + walked_row(i), params.tokens - 1u);
        if (ROUND <= TILE || i < TILE) {
            memory[walked_slot(i, lane % CHUNK)] = load4(qkv[rows + row * params.qkv_stride + c]);
        }
    }
}

// Adds the rows of one step, weighted by the published weights: of the tile of rows from `tile` to `end` (exclusive),
// the step that starts with row `first` of each invocation. An invocation sums `columns` of their vec4s.
fn add_rows(
    sums: Sums,
    lane: u32,
    place: Place,
    rows: u32,
    tile: u32,
    first: u32,
    end: u32,
    width: u32,
    columns: u32,
) -> Sums {
    var s = sums;
    let portion = portion_of(columns);
    let there = rows_of_step(first, end - tile);
    for (var skipped = 0u; skipped < STEP; skipped += portion) {
        stage_rows(lane, rows, tile, first, skipped, portion, width, columns);
        workgroupBarrier();
        s = add_weighted(s, place, columns, skipped, min(portion, there - min(skipped, there)));
        workgroupBarrier();
    }
    return s;
}

// Stages `portion` whole rows of that step, after its first `skipped` rows.
fn stage_rows(
    lane: u32,
    rows: u32,
    tile: u32,
    first: u32,
    skipped: u32,
    portion: u32,
    width: u32,
    columns: u32,
) {
    let pitch = columns * WIDTH;
    for (var k = 0u; k < portion * pitch; k += LANES) {
        let i = k + lane;
        let row = min(tile + row_of_step(first, skipped + i / pitch), params.tokens - 1u);
        memory[row_slot(i)] = load4(qkv[rows + row * params.qkv_stride + min(i % pitch, width - 1u)]);
    }
}
