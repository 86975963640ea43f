// Tiles of the attention kernels for GPUs. A workgroup owns BLOCK rows (queries; in backward_kv keys) and walks the other
// side, TILE rows at a time, with three steps in common:
//
//   scores     s (TILE, BLOCK) = Σ over columns  owned row · walked row
//   weights    w (TILE, BLOCK), which follow from the scores, go to workgroup memory
//   sums       (BLOCK, columns) += Σ over walked rows  w · walked row
//
// Invocation (column, group) holds the scores of the owned rows 4 group + 0..3, as a vec4, with the walked rows
// SHARE column + 0..SHARE-1, and the sums of those 4 rows in the columns 4 (column + WIDTH c) + 0..3. No invocation
// holds a whole row, so registers do not grow with the head size as long as WIDTH grows with it.
// Rows are staged CHUNK vec4s at a time for the scores and WIDTH vec4s at a time for the sums, PORTION rows at once.
// Workgroup memory: 15 KiB at most. `staged` is read and written by all: every stage_* is preceded and followed by a barrier.
// Source: Dao, "FlashAttention-2", 2023, section 3.3 (partition of work within a block).

import package::lib::attention::add_dot;
import package::tile::{CHUNK, WIDTH};

const GROUPS: u32 = 8u; // of 4 owned rows
const BLOCK: u32 = 4u * GROUPS;
const TILE: u32 = 32u; // as many as BLOCK, so that one loop stages both sides for the scores
const SHARE: u32 = TILE / WIDTH; // walked rows of an invocation
const PORTION: u32 = min(TILE, 512u / WIDTH); // walked rows staged for the sums: 8 KiB at most
const LANES: u32 = WIDTH * GROUPS;
const PITCH: u32 = CHUNK + 1u; // neighbouring rows start in different banks
const WALKED: u32 = BLOCK * PITCH; // where the walked rows start in `staged`

var<workgroup> staged: array<vec4<f32>, max((BLOCK + TILE) * PITCH, PORTION * WIDTH)>;
var<workgroup> weights: array<vec4<f32>, TILE * GROUPS>;
var<workgroup> partials: array<vec4<f32>, LANES>;

// The place of an invocation in its workgroup.
struct Place {
    column: u32,
    group: u32,
}

// The sums of 4 owned rows, in 4 columns each.
struct Quad {
    x: vec4<f32>,
    y: vec4<f32>,
    z: vec4<f32>,
    w: vec4<f32>,
}

// The sums of owned row r of the 4.
fn row_of(quad: Quad, r: u32) -> vec4<f32> {
    return select(select(quad.x, quad.y, r == 1u), select(quad.z, quad.w, r == 3u), r > 1u);
}

fn place_of(lane: u32) -> Place {
    return Place(lane % WIDTH, lane / WIDTH);
}

// Where column c of a chunk of owned row `row` is staged.
fn owned_slot(row: u32, c: u32) -> u32 {
    return row * PITCH + c;
}

// The same for walked rows. Rows of one invocation are WIDTH apart, so that neighbouring invocations read neighbouring rows.
fn walked_slot(row: u32, c: u32) -> u32 {
    return WALKED + (row % SHARE * WIDTH + row / SHARE) * PITCH + c;
}

// Adds the products of one staged chunk of `width` vec4s to the scores of all walked rows of the invocation.
fn add_scores(scores: array<vec4<f32>, SHARE>, place: Place, width: u32) -> array<vec4<f32>, SHARE> {
    var s = scores;
    for (var c = 0u; c < width; c++) {
        let first = 4u * place.group;
        let x = staged[owned_slot(first, c)];
        let y = staged[owned_slot(first + 1u, c)];
        let z = staged[owned_slot(first + 2u, c)];
        let w = staged[owned_slot(first + 3u, c)];
        for (var j = 0u; j < SHARE; j++) {
            let walked = staged[walked_slot(SHARE * place.column + j, c)];
            s[j] = vec4<f32>(
                add_dot(s[j].x, x, walked),
                add_dot(s[j].y, y, walked),
                add_dot(s[j].z, z, walked),
                add_dot(s[j].w, w, walked),
            );
        }
    }
    return s;
}

// Publishes the weights of walked row j of the invocation.
fn put_weights(place: Place, j: u32, value: vec4<f32>) {
    weights[(SHARE * place.column + j) * GROUPS + place.group] = value;
}

// The weights of walked row j that the invocation published.
fn weight_of(place: Place, j: u32) -> vec4<f32> {
    return weights[(SHARE * place.column + j) * GROUPS + place.group];
}

// Where column `column` of walked row `row` is staged for the sums.
fn sum_slot(row: u32, column: u32) -> u32 {
    return row * WIDTH + column;
}

// Adds the weighted sum of the staged columns of the walked rows tile..end (exclusive), at most TILE.
fn add_weighted(quad: Quad, place: Place, tile: u32, end: u32) -> Quad {
    return add_portion(quad, place, 0u, tile, end);
}

// The same of the rows first..end of a tile, at most PORTION, of which row first is number `skipped` of the tile. The bounds
// hide how many there are: compilers unroll a loop of 32, and then spill on Intel.
fn add_portion(quad: Quad, place: Place, skipped: u32, first: u32, end: u32) -> Quad {
    var sum = quad;
    for (var walked = first; walked < end; walked++) {
        let row = walked - first;
        let weight = weights[(skipped + row) * GROUPS + place.group];
        let value = staged[sum_slot(row, place.column)];
        sum.x = fma(vec4<f32>(weight.x), value, sum.x);
        sum.y = fma(vec4<f32>(weight.y), value, sum.y);
        sum.z = fma(vec4<f32>(weight.z), value, sum.z);
        sum.w = fma(vec4<f32>(weight.w), value, sum.w);
    }
    return sum;
}

// The largest of `value` over the invocations of a group, for each of its 4 rows.
fn group_max(value: vec4<f32>, place: Place) -> vec4<f32> {
    partials[place.group * WIDTH + place.column] = value;
    workgroupBarrier();
    var largest = partials[place.group * WIDTH];
    for (var i = 1u; i < WIDTH; i++) {
        largest = max(largest, partials[place.group * WIDTH + i]);
    }
    workgroupBarrier(); // the next reduction writes the same memory
    return largest;
}

// The sum over the invocations of a group, in a fixed order.
fn group_sum(value: vec4<f32>, place: Place) -> vec4<f32> {
    partials[place.group * WIDTH + place.column] = value;
    workgroupBarrier();
    var sum = partials[place.group * WIDTH];
    for (var i = 1u; i < WIDTH; i++) {
        sum += partials[place.group * WIDTH + i];
    }
    workgroupBarrier();
    return sum;
}
