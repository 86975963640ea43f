// Attention backward, keys and values, portable tier (formulas, tensors and masks as in
// attention/software/backward_kv.wgsl):
//
//   dv = Σ p dout,   dk = scale Σ ds q      over every query that sees the key, in every head of the key's group
//
// A workgroup owns BLOCK keys of one key head and walks the heads of the group and their queries, TILE at a time
// (attention/portable/tiles.wgsl): two tiles of scores, k·q and v·dout, and two sums, weighted by p and by ds. The
// order of summation is fixed, and there are no atomics.
// key_parts: a workgroup walks only some heads of the group, and writes its part of dk and dv
// (attention/portable/sum_keys.wgsl).
// split: a workgroup owns several blocks of keys in turn (attention/portable/parts.wgsl), and also adds Σ ds k to its
// own part of dq. Tiles start at multiples of GROUPS, so one invocation makes all additions to an element of the part.
// Numerics: f32; p is set to zero where masked.
// Source: Dao, "FlashAttention-2", 2023, algorithm 2.

@if(windowed || segmented) import package::attention::bounds::end_seen;
import package::attention::gradients_of_keys::{dk_of, dv_of, put_gradient};
import package::attention::heads::{gradients_of, keys_of, queries_of, values_of};
@if(dropout) import package::attention::params::mask_index;
import package::attention::params::params;
@if(dropout) import package::attention::portable::kept_weights::{is_kept_query, kept_of_keys};
@if(split) import package::attention::portable::parts::block_of;
import package::attention::portable::staging::{Rows, add_rows, scores_of};
@if(split) import package::attention::portable::staging::stage_rows;
import package::attention::portable::tiles::{BLOCK, LANES, OWNED, PART, Place, Sums, TILE, WEIGHTS, place_of};
import package::attention::portable::tiles::{put_weights, row_of_share, row_of_step, sum_of, weight_of};
@if(split) import package::attention::portable::tiles::{Quad, RUN, memory, row_slot};
import package::lib::attention::LOG2_E;
@if(alibi) import package::lib::attention::alibi_slope;
@if(capped) import package::lib::soft_cap::{soft_cap_slope4, soft_capped4};
import package::tile::{D4, GROUPS, SHARE, V4, WIDTH};

@if(split) @group(0) @binding(2) var<storage, read_write> parts: array<vec4<f32>>; // (P, N, heads · 4 D4)
@group(0) @binding(4) var<storage, read> lse: array<f32>;
@group(0) @binding(5) var<storage, read> delta: array<f32>;

// Whether dp, the result of the first step, waits in the memory of the weights, if rows for the scores leave that free.
// Intel's GPUs do not have the registers to hold dp beside the other scores and the sums if these are wide or masks
// many.
const WAITS: bool = OWNED >= WEIGHTS;

const_assert SHARE == PART || SHARE == 2u * PART;

const K_COLUMNS: u32 = (D4 + WIDTH - 1u) / WIDTH; // vec4s of a row of dk that an invocation sums
const V_COLUMNS: u32 = (V4 + WIDTH - 1u) / WIDTH;

var<private> dk: Sums;
var<private> dv: Sums;
@if(split) const_assert PART == RUN; // rows of a step are those of the tile, and rows of a block can be staged as such
@if(split) const QUERIES: u32 = min(TILE / GROUPS, 4u); // queries of dq whose sums an invocation holds at once
@if(split) var<private> part: u32; // number of its part of dq
@if(split) var<private> written: u32; // one past the last query of which the part holds anything

// A query head in one sequence, and the first row of the sequence.
struct Head {
    index: u32,
    sequence: u32,
    queries: Rows,
    gradients: Rows,
}

@compute @workgroup_size(LANES)
fn attention_backward_kv(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let place = place_of(lane);
    let sequence = workgroup.y * params.tokens;
    let first_head = workgroup.x * params.share;
    @if(!split) { own_keys(lane, place, sequence, first_head, workgroup.z * BLOCK); }
    @if(split) {
        part = workgroup.z;
        for (var i = 0u; i * params.parts * BLOCK < params.tokens; i++) {
            let block = block_of(workgroup.z, i) * BLOCK;
            if (block < params.tokens) {
                written = own_keys(lane, place, sequence, first_head, block);
            }
        }
    }
}

