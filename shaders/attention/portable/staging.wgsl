// Rows of a head in the workgroup memory of attention/portable/tiles.wgsl: CHUNK vec4s of them for the scores, whole
// rows for the sums. Rows past the end repeat the last token's row, which masks exclude. Columns past the last vec4
// repeat that vec4, and their results are not read.

import package::attention::params::{params, qkv};
import package::attention::portable::tiles::{BLOCK, LANES, Place, STEP, Sums, TILE};
import package::attention::portable::tiles::{add_scores, add_weighted, memory, owned_slot, portion_of, row_of_step};
import package::attention::portable::tiles::{row_slot, rows_of_step, walked_row, walked_slot};
import package::lib::element::load4;
@if(gradient) import package::lib::element::Packed;
import package::tile::{CHUNK, SHARE, WIDTH};

@if(gradient) @group(0) @binding(3) var<storage, read> dout: array<Packed>;

const ROUND: u32 = LANES / CHUNK; // rows that are staged at once for the scores

// The queries, keys or values of a head in one sequence, or the gradients of its results.
struct Rows {
    start: u32, // of the head's columns in the first row of the sequence
    width: u32, // vec4s of a row
    are_gradients: bool, // a constant where it is written: rows are in dout, and otherwise in qkv
}

fn load_row(rows: Rows, row: u32, column: u32) -> vec4<f32> {
    @if(gradient) {
        if (rows.are_gradients) {
            return load4(dout[rows.start + row * params.dout_stride + column]);
        }
    }
    return load4(qkv[rows.start + row * params.qkv_stride + column]);
}

// The products of the owned rows from `block` on with the walked rows from `tile` on. `width` is that of both, or
// params.d4 or params.v4 to hide it from compilers.
fn scores_of(
    lane: u32,
    place: Place,
    owned: Rows,
    block: u32,
    walked: Rows,
    tile: u32,
    width: u32,
) -> array<vec4<f32>, SHARE> {
    var scores: array<vec4<f32>, SHARE>;
    for (var c = 0u; c < width; c += CHUNK) {
        let column = min(c + lane % CHUNK, owned.width - 1u);
        for (var first = 0u; first < BLOCK; first += ROUND) {
            let i = first + lane / CHUNK;
            let row = min(block + i, params.tokens - 1u);
            if (ROUND <= BLOCK || i < BLOCK) {
                memory[owned_slot(i, lane % CHUNK)] = load_row(owned, row, column);
            }
        }
        for (var first = 0u; first < TILE; first += ROUND) {
            let i = first + lane / CHUNK;
            let row = min(tile + walked_row(i), params.tokens - 1u);
            if (ROUND <= TILE || i < TILE) {
                memory[walked_slot(i, lane % CHUNK)] = load_row(walked, row, column);
            }
        }
        workgroupBarrier();
        scores = add_scores(scores, place, min(CHUNK, width - c));
        workgroupBarrier();
    }
    return scores;
}

// Adds the rows of one step, weighted by the published weights: of the tile of rows from `tile` to `end` (exclusive),
// the step that starts with row `first` of each invocation. An invocation sums `columns` of their vec4s.
fn add_rows(
    sums: Sums,
    lane: u32,
    place: Place,
    rows: Rows,
    tile: u32,
    first: u32,
    end: u32,
    columns: u32,
) -> Sums {
    var s = sums;
    let portion = portion_of(columns);
    let there = rows_of_step(first, end - tile);
    for (var skipped = 0u; skipped < STEP; skipped += portion) {
        stage_rows(lane, rows, tile, first, skipped, portion, columns);
        workgroupBarrier();
        s = add_weighted(s, place, columns, skipped, min(portion, there - min(skipped, there)));
        workgroupBarrier();
    }
    return s;
}

// Stages `portion` whole rows of that step, after its first `skipped` rows.
fn stage_rows(lane: u32, rows: Rows, tile: u32, first: u32, skipped: u32, portion: u32, columns: u32) {
    let pitch = columns * WIDTH;
    for (var k = 0u; k < portion * pitch; k += LANES) {
        let i = k + lane;
        let row = min(tile + row_of_step(first, skipped + i / pitch), params.tokens - 1u);
        memory[row_slot(i)] = load_row(rows, row, min(i % pitch, rows.width - 1u));
    }
}
