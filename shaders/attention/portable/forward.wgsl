// Attention forward, portable tier (formula, tensors and masks as in attention/software/forward.wgsl):
//
//   out = softmax(mask(scale · q kᵀ)) v   and   lse = log Σ exp(mask(scale · q kᵀ)),   per head
//
// A workgroup owns BLOCK queries of one head and walks the keys, TILE at a time (attention/portable/tiles.wgsl). Each
// invocation keeps the running maximum of its 4 queries and its own part of their sums of weights. The parts are added
// up over the group at the end.
// Numerics: f32; scores are scaled by log2 e so that exp2 can be used; lse is a natural logarithm. Masked scores are
// finite, and lower than the initial running maximum.
// Sources: Dao, "FlashAttention-2", 2023, algorithm 1; Ainslie et al., "GQA", 2023.

import package::attention::heads::{keys_of, queries_of, results_of, values_of};
import package::attention::params::mask_index;
import package::attention::params::params;
@if(alibi) import package::attention::params::slope;
@if(dropout) import package::attention::portable::kept_weights::{is_kept_key, kept_of_queries};
import package::attention::portable::owned_queries::{first_key, is_seen, keys_end, load_bounds};
import package::attention::portable::staging::{Rows, add_rows, scores_of};
import package::attention::portable::tiles::{BLOCK, LANES, PART, Place, Quad, Sums, TILE, columns_of, group_max, group_sum};
import package::attention::portable::tiles::{place_of, put_weights, row_of_share, row_of_step, sum_of};
@if(sinks) import package::attention::sinks::sink_of;
@if(alibi) import package::lib::attention::alibi_slope;
import package::lib::attention::{LN_2, LOWEST, MASKED};
import package::lib::element::{Packed, store4};
@if(capped) import package::lib::soft_cap::soft_capped4;
import package::tile::{CHUNK, D4, SHARE, V4, WIDTH};

@group(0) @binding(2) var<storage, read_write> out: array<Packed>;
@group(0) @binding(3) var<storage, read_write> lse: array<f32>;
@if(logits) @group(0) @binding(9) var<storage, read_write> logits: array<f32>; // laid out as lse

const COLUMNS: u32 = (V4 + WIDTH - 1u) / WIDTH; // vec4s of a row that an invocation sums

var<private> highest: vec4<f32>;
var<private> total: vec4<f32>; // Σ p over this invocation's keys
var<private> decay: vec4<f32>; // rescales the sums to the new maximum

@compute @workgroup_size(LANES)
fn attention(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let place = place_of(lane);
    let head = workgroup.x;
    let kv_head = head / params.group;
    let sequence = workgroup.y * params.tokens;
    // Last blocks first: they see the most keys, and starting with the longest work balances the tail.
    let block = ((params.tokens - 1u) / BLOCK - workgroup.z) * BLOCK;
    let token = block + 4u * place.group;
    load_bounds(sequence, token);
    highest = vec4<f32>(LOWEST);
    @if(sinks) {
        highest = vec4<f32>(sink_of(head));
        total = vec4<f32>(select(0.0, 1.0, place.column == 0u));
    }
    @if(alibi) { slope = alibi_slope(params.first_head + head, params.all_heads); }

    let queries = Rows(queries_of(sequence, head), D4, false);
    let keys = Rows(keys_of(sequence, kv_head), D4, false);
    let values = Rows(values_of(sequence, kv_head), V4, false);
    let end = keys_end(block);
    // With 8 walked rows an invocation has no register left to hide the width in (nor is a head so short that it must).
    // Long chunks, if there are more than two, are not unrolled into each other in either case, and take fewer
    // instructions.
    let width = select(params.d4, D4, SHARE == 8u || (CHUNK == 8u && D4 > 2u * CHUNK));
    var sums: Sums; // Σ p v, to be divided by `total`
    for (var tile = first_key(sequence, block); tile < end; tile += TILE) {
        var p = scores_of(lane, place, queries, block, keys, tile, width);
        weigh(&p, place, mask_index(sequence + token, head), token, tile);
        sums = decayed(sums);
        // Up to four steps, written one by one: the weights stay in registers only if their indices are constants.
        put_weights(place, p, 0u);
        sums = add_rows(sums, lane, place, values, tile, 0u, end, COLUMNS);
        if (SHARE > PART && tile + row_of_step(PART, 0u) < end) {
            put_weights(place, p, PART);
            sums = add_rows(sums, lane, place, values, tile, PART, end, COLUMNS);
        }
        if (SHARE > 2u * PART && tile + row_of_step(2u * PART, 0u) < end) {
            put_weights(place, p, 2u * PART);
            sums = add_rows(sums, lane, place, values, tile, 2u * PART, end, COLUMNS);
        }
        if (SHARE > 3u * PART && tile + row_of_step(3u * PART, 0u) < end) {
            put_weights(place, p, SHARE - PART);
            sums = add_rows(sums, lane, place, values, tile, 3u * PART, end, COLUMNS);
        }
    }

    total = group_sum(total, place, columns_of(params.tokens));
    for (var r = 0u; r < 4u; r++) {
        if (token + r < params.tokens) {
            write_row(sums, place, sequence + token + r, head, r);
        }
    }
}