// Computes the gradients of the keys from `block` on through the heads from `first_head` on. Returns one past the last
// query that sees any of them.
fn own_keys(lane: u32, place: Place, sequence: u32, first_head: u32, block: u32) -> u32 {
    let key = block + 4u * place.group;
    let kv_head = first_head / params.group;
    let keys = Rows(keys_of(sequence, kv_head), D4, false);
    let values = Rows(values_of(sequence, kv_head), V4, false);
    @if(split) { dk = Sums(); }
    @if(split) { dv = Sums(); }

    @if(causal) let first = block; // earlier queries see no key of this block
    @if(!causal) let first = 0u;
    @if(windowed || segmented) let end = end_seen(sequence, min(block + BLOCK, params.tokens) - 1u);
    @if(!windowed && !segmented) let end = params.tokens;
    // At the end it serves as well as the first head, which then need not be kept beside it.
    let last_head = first_head + params.share - 1u;
    for (var i = first_head; i <= last_head; i++) {
        let queries = Rows(queries_of(sequence, i), D4, false);
        let head = Head(i, sequence, queries, Rows(gradients_of(sequence, i), V4, true));
        for (var tile = first; tile < end; tile += TILE) {
            gather_from(lane, place, head, keys, values, block, tile, min(tile + TILE, end));
        }
    }

    for (var r = 0u; r < 4u; r++) {
        if (key + r < params.tokens) {
            write_row(place, sequence + key + r, last_head, r);
        }
    }
    return end;
}

// Adds the contribution of the queries from `tile` to `end` (exclusive), which are one tile.
fn gather_from(lane: u32, place: Place, head: Head, keys: Rows, values: Rows, block: u32, tile: u32, end: u32) {
    let key = block + 4u * place.group;
    @if(dropout) let kept = kept_of_keys(mask_index(head.sequence + tile, head.index), place, tile, end, key);
    let dp = scores_of(lane, place, values, block, head.gradients, tile, params.v4);
    if (WAITS) { put_weights(place, dp, 0u); }
    let s = scores_of(lane, place, keys, block, head.queries, tile, params.d4);

    var p: array<vec4<f32>, SHARE>;
    var ds: array<vec4<f32>, SHARE>;
    @if(windowed || segmented) let ends_of = ends_seen(head.sequence, key);
    @if(!windowed && !segmented) let ends_of = vec4<u32>(params.tokens);
    for (var j = 0u; j < SHARE; j++) {
        let query = tile + row_of_share(place.column, j);
        let row = head.sequence + min(query, params.tokens - 1u);
        let lse_of = LOG2_E * lse[params.lse_offset + row * params.lse_stride + head.index];
        @if(!capped) var score = (params.scale * LOG2_E) * s[j] - lse_of;
        @if(capped) let capped = soft_capped4((params.scale * LOG2_E) * s[j], params.cap, params.inverse_cap);
        @if(capped) var score = capped - lse_of;
        @if(alibi) {
            // A slope kept from head to head, or a vector of keys, would cost registers that Intel's GPUs lack at a
            // head size of 128.
            let slope = alibi_slope(params.first_head + head.index, params.all_heads);
            score -= slope * (f32(i32(query) - i32(key)) - vec4<f32>(0.0, 1.0, 2.0, 3.0));
        }
        p[j] = select(vec4<f32>(), exp2(score), sees(query, key, ends_of));
        var weighted = dp[j];
        if (WAITS && j < PART) { weighted = weight_of(place, j); }
        @if(dropout) let mask = select(vec4<f32>(), vec4<f32>(params.factor), is_kept_query(kept, j));
        @if(dropout) { weighted *= mask; }
        ds[j] = p[j] * (weighted - delta[row * params.delta_stride + head.index]);
        @if(capped) { ds[j] *= soft_cap_slope4(capped, params.inverse_cap); }
        @if(dropout) { p[j] *= mask; }
    }
    put_weights(place, p, 0u);
    dv = add_rows(dv, lane, place, head.gradients, tile, 0u, end, V_COLUMNS);
    put_weights(place, ds, 0u);
    dk = add_rows(dk, lane, place, head.queries, tile, 0u, end, K_COLUMNS);
    if (SHARE > PART && tile + row_of_step(PART, 0u) < end) {
        put_weights(place, p, PART);
        dv = add_rows(dv, lane, place, head.gradients, tile, PART, end, V_COLUMNS);
        put_weights(place, ds, PART);
        dk = add_rows(dk, lane, place, head.queries, tile, PART, end, K_COLUMNS);
    }
    @if(split) { add_queries(lane, place, head, keys, block, tile, end); }
}

