// Rows of dout in the workgroup memory of attention/portable/tiles.wgsl, beside those of v for the scores dout · v and alone
// for the sums; as attention/portable/staging.wgsl, whose loops cannot serve here because WGSL functions take no storage
// buffers.

import package::attention::params::{params, qkv};
import package::attention::portable::tiles::{BLOCK, LANES, PORTION, Place, SHARE, add_scores};
import package::attention::portable::tiles::{owned_slot, staged, sum_slot, walked_slot};
import package::lib::element::{Packed, load4};
import package::tile::{CHUNK, V4, WIDTH};

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
    for (var c = 0u; c < V4; c += CHUNK) {
        let width = min(CHUNK, V4 - c);
        workgroupBarrier();
        stage_owned_gradients(lane, gradients + c, block, values + c, tile, width);
        workgroupBarrier();
        scores = add_scores(scores, place, width);
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
    for (var c = 0u; c < V4; c += CHUNK) {
        let width = min(CHUNK, V4 - c);
        workgroupBarrier();
        stage_walked_gradients(lane, values + c, block, gradients + c, tile, width);
        workgroupBarrier();
        scores = add_scores(scores, place, width);
    }
    return scores;
}

fn stage_owned_gradients(lane: u32, gradients: u32, block: u32, values: u32, tile: u32, width: u32) {
    let last = params.tokens - 1u;
    for (var i = lane; i < BLOCK * CHUNK; i += LANES) {
        let row = i / CHUNK;
        let c = i % CHUNK;
        if (c < width) {
            staged[owned_slot(row, c)] = load4(dout[gradients + min(block + row, last) * params.dout_stride + c]);
            staged[walked_slot(row, c)] = load4(qkv[values + min(tile + row, last) * params.qkv_stride + c]);
        }
    }
}

fn stage_walked_gradients(lane: u32, values: u32, block: u32, gradients: u32, tile: u32, width: u32) {
    let last = params.tokens - 1u;
    for (var i = lane; i < BLOCK * CHUNK; i += LANES) {
        let row = i / CHUNK;
        let c = i % CHUNK;
        if (c < width) {
            staged[owned_slot(row, c)] = load4(qkv[values + min(block + row, last) * params.qkv_stride + c]);
            staged[walked_slot(row, c)] = load4(dout[gradients + min(tile + row, last) * params.dout_stride + c]);
        }
    }
}

// Stages WIDTH vec4s of PORTION walked rows for the sums, from column `column` on.
fn stage_gradient_columns(lane: u32, rows: u32, tile: u32, column: u32) {
    for (var i = lane; i < PORTION * WIDTH; i += LANES) {
        let row = min(tile + i / WIDTH, params.tokens - 1u);
        let c = column + i % WIDTH;
        var value: vec4<f32>;
        if (c < V4) {
            value = load4(dout[rows + row * params.dout_stride + c]);
        }
        staged[sum_slot(i / WIDTH, i % WIDTH)] = value;
    }
}