// One step of the online softmax: turns scores into weights. `index` numbers the first of the 4 queries and the head,
// for dropout.
fn weigh(scores: ptr<function, array<vec4<f32>, SHARE>>, place: Place, index: u32, token: u32, tile: u32) {
    var top = highest;
    for (var j = 0u; j < SHARE; j++) {
        let key = tile + row_of_share(place.column, j);
        var score = params.scale * (*scores)[j];
        @if(capped) { score = soft_capped4(score, params.cap, params.inverse_cap); }
        @if(alibi) { score += slope * (f32(key) - vec4<f32>(token + vec4<u32>(0u, 1u, 2u, 3u))); }
        (*scores)[j] = select(vec4<f32>(MASKED), score, is_seen(token, key));
        top = max(top, (*scores)[j]);
    }
    @if(dropout) let kept = kept_of_queries(index, token, tile + row_of_share(place.column, 0u));
    top = group_max(top, place, columns_of(params.tokens - tile));
    decay = exp2(highest - top);
    highest = top;
    total *= decay;
    for (var j = 0u; j < SHARE; j++) {
        let p = exp2((*scores)[j] - top);
        total += p;
        (*scores)[j] = p;
        @if(dropout) { (*scores)[j] = select(vec4<f32>(), p, is_kept_key(kept, j)); }
    }
}

fn decayed(sums: Sums) -> Sums {
    return Sums(decayed_quad(sums.a), decayed_quad(sums.b), decayed_quad(sums.c), decayed_quad(sums.d));
}

fn decayed_quad(quad: Quad) -> Quad {
    return Quad(quad.x * decay.x, quad.y * decay.y, quad.z * decay.z, quad.w * decay.w);
}

// Writes query r of the invocation; `row` is its row of `out`.
fn write_row(sums: Sums, place: Place, row: u32, head: u32, r: u32) {
    let at = results_of(row, head);
    for (var i = 0u; i < COLUMNS; i++) {
        let column = place.column + i * WIDTH;
        var sum = sum_of(sums, i, r);
        @if(dropout) { sum *= params.factor; }
        if (column < V4) {
            out[at + column] = store4(sum / total[r]);
        }
    }
    // The last head also clears the padding of the rows of lse and logits.
    let heads = select(1u, params.lse_stride - head, head == params.heads - 1u);
    if (place.column < heads) {
        let value = (highest[r] + log2(total[r])) * LN_2;
        let lse_at = params.lse_offset + row * params.lse_stride + head + place.column;
        lse[lse_at] = select(0.0, value, place.column == 0u);
        @if(logits) { logits[lse_at] = select(0.0, highest[r] * LN_2, place.column == 0u); }
    }
}