// Adds Σ ds k over the owned keys to the part of dq, for the queries from `tile` to `end` (exclusive); ds are the
// published weights. Invocation (column, group) computes 4 columns of the queries group + GROUPS i of the tile, a few
// at a time.
@if(split)
fn add_queries(lane: u32, place: Place, head: Head, keys: Rows, block: u32, tile: u32, end: u32) {
    // Groups of keys that exist; this hides their number from compilers.
    let groups = min(GROUPS, (params.tokens - block + 3u) / 4u);
    for (var c = 0u; c < params.d4; c += WIDTH) {
        stage_rows(lane, Rows(keys.start + c, D4 - c, false), block, 0u, 0u, BLOCK, 1u);
        workgroupBarrier();
        for (var row = place.group; row < end - tile; row += GROUPS * QUERIES) {
            var sums: array<vec4<f32>, QUERIES>;
            for (var group = 0u; group < groups; group++) {
                let at = row_slot(4u * group * WIDTH + place.column);
                let k = Quad(memory[at], memory[at + WIDTH], memory[at + 2u * WIDTH], memory[at + 3u * WIDTH]);
                for (var i = 0u; i < QUERIES; i++) {
                    let ds = memory[(row + GROUPS * i) * GROUPS + group];
                    sums[i] = fma(vec4<f32>(ds.x), k.x, fma(vec4<f32>(ds.y), k.y, sums[i]));
                    sums[i] = fma(vec4<f32>(ds.z), k.z, fma(vec4<f32>(ds.w), k.w, sums[i]));
                }
            }
            for (var i = 0u; i < QUERIES; i++) {
                let query = tile + row + GROUPS * i;
                if (query < end && c + place.column < D4) {
                    add_to_part(head, query, c + place.column, sums[i]);
                }
            }
        }
        workgroupBarrier();
    }
}

// Adds to column `column` of a query in the part of dq. The part holds nothing yet for queries from `written` on.
@if(split)
fn add_to_part(head: Head, query: u32, column: u32, sum: vec4<f32>) {
    let at = (part * params.rows + head.sequence + query) * params.heads * D4 + head.index * D4 + column;
    var value = sum;
    if (query < written) { value += parts[at]; }
    parts[at] = value;
}

// Whether `query` sees each of the 4 keys from `key` on. A key is not seen by queries from its element of `ends` on.
@if(!causal)
fn sees(query: u32, key: u32, ends: vec4<u32>) -> vec4<bool> {
    return (key + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(params.tokens)) & (vec4<u32>(query) < ends);
}

@if(causal)
fn sees(query: u32, key: u32, ends: vec4<u32>) -> vec4<bool> {
    return (key + vec4<u32>(0u, 1u, 2u, 3u) <= vec4<u32>(query)) & (vec4<u32>(query) < ends);
}

// One past the last query that sees each of the 4 keys from `key` on.
@if(windowed || segmented)
fn ends_seen(sequence: u32, key: u32) -> vec4<u32> {
    var seen: vec4<u32>;
    for (var r = 0u; r < 4u; r++) {
        seen[r] = end_seen(sequence, min(key + r, params.tokens - 1u));
    }
    return seen;
}

// Writes the gradients of the invocation's key r and of its value, which are row `row` of N. `head` is any head that
// the workgroup walks.
fn write_row(place: Place, row: u32, head: u32, r: u32) {
    for (var i = 0u; i < K_COLUMNS; i++) {
        let column = place.column + i * WIDTH;
        if (column < D4) {
            put_gradient(dk_of(row, head) + column, params.scale * sum_of(dk, i, r));
        }
    }
    for (var i = 0u; i < V_COLUMNS; i++) {
        let column = place.column + i * WIDTH;
        if (column < V4) {
            put_gradient(dv_of(row, head) + column, sum_of(dv, i, r));
        }
    }
}
