// Tiles of the attention kernels for GPUs. A workgroup owns BLOCK rows (queries, or keys in backward_kv) and walks the
// other side, TILE rows at a time, in three steps:
//
//   scores     s (TILE, BLOCK) = Σ over columns  owned row · walked row
//   weights    w (STEP, BLOCK), which follow from the scores, go to workgroup memory: STEP of the TILE rows at once
//   sums       (BLOCK, columns) += Σ over walked rows  w · walked row
//
// Invocation (column, group) holds the scores of the owned rows 4 group + 0..3, as a vec4, with SHARE walked rows, of
// which each RUN are neighbours and PART belong to each step. It also holds the sums of those 4 rows in the vec4s
// column + WIDTH i of the columns. No invocation holds a whole row, so the number of registers does not grow with the
// head size as long as WIDTH grows with it.
// Rows are staged CHUNK vec4s at a time for the scores and whole for the sums. Every function that reads workgroup
// memory ends with a barrier, so that all 16 KiB of it are free unless stated otherwise.
// Source: Dao, "FlashAttention-2", 2023, section 3.3 (partition of work within a block).

import package::lib::attention::add_dot;
import package::tile::{CHUNK, GROUPS, SHARE, WIDTH};

const BLOCK: u32 = 4u * GROUPS;
const TILE: u32 = WIDTH * SHARE;
const LANES: u32 = WIDTH * GROUPS;
const PART: u32 = min(SHARE, 512u / LANES);
@if(dropout) const RUN: u32 = min(SHARE, 4u); // number of neighbours, whose words are drawn together
@if(!dropout) const RUN: u32 = PART;
const STEP: u32 = WIDTH * PART;
const PITCH: u32 = select(CHUNK + 1u, 8u, CHUNK == 8u); // neighbouring rows start in different banks; see `turned`
const WEIGHTS: u32 = STEP * GROUPS; // vec4s of weights
const ROWS: u32 = 512u; // vec4s of rows for the sums

// Weights, then rows for the sums. Rows for the scores are at the end, where they overlap the weights if SHARE is 8.
var<workgroup> memory: array<vec4<f32>, WEIGHTS + ROWS>;

const OWNED: u32 = WEIGHTS + ROWS - (BLOCK + TILE) * PITCH; // where owned rows start
const WALKED: u32 = OWNED + BLOCK * PITCH;

// The place of an invocation in its workgroup.
struct Place {
    column: u32,
    group: u32,
}

// The sums of 4 owned rows in one vec4 of columns.
struct Quad {
    x: vec4<f32>,
    y: vec4<f32>,
    z: vec4<f32>,
    w: vec4<f32>,
}

// The sums of an invocation, in up to 4 vec4s of columns, WIDTH apart. They have names because an array would have to
// be indexed by a loop with barriers, which not every compiler unrolls; the array would then be in memory.
struct Sums {
    a: Quad,
    b: Quad,
    c: Quad,
    d: Quad,
}

fn place_of(lane: u32) -> Place {
    return Place(lane % WIDTH, lane / WIDTH);
}

// Where column c of a chunk of owned row `row` is staged.
fn owned_slot(row: u32, c: u32) -> u32 {
    return OWNED + row * PITCH + turned(row / 4u, c);
}

// Where column c of a chunk of the walked row at `place` is staged. The places have the order of `walked_row`.
fn walked_slot(place: u32, c: u32) -> u32 {
    return WALKED + place * PITCH + turned(place, c);
}

// Where column c of a chunk is in a row. Chunks of 8 leave no room between rows, so each of 8 neighbouring rows has its
// columns in another order and starts in another bank. The 4 owned rows of an invocation, which it reads one after the
// other, have the same order.
fn turned(row: u32, c: u32) -> u32 {
    if (CHUNK == 8u) {
        return c ^ (row % 8u);
    }
    return c;
}

// The row of the tile that is row j of the invocations of a column.
fn row_of_share(column: u32, j: u32) -> u32 {
    return (j / RUN * WIDTH + column) * RUN + j % RUN;
}

// Which walked row of the tile is staged at place column + WIDTH j for the scores.
fn walked_row(place: u32) -> u32 {
    return row_of_share(place % WIDTH, place / WIDTH);
}

// The row of the tile that is row i of the step which starts with row `first` of each invocation.
fn row_of_step(first: u32, i: u32) -> u32 {
    return row_of_share(i / PART, first + i % PART);
}

// How many rows of that step contain all that exist, if the tile has `rows` rows.
fn rows_of_step(first: u32, rows: u32) -> u32 {
    return PART * columns_of(rows - min(first / RUN * RUN * WIDTH, rows));
}

