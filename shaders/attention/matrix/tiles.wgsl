// Tiles of the attention kernels by cooperative matrices (lib/matrix.wgsl). As on the portable tier, a workgroup owns
// BLOCK rows (queries, or keys in backward_kv) and walks the other side, TILE rows at a time, in three steps:
//
//   scores     s (BLOCK, TILE) = owned row · walked row, by matrices, f32, to workgroup memory
//   weights    w (BLOCK, TILE), f16, which follow from the scores, to workgroup memory
//   sums       (BLOCK, columns) += Σ over walked rows  w · walked row, by matrices
//
// A subgroup owns a strip of SIDE rows and keeps their operands and sums in its registers, each matrix in a variable of
// its own, since drivers refuse arrays of matrices. The driver decides how many subgroups there are. If there are fewer
// than strips, they own the rows of the block in turns; subgroups beyond the last strip repeat its work. Matrices are
// of no use between scores and weights: there all lanes share the rows, PARTS lanes to a row, each with SHARE
// neighbouring scores of the row.
// With `wide_heads` (backward) two subgroups share a strip, so that registers suffice for heads twice as wide. Each has
// half of the columns of operands and sums; both parts of a score are put into memory, and lanes add them up.
// Walked rows are loaded in blocks of 4 x 4 elements, and staged as rows for scores and as columns for sums, so that
// lanes always read whole vectors that lie along k. Rows past the end repeat the last token's row, and masks exclude
// them. Elements past the end of a row are zero where they would be multiplied.
// Sources: Dao, "FlashAttention-2", 2023, section 3.3.

import package::attention::heads::{keys_of, queries_of, values_of};
import package::attention::matrix::scales::{Stored, half4};
import package::attention::params::params;
import package::lib::matrix::{Floats, OF_FOUR, OF_SIDE, SIDE, Sum, VECTOR};
import package::tile::{D4, LANES, V4};

enable f16;
enable wgpu_cooperative_matrix;

@group(0) @binding(1) var<storage, read> qkv: array<Stored>;

@if(!wide_heads) const SHARERS: u32 = 1u; // subgroups of a strip
@if(wide_heads) const SHARERS: u32 = 2u;
const STRIPS: u32 = 4u / SHARERS;
const BLOCK: u32 = STRIPS * SIDE;
const TILE: u32 = 2u / SHARERS * SIDE;
const PARTS: u32 = min(LANES / BLOCK, TILE / 4u); // with `wide_heads` there may be lanes without a row
const SHARE: u32 = TILE / PARTS;
const SHARE4: u32 = SHARE / 4u;

const D_OWN: u32 = (4u * D4 + SHARERS * SIDE - 1u) / (SHARERS * SIDE); // matrices of a subgroup along queries and keys
const V_OWN: u32 = (4u * V4 + SHARERS * SIDE - 1u) / (SHARERS * SIDE); // matrices of a subgroup along values
const D_STEPS: u32 = SHARERS * D_OWN; // all of a row
const V_STEPS: u32 = SHARERS * V_OWN;
const D_GROUPS: u32 = D_STEPS * SIDE / 4u;
const V_GROUPS: u32 = V_STEPS * SIDE / 4u;

// Distances between rows in workgroup memory: multiples of 16 bytes, so that neighbouring rows start in different
// banks.
const SCORES_OF_ROW: u32 = TILE + 4u;
const SCORE_STRIDE: u32 = SCORES_OF_ROW / VECTOR;
const WEIGHT_STRIDE: u32 = (TILE + 8u) / VECTOR; // of weights, and of columns of walked rows
const D_STRIDE: u32 = (D_STEPS * SIDE + 8u) / VECTOR;
const V_STRIDE: u32 = (V_STEPS * SIDE + 8u) / VECTOR;

const BLOCKS_DOWN: u32 = TILE / 4u;
const TURNS: u32 = (BLOCKS_DOWN * max(D_GROUPS, V_GROUPS) + LANES - 1u) / LANES; // blocks that a lane stages

alias Fetched = array<Stored, 4u * TURNS>;
alias Blocks = array<vec4<f16>, 4u * TURNS>;

var<workgroup> scores: array<Floats, SHARERS * BLOCK * SCORE_STRIDE>;
// In x. Four, since the size of every variable is a multiple of 16 bytes, whichever is first in workgroup memory.
var<workgroup> subgroups_there: vec4<u32>;

// The place of a lane among the scores: a row of the block, and a part of it.
struct Place {
    row: u32,
    part: u32,
}

fn place_of(lane: u32) -> Place {
    return Place(lane / PARTS, lane % PARTS);
}

// Where the scores of a lane start.
fn scores_at(place: Place) -> u32 {
    return place.row * SCORE_STRIDE + place.part * SHARE4 * OF_FOUR;
}

