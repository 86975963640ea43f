// Rows of qkv in the workgroup memory of attention/portable/tiles.wgsl: CHUNK vec4s of them for the scores, WIDTH vec4s
// for the sums. `rows` is where the head's columns start in the first row of the sequence. Rows past the end repeat the
// last token's, and masks exclude them.

import package::attention::params::{params, qkv};
import package::attention::portable::tiles::{BLOCK, LANES, PORTION, Place, SHARE, add_scores};
import package::attention::portable::tiles::{owned_slot, staged, sum_slot, walked_slot};
import package::lib::element::load4;
import package::tile::{CHUNK, D4, WIDTH};

// The products q · k of the owned rows from `block` on with the walked rows from `tile` on; one side are queries, the
// other keys, whose columns start at `owned` and `walked`.
fn query_key_scores(
    lane: u32,
    place: Place,
    owned: u32,
    block: u32,
    walked: u32,
    tile: u32,
) -> array<vec4<f32>, SHARE> {
    var scores: array<vec4<f32>, SHARE>;
    for (var c = 0u; c < D4; c += CHUNK) {
        let width = min(CHUNK, D4 - c);
        workgroupBarrier();
        stage_rows(lane, owned + c, block, walked + c, tile, width);
        workgroupBarrier();
        scores = add_scores(scores, place, width);
    }
    return scores;
}

// Stages `width` vec4s of the owned and of the walked rows. One loop for both, so that their loads are in flight together.
fn stage_rows(lane: u32, owned: u32, block: u32, walked: u32, tile: u32, width: u32) {
    let last = params.tokens - 1u;
    for (var i = lane; i < BLOCK * CHUNK; i += LANES) {
        let row = i / CHUNK;
        let c = i % CHUNK;
        if (c < width) {
            staged[owned_slot(row, c)] = load4(qkv[owned + min(block + row, last) * params.qkv_stride + c]);
            staged[walked_slot(row, c)] = load4(qkv[walked + min(tile + row, last) * params.qkv_stride + c]);
        }
    }
}

// Stages WIDTH vec4s of PORTION walked rows for the sums, from column `column` on; zeros from column `columns` on.
fn stage_columns(lane: u32, rows: u32, tile: u32, column: u32, columns: u32) {
    for (var i = lane; i < PORTION * WIDTH; i += LANES) {
        let row = min(tile + i / WIDTH, params.tokens - 1u);
        let c = column + i % WIDTH;
        var value: vec4<f32>;
        if (c < columns) {
            value = load4(qkv[rows + row * params.qkv_stride + c]);
        }
        staged[sum_slot(i / WIDTH, i % WIDTH)] = value;
    }
}