// Adds the products of one staged chunk of `width` vec4s to the scores of all walked rows of the invocation.
fn add_scores(scores: array<vec4<f32>, SHARE>, place: Place, width: u32) -> array<vec4<f32>, SHARE> {
    var s = scores;
    for (var c = 0u; c < width; c++) {
        let owned = owned_slot(4u * place.group, c);
        let x = memory[owned];
        let y = memory[owned + PITCH];
        let z = memory[owned + 2u * PITCH];
        let w = memory[owned + 3u * PITCH];
        let nearest = walked_slot(place.column, c);
        for (var j = 0u; j < SHARE; j++) {
            let walked = memory[nearest + j * WIDTH * PITCH];
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

// Publishes the weights of the walked rows first..first + PART of the invocation: those of one step.
fn put_weights(place: Place, values: array<vec4<f32>, SHARE>, first: u32) {
    for (var j = 0u; j < PART; j++) {
        memory[(PART * place.column + j) * GROUPS + place.group] = values[first + j];
    }
}

// The weights that the invocation published for its walked row j.
fn weight_of(place: Place, j: u32) -> vec4<f32> {
    return memory[(PART * place.column + j) * GROUPS + place.group];
}

// Where vec4 i of the rows for the sums is staged.
fn row_slot(i: u32) -> u32 {
    return WEIGHTS + i;
}

// How many walked rows are staged at once for the sums, if an invocation sums `columns` vec4s.
fn portion_of(columns: u32) -> u32 {
    return min(STEP, ROWS / WIDTH / select(columns, 4u, columns == 3u));
}

// Adds the weighted sum of the first `rows` staged rows, the first of which is row number `skipped` of the step. The
// parameter hides the number of rows: compilers unroll a loop of 32, and then spill on Intel.
fn add_weighted(sums: Sums, place: Place, columns: u32, skipped: u32, rows: u32) -> Sums {
    var s = sums;
    for (var row = 0u; row < rows; row++) {
        let weight = memory[(skipped + row) * GROUPS + place.group];
        let at = row_slot(row * columns * WIDTH + place.column);
        s.a = add_product(s.a, weight, memory[at]);
        if (columns > 1u) { s.b = add_product(s.b, weight, memory[at + WIDTH]); }
        if (columns > 2u) { s.c = add_product(s.c, weight, memory[at + 2u * WIDTH]); }
        if (columns > 3u) { s.d = add_product(s.d, weight, memory[at + 3u * WIDTH]); }
    }
    return s;
}

fn add_product(sum: Quad, weight: vec4<f32>, value: vec4<f32>) -> Quad {
    return Quad(
        fma(vec4<f32>(weight.x), value, sum.x),
        fma(vec4<f32>(weight.y), value, sum.y),
        fma(vec4<f32>(weight.z), value, sum.z),
        fma(vec4<f32>(weight.w), value, sum.w),
    );
}

// The sums of row r of the 4 owned rows, in vec4 i of the columns of the invocation.
fn sum_of(sums: Sums, i: u32, r: u32) -> vec4<f32> {
    switch i {
        case 0u: { return row_of(sums.a, r); }
        case 1u: { return row_of(sums.b, r); }
        case 2u: { return row_of(sums.c, r); }
        default: { return row_of(sums.d, r); }
    }
}

fn row_of(quad: Quad, r: u32) -> vec4<f32> {
    return select(select(quad.x, quad.y, r == 1u), select(quad.z, quad.w, r == 3u), r > 1u);
}

// The largest of `value` over the first `columns` invocations of a group, for each of its 4 rows. In workgroups of 256,
// whose groups are wider, it is first taken over every 4 invocations. The number of values is hidden from compilers,
// which would load all of them into registers at once.
fn group_max(value: vec4<f32>, place: Place, columns: u32) -> vec4<f32> {
    let own = place.group * WIDTH + place.column;
    if (LANES <= 128u) {
        return strided_max(value, own, place.group * WIDTH, 1u, columns);
    }
    let of_four = strided_max(value, own, own - own % 4u, 1u, min(4u, columns));
    return strided_max(of_four, own, place.group * WIDTH, 4u, (columns + 3u) / 4u);
}

// The largest of the values that `count` invocations publish in slots `stride` apart, from slot `first` on. This
// invocation publishes `value` in slot `own`.
fn strided_max(value: vec4<f32>, own: u32, first: u32, stride: u32, count: u32) -> vec4<f32> {
    memory[own] = value;
    workgroupBarrier();
    var largest = memory[first];
    for (var i = 1u; i < count; i++) {
        largest = max(largest, memory[first + i * stride]);
    }
    workgroupBarrier();
    return largest;
}

// The sum of `value` over the first `columns` invocations of a group, in a fixed order.
fn group_sum(value: vec4<f32>, place: Place, columns: u32) -> vec4<f32> {
    memory[place.group * WIDTH + place.column] = value;
    workgroupBarrier();
    var sum = memory[place.group * WIDTH];
    for (var i = 1u; i < columns; i++) {
        sum += memory[place.group * WIDTH + i];
    }
    workgroupBarrier();
    return sum;
}

// How many invocations of a group hold one of the first `rows` walked rows of the tile.
fn columns_of(rows: u32) -> u32 {
    return min(WIDTH, (rows + RUN - 1u) / RUN);
}