// Writes a matrix to the place of the scores of the strip that starts with row `strip` with the walked rows j. `taken`
// reads it back.
fn put(sum: Sum, strip: u32, j: u32) {
    coopStoreT(sum, &scores[strip * SCORE_STRIDE + j * OF_SIDE], SCORE_STRIDE);
}

fn put_both(first: Sum, second: Sum, strip: u32) {
    put(first, strip, 0u);
    put(second, strip, 1u);
}

fn taken(strip: u32, j: u32) -> Sum {
    return coopLoadT<Sum>(&scores[strip * SCORE_STRIDE + j * OF_SIDE], SCORE_STRIDE);
}

// Group i of the scores of a lane, or of the values that were put in their place.
fn score4(place: Place, i: u32) -> vec4<f32> {
    let at = scores_at(place) + OF_FOUR * i;
    @if(!scalar_pointers) { return scores[at]; }
    @if(scalar_pointers) { return vec4<f32>(scores[at], scores[at + 1u], scores[at + 2u], scores[at + 3u]); }
}

// The score in column j of a row.
fn one_score(row: u32, j: u32) -> f32 {
    let at = row * SCORE_STRIDE + j / VECTOR;
    @if(!scalar_pointers) { return scores[at][j % 4u]; }
    @if(scalar_pointers) { return scores[at]; }
}

// The same, summed over the parts of all subgroups of a strip.
fn whole4(place: Place, i: u32) -> vec4<f32> {
    @if(!wide_heads) { return score4(place, i); }
    @if(wide_heads) { return score4(place, i) + score4(Place(place.row + BLOCK, place.part), i); }
}

// Zeros for all strips, from which the sums start: not every adapter documents what it takes for the zero value of a
// matrix.
fn clear_scores(lane: u32) {
    for (var i = lane; i < SHARERS * BLOCK * SCORE_STRIDE; i += LANES) {
        scores[i] = Floats();
    }
}

// How many strips are computed side by side, the same for all lanes. (There are SHARERS at least.)
fn strips_at_once(lane: u32, subgroups: u32) -> u32 {
    if (lane == 0u) {
        subgroups_there.x = clamp(subgroups / SHARERS, 1u, STRIPS);
    }
    return workgroupUniformLoad(&subgroups_there).x;
}

// The first row of block e of a tile, and its group of 4 columns. Neighbouring lanes stage neighbouring rows, so that
// staged columns do not meet in one bank.
fn row_of(e: u32) -> u32 { return e % BLOCKS_DOWN * 4u; }
fn group_of(e: u32) -> u32 { return e / BLOCKS_DOWN; }

// The columns of a head in all rows of a sequence: where they start in the first row, the distance between rows, and
// how many groups of 4 columns there are.
struct Rows {
    start: u32,
    stride: u32,
    width: u32,
}

// Where to load group i of the groups that a lane stages of the tile of rows from `tile` on.
fn source_of(lane: u32, rows: Rows, tile: u32, i: u32) -> u32 {
    let e = lane + LANES * (i / 4u);
    let row = min(tile + row_of(e) + i % 4u, params.tokens - 1u);
    return rows.start + row * rows.stride + min(group_of(e), rows.width - 1u);
}

// The blocks of a tile of qkv that a lane stages.
fn fetch(lane: u32, rows: Rows, tile: u32) -> Fetched {
    var fetched: Fetched;
    for (var i = 0u; i < 4u * TURNS; i++) {
        fetched[i] = qkv[source_of(lane, rows, tile, i)];
    }
    return fetched;
}

// What was fetched, as matrices take it.
fn halves(fetched: Fetched, scale: f32) -> Blocks {
    var stored = fetched; // naga allows dynamic indexing of variables, not of values
    var blocks: Blocks;
    for (var i = 0u; i < 4u * TURNS; i++) {
        blocks[i] = half4(stored[i], scale);
    }
    return blocks;
}

fn queries_in(sequence: u32, head: u32) -> Rows { return Rows(queries_of(sequence, head), params.qkv_stride, D4); }
fn keys_in(sequence: u32, kv_head: u32) -> Rows { return Rows(keys_of(sequence, kv_head), params.qkv_stride, D4); }
fn values_in(sequence: u32, kv_head: u32) -> Rows { return Rows(values_of(sequence, kv_head), params.qkv_stride, V4); }

// Whether a lane's row is one of the block's rows, after the rows that were owned in earlier turns, and one of the
// sequence's rows.
fn is_owned(place: Place, token: u32, skipped: u32, together: u32) -> bool {
    return place.row < together * SIDE && skipped + place.row < BLOCK && token < params.tokens;
}
