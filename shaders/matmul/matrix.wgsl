// Matrix product, matrix tier:   y (M, N) [+]= a · b  [+ bias] [+ residual]      (operands as in matmul/software.wgsl,
// b also quantised; `grouped`, `split`: matmul/operands.wgsl)
//
// A workgroup computes a tile of 64·TM4 rows by 64·TN4 columns of y, as on the portable tier, by cooperative matrices
// of 16 x 16, or of 8 x 8 with `small_matrices`. A subgroup owns a patch of 2 by 4 matrices, with each sum in a
// variable of its own, since drivers refuse arrays of matrices. The driver decides how many subgroups there are. If
// there are fewer than patches, they take the patches in turns; subgroups beyond the last patch repeat its work and
// store nothing.
//
// The workgroup walks K in slices of DEPTH steps. While one slice is multiplied, the next is loaded into registers.
// Both operands are staged with their rows (of a) or columns (of b) along k, so far apart that lanes read whole vectors
// from different banks. Blocks of 4 x 4 elements that lie the other way round are transposed before they are staged.
// Elements past the end of K are staged as zeros. Past the other edges, loads fetch row or column 0 or the last ones,
// whose sums are not stored.
// The sums are stored through workgroup memory, since it is not specified which lane holds which element.
// swiglu: the first half of a patch's columns are columns of gate, and the second half are the columns of up that go
// with them.
// Numerics: products are exact and added up in f32. Within 16 or 8 steps the adapter chooses the order; slices are
// added in ascending order. What is not f16 is staged as f16, times powers of two that are undone in the result, and
// f32 as two terms, whose low one counts 2^-11 (lib/half_scale has the errors). Low times high has sums of its own.

@if(!f16) import package::lib::element::Packed;
@if(!f16 || nf4 || int8) import package::lib::half_scale::{UNSCALED, half_scale, undone};
@if(bf16) import package::lib::half_scale::scaled4;
@if(f32) import package::lib::half_scale::{TO_LOW, term_of};
@if(nf4) import package::lib::quantised::fill_levels;
@if(nf4 || int8) import package::lib::quantised::{BLOCK_WORDS, block_of, codes4, largest_in, scale_in};
@if(nf4 || int8) import package::matmul::operands::{FetchedB, b, fetch_b};
import package::matmul::operands::{Product, params, product_of};
import package::matmul::operands::{Destination, bias_of, destination};
@if(!swiglu) import package::matmul::operands::epilogue;
@if(swiglu) import package::matmul::operands::{bias_of_up, store_gated};
import package::lib::matrix::{Floats, Halves, Left, OF_SIDE, Right, SIDE, Sum, VECTOR};
import package::tile::{TM4, TN4, DEPTH, LANES, AREAS};
@if(!f16) import package::tile::PARTS;

enable f16;
enable wgpu_cooperative_matrix;

// Four elements as they are stored.
@if(f16) alias StoredA = vec4<f16>;
@if(!f16) alias StoredA = Packed;
@if(!nf4 && !int8) alias StoredB = StoredA;
@if(nf4 || int8) alias StoredB = FetchedB;

@group(0) @binding(1) var<storage, read> a: array<StoredA>;
@if(!nf4 && !int8) @group(0) @binding(2) var<storage, read> b: array<StoredB>;
@if(!f16) @group(0) @binding(8) var<storage, read> a_largest: array<vec4<u32>>; // (PARTS), see largest.wgsl
@if(!f16 && !nf4 && !int8) @group(0) @binding(9) var<storage, read> b_largest: array<vec4<u32>>;

const ROWS: u32 = 64u * TM4;
const COLUMNS: u32 = 64u * TN4;
const ACROSS: u32 = COLUMNS / (4u * SIDE); // patches side by side
const PATCHES: u32 = ROWS / (2u * SIDE) * ACROSS;
@if(!swiglu) const WIDTH: u32 = COLUMNS; // columns of the result
@if(swiglu) const WIDTH: u32 = COLUMNS / 2u; // of gate, and of up
const STRIDE: u32 = (DEPTH + 8u) / VECTOR; // from one row or column to the next
const BLOCKS_ALONG: u32 = DEPTH / 4u; // blocks of 4 x 4 side by side along k
const A_BLOCKS: u32 = ROWS / 4u * BLOCKS_ALONG;
const B_BLOCKS: u32 = COLUMNS / 4u * BLOCKS_ALONG;
const A_TURNS: u32 = (A_BLOCKS + LANES - 1u) / LANES; // blocks that an invocation stages
const B_TURNS: u32 = (B_BLOCKS + LANES - 1u) / LANES;
const A_IS_WHOLE: bool = A_BLOCKS % LANES == 0u; // no invocation is without a block in a turn
const B_IS_WHOLE: bool = B_BLOCKS % LANES == 0u;

// Groups of 4 elements of a matrix, and how many of the matrices of all subgroups an invocation stores.
const GROUPS: u32 = SIDE * SIDE / 4u;
@if(swiglu) const OWN_GROUPS: u32 = (AREAS * GROUPS + LANES - 1u) / LANES;

alias SomeOfA = array<StoredA, 4u * A_TURNS>;
alias SomeOfB = array<StoredB, 4u * B_TURNS>;

// Blocks of scales are read by lanes that share rows, some rows at a time.
@if(b_transposed) const LANES_OF_ROW: u32 = min(8u, LANES);
@if(!b_transposed) const LANES_OF_ROW: u32 = 2u;
const ROWS_AT_ONCE: u32 = LANES / LANES_OF_ROW;
const LOADS_AT_ONCE: u32 = 4u;

// Terms of an element, and where the low ones of a slice start.
@if(!f32) const TERMS: u32 = 1u;
@if(f32) const TERMS: u32 = 2u;
const LOW_A: u32 = ROWS * STRIDE;
const LOW_B: u32 = COLUMNS * STRIDE;

var<workgroup> a_tile: array<Halves, TERMS * ROWS * STRIDE>;
var<workgroup> b_tile: array<Halves, TERMS * COLUMNS * STRIDE>;
var<workgroup> finished: array<Floats, AREAS * SIDE * OF_SIDE>; // a matrix of each of AREAS subgroups
@if(f32) var<workgroup> finished_low: array<Floats, AREAS * SIDE * OF_SIDE>;
var<workgroup> subgroups_there: vec4<u32>; // in x; four, since every variable is to have multiples of 16 bytes
@if(!f16 || nf4 || int8) var<workgroup> largest: array<vec2<u32>, LANES>; // the first is that of a and of b

// The invocation in its subgroup, and the patch that the subgroup owns.
@if(!swiglu)
struct Share {
    area: u32, // the subgroup's part of `finished`
    row: u32, // first row of the patch, in the result
    column4: u32,
    lane: u32, // number of the invocation, out of `lanes`
    lanes: u32,
    is_stored: bool,
    @if(!f16 || nf4 || int8) undone: vec2<f32>, // factors of the sums
}

// The invocation in its workgroup, and the patches that the subgroups own.
@if(swiglu)
struct Share {
    area: u32, // the subgroup's part of `finished`
    lane: u32,
    patch_index: u32, // the patch of the first subgroup
    patches: u32,
    row: u32, // first row of the tile, in the result
    column: u32,
}

@compute @workgroup_size(LANES)
fn matmul(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
    @builtin(subgroup_invocation_id) lane_of_subgroup: u32,
    @builtin(subgroup_size) lanes_of_subgroup: u32,
) {
    let product = product_of(workgroup);
    @if(!grouped || a_transposed) let first_row = workgroup.y * ROWS;
    @if(grouped && !a_transposed) let first_row = 0u;
    @if(!grouped || !a_transposed) let first_column = workgroup.x * WIDTH;
    @if(grouped && a_transposed) let first_column = workgroup.z * COLUMNS;
    let to = destination(product);
    if (lane == 0u) {
        subgroups_there.x = min(subgroups, AREAS);
    }
    @if(nf4) { fill_levels(lane); }
    let together = workgroupUniformLoad(&subgroups_there).x;
    @if(!f16 || nf4 || int8) { find_largest(product, first_column, lane); }
    let area = min(subgroup, AREAS - 1u);
    // An empty group has no patches; naga would not see that all invocations return. Besides, loops whose length
    // compilers do not know take 120 registers on RDNA 3 instead of 156.
    let patches = select(PATCHES, 0u, product.m == 0u);
    for (var first = 0u; first < patches; first += together) {
        let patch_index = min(first + area, PATCHES - 1u);
        let patch_row = patch_index / ACROSS * 2u * SIDE;
        let patch_column = patch_index % ACROSS * 4u * SIDE;
        let is_stored = subgroup < AREAS && first + area < PATCHES;

        for (var i = lane; i < AREAS * SIDE * OF_SIDE; i += LANES) {
            finished[i] = Floats();
        }
        workgroupBarrier();
        let zeros = coopLoadT<Sum>(&finished[area * SIDE * OF_SIDE], OF_SIDE);
        var sum00 = zeros;
        var sum01 = zeros;
        var sum02 = zeros;
        var sum03 = zeros;
        var sum10 = zeros;
        var sum11 = zeros;
        var sum12 = zeros;
        var sum13 = zeros;
        @if(f32) var low00 = zeros;
        @if(f32) var low01 = zeros;
        @if(f32) var low02 = zeros;
        @if(f32) var low03 = zeros;
        @if(f32) var low10 = zeros;
        @if(f32) var low11 = zeros;
        @if(f32) var low12 = zeros;
        @if(f32) var low13 = zeros;
        stage_a(lane, slice_of_a(product, first_row, lane, 0u), product.k);
        stage_b(lane, slice_of_b(product, first_column, lane, 0u), product.k, place_of_b(product, first_column, 0u));
        workgroupBarrier();
        for (var k = DEPTH;; k += DEPTH) {
            let next_a = slice_of_a(product, first_row, lane, k);
            let next_b = slice_of_b(product, first_column, lane, k);
            for (var step = 0u; step < DEPTH / VECTOR; step += OF_SIDE) {
                let a_at = patch_row * STRIDE + step;
                let b_at = patch_column * STRIDE + step;
                let a0 = coopLoadT<Left>(&a_tile[a_at], STRIDE);
                let a1 = coopLoadT<Left>(&a_tile[a_at + SIDE * STRIDE], STRIDE);
                @if(f32) let low_a0 = coopLoadT<Left>(&a_tile[LOW_A + a_at], STRIDE);
                @if(f32) let low_a1 = coopLoadT<Left>(&a_tile[LOW_A + a_at + SIDE * STRIDE], STRIDE);
                let b0 = coopLoad<Right>(&b_tile[b_at], STRIDE);
                sum00 = coopMultiplyAdd(a0, b0, sum00);
                sum10 = coopMultiplyAdd(a1, b0, sum10);
                @if(f32) {
                    let low_b = coopLoad<Right>(&b_tile[LOW_B + b_at], STRIDE);
                    low00 = coopMultiplyAdd(low_a0, b0, coopMultiplyAdd(a0, low_b, low00));
                    low10 = coopMultiplyAdd(low_a1, b0, coopMultiplyAdd(a1, low_b, low10));
                }
                let b1 = coopLoad<Right>(&b_tile[b_at + SIDE * STRIDE], STRIDE);
                sum01 = coopMultiplyAdd(a0, b1, sum01);
                sum11 = coopMultiplyAdd(a1, b1, sum11);
                @if(f32) {
                    let low_b = coopLoad<Right>(&b_tile[LOW_B + b_at + SIDE * STRIDE], STRIDE);
                    low01 = coopMultiplyAdd(low_a0, b1, coopMultiplyAdd(a0, low_b, low01));
                    low11 = coopMultiplyAdd(low_a1, b1, coopMultiplyAdd(a1, low_b, low11));
                }
                let b2 = coopLoad<Right>(&b_tile[b_at + 2u * SIDE * STRIDE], STRIDE);
                sum02 = coopMultiplyAdd(a0, b2, sum02);
                sum12 = coopMultiplyAdd(a1, b2, sum12);
                @if(f32) {
                    let low_b = coopLoad<Right>(&b_tile[LOW_B + b_at + 2u * SIDE * STRIDE], STRIDE);
                    low02 = coopMultiplyAdd(low_a0, b2, coopMultiplyAdd(a0, low_b, low02));
                    low12 = coopMultiplyAdd(low_a1, b2, coopMultiplyAdd(a1, low_b, low12));
                }
                let b3 = coopLoad<Right>(&b_tile[b_at + 3u * SIDE * STRIDE], STRIDE);
                sum03 = coopMultiplyAdd(a0, b3, sum03);
                sum13 = coopMultiplyAdd(a1, b3, sum13);
                @if(f32) {
                    let low_b = coopLoad<Right>(&b_tile[LOW_B + b_at + 3u * SIDE * STRIDE], STRIDE);
                    low03 = coopMultiplyAdd(low_a0, b3, coopMultiplyAdd(a0, low_b, low03));
                    low13 = coopMultiplyAdd(low_a1, b3, coopMultiplyAdd(a1, low_b, low13));
                }
            }
            workgroupBarrier();
            if (k >= product.k) {
                break;
            }
            stage_a(lane, next_a, product.k - k);
            stage_b(lane, next_b, product.k - k, place_of_b(product, first_column, k));
            workgroupBarrier();
        }
        @if(!swiglu) {
            let column4 = (first_column + patch_column) / 4u;
            let row = first_row + patch_row;
            @if(f16 && !nf4 && !int8)
            let share = Share(area, row, column4, lane_of_subgroup, lanes_of_subgroup, is_stored);
            @if(!f16 || nf4 || int8) let factors = undone(largest[0]);
            @if(!f16 || nf4 || int8)
            let share = Share(area, row, column4, lane_of_subgroup, lanes_of_subgroup, is_stored, factors);
            @if(!f32) {
                finish(sum00, share, 0u, 0u, to);
                finish(sum01, share, 0u, 1u, to);
                finish(sum02, share, 0u, 2u, to);
                finish(sum03, share, 0u, 3u, to);
                finish(sum10, share, 1u, 0u, to);
                finish(sum11, share, 1u, 1u, to);
                finish(sum12, share, 1u, 2u, to);
                finish(sum13, share, 1u, 3u, to);
            }
            @if(f32) {
                finish(sum00, low00, share, 0u, 0u, to);
                finish(sum01, low01, share, 0u, 1u, to);
                finish(sum02, low02, share, 0u, 2u, to);
                finish(sum03, low03, share, 0u, 3u, to);
                finish(sum10, low10, share, 1u, 0u, to);
                finish(sum11, low11, share, 1u, 1u, to);
                finish(sum12, low12, share, 1u, 2u, to);
                finish(sum13, low13, share, 1u, 3u, to);
            }
        }
        @if(swiglu) {
            let share = Share(area, lane, first, min(together, PATCHES - first), first_row, first_column);
            @if(!f32) {
                finish(sum00, sum02, share, 0u, 0u, to);
                finish(sum01, sum03, share, 0u, 1u, to);
                finish(sum10, sum12, share, 1u, 0u, to);
                finish(sum11, sum13, share, 1u, 1u, to);
            }
            @if(f32) {
                finish(sum00, low00, sum02, low02, share, 0u, 0u, to);
                finish(sum01, low01, sum03, low03, share, 0u, 1u, to);
                finish(sum10, low10, sum12, low12, share, 1u, 0u, to);
                finish(sum11, low11, sum13, low13, share, 1u, 1u, to);
            }
        }
    }
}

// Stores the matrix in row `i` and column `j` of a subgroup's patch.
@if(!swiglu)
fn finish(sum: Sum, @if(f32) low: Sum, share: Share, i: u32, j: u32, to: Destination) {
    let start = share.area * SIDE * OF_SIDE;
    coopStoreT(sum, &finished[start], OF_SIDE);
    @if(f32) coopStoreT(low, &finished_low[start], OF_SIDE);
    workgroupBarrier();
    if (share.is_stored) {
        for (var group = share.lane; group < GROUPS; group += share.lanes) {
            var value = four_sums(share.area * GROUPS + group);
            @if(!f16 || nf4 || int8) { value = value * share.undone.x * share.undone.y; }
            let row = share.row + i * SIDE + group / (SIDE / 4u);
            let column4 = share.column4 + j * (SIDE / 4u) + group % (SIDE / 4u);
            epilogue(value, bias_of(to, column4), to, row, column4);
        }
    }
    workgroupBarrier();
}

// The same of a matrix of gate and its matrix of up, which leave through the same memory, since twice as much would not
// fit. An invocation keeps its share of the gates of all subgroups, since compilers do not know the size of one.
@if(swiglu)
fn finish(
    gate: Sum,
    @if(f32) gate_low: Sum,
    up: Sum,
    @if(f32) up_low: Sum,
    share: Share,
    i: u32,
    j: u32,
    to: Destination,
) {
    let start = share.area * SIDE * OF_SIDE;
    coopStoreT(gate, &finished[start], OF_SIDE);
    @if(f32) coopStoreT(gate_low, &finished_low[start], OF_SIDE);
    workgroupBarrier();
    var gates: array<vec4<f32>, OWN_GROUPS>;
    for (var own = 0u; own < OWN_GROUPS; own++) {
        gates[own] = finished_at(share.lane + LANES * own);
    }
    workgroupBarrier();
    coopStoreT(up, &finished[start], OF_SIDE);
    @if(f32) coopStoreT(up_low, &finished_low[start], OF_SIDE);
    workgroupBarrier();
    for (var own = 0u; own < OWN_GROUPS; own++) {
        let group = share.lane + LANES * own;
        if (group / GROUPS < share.patches) {
            let patch_index = share.patch_index + group / GROUPS;
            let row = share.row + patch_index / ACROSS * 2u * SIDE + i * SIDE + group % GROUPS / (SIDE / 4u);
            let column = share.column + patch_index % ACROSS * 2u * SIDE + j * SIDE;
            let column4 = column / 4u + group % (SIDE / 4u);
            let gate_sum = gates[0] + bias_of(to, column4);
            store_gated(gate_sum, finished_at(group) + bias_of_up(column4), to, row, column4);
        }
        // Moved up, since an array that is indexed by a loop counter would be in memory (matmul/portable).
        for (var next = 1u; next < OWN_GROUPS; next++) {
            gates[next - 1u] = gates[next];
        }
    }
    workgroupBarrier();
}

// A group of the finished sums; of few subgroups there may be fewer groups than invocations.
@if(swiglu)
fn finished_at(group: u32) -> vec4<f32> {
    let value = four_sums(min(group, AREAS * GROUPS - 1u));
    @if(f16 && !nf4 && !int8) { return value; }
    @if(!f16 || nf4 || int8) {
        let factors = undone(largest[0]);
        return value * factors.x * factors.y;
    }
}

fn four_sums(group: u32) -> vec4<f32> {
    let at = 4u * group / VECTOR;
    @if(!scalar_pointers) let sums = finished[at];
    @if(scalar_pointers) let sums = vec4<f32>(finished[at], finished[at + 1u], finished[at + 2u], finished[at + 3u]);
    @if(!f32) { return sums; }
    @if(f32 && !scalar_pointers) let low = finished_low[at];
    @if(f32 && scalar_pointers)
    let low = vec4<f32>(finished_low[at], finished_low[at + 1u], finished_low[at + 2u], finished_low[at + 3u]);
    @if(f32) { return sums + low * (1.0 / TO_LOW); }
}

// Puts the largest magnitudes of both factors into workgroup memory, from where they are read after the barrier that
// ends the clearing of `finished`. (Atomics would do in one turn; RDNA 3's compiler then takes 192 registers for the
// kernel instead of 120.)
@if(!f16 || nf4 || int8)
fn find_largest(product: Product, first_column: u32, lane: u32) {
    var top = vec2<u32>(largest_of_a(lane), largest_of_b(product, first_column, lane));
    largest[lane] = top;
    workgroupBarrier();
    let step = min(16u, LANES);
    if (lane < step) {
        for (var i = lane + step; i < LANES; i += step) {
            top = max(top, largest[i]);
        }
        largest[lane] = top;
    }
    workgroupBarrier();
    if (lane == 0u) {
        for (var i = 1u; i < step; i++) {
            top = max(top, largest[i]);
        }
        largest[0] = top;
    }
}

@if(f16 && (nf4 || int8)) fn largest_of_a(lane: u32) -> u32 { return UNSCALED; }

// The largest of an invocation's share of the parts.
@if(!f16)
fn largest_of_a(lane: u32) -> u32 {
    var top = vec4<u32>();
    for (var i = lane; i < PARTS / 4u; i += LANES) {
        top = max(top, a_largest[i]);
    }
    return max(max(top.x, top.y), max(top.z, top.w));
}

@if(!f16 && !nf4 && !int8)
fn largest_of_b(product: Product, first_column: u32, lane: u32) -> u32 {
    var top = vec4<u32>();
    for (var i = lane; i < PARTS / 4u; i += LANES) {
        top = max(top, b_largest[i]);
    }
    return max(max(top.x, top.y), max(top.z, top.w));
}

// The largest magnitude that the scales allow in an invocation's share of the weights that the workgroup multiplies
// by. They are a word of 9 or 17, so this takes no launch, and nothing is kept of a base that never changes.
@if(nf4 || int8)
fn largest_of_b(product: Product, first_column: u32, lane: u32) -> u32 {
    let columns = min(COLUMNS, params.n - first_column);
    @if(b_transposed && !swiglu) let first = product.b_start + first_column * params.b_stride;
    @if(b_transposed && !swiglu) let rows = columns;
    @if(swiglu) let first = product.b_start;
    @if(swiglu) let rows = COLUMNS;
    @if(b_transposed) let groups = (product.k + 3u) / 4u;
    @if(!b_transposed) let first = product.b_start + first_column / 4u;
    @if(!b_transposed) let rows = product.k;
    @if(!b_transposed) let groups = (columns + 3u) / 4u;
    let blocks = (first % 16u + groups + 15u) / 16u; // of a row
    var top = 0u;
    for (var row = lane / LANES_OF_ROW; row < rows; row += LOADS_AT_ONCE * ROWS_AT_ONCE) {
        for (var block = lane % LANES_OF_ROW; block < blocks; block += LANES_OF_ROW) {
            for (var i = 0u; i < LOADS_AT_ONCE; i++) {
                let near = min(row + i * ROWS_AT_ONCE, rows - 1u);
                @if(!swiglu) let at = block_of(first + near * params.b_stride);
                @if(swiglu) let at = block_of(first + row_of_b(first_column, near) * params.b_stride);
                top = max(top, largest_in(b[at + block * BLOCK_WORDS]));
            }
        }
    }
    return top;
}

// A term of four elements, as matrices take them. `at` is the number of the group, up to whole blocks of quantised
// weights.
@if(f16) fn scale_of_a() -> f32 { return 1.0; }
@if(f16) fn half_a(stored: StoredA, scale: f32, term: u32) -> vec4<f16> { return stored; }
@if(!f16) fn scale_of_a() -> f32 { return half_scale(largest[0].x); }
@if(bf16) fn half_a(stored: StoredA, scale: f32, term: u32) -> vec4<f16> { return scaled4(stored, scale); }
@if(f32) fn half_a(stored: StoredA, scale: f32, term: u32) -> vec4<f16> { return term_of(stored * scale, term); }
@if(f16 && !nf4 && !int8) fn scale_of_b() -> f32 { return 1.0; }
@if(!f16 || nf4 || int8) fn scale_of_b() -> f32 { return half_scale(largest[0].y); }
@if(!nf4 && !int8)
fn half_b(at: u32, stored: StoredB, scale: f32, term: u32) -> vec4<f16> { return half_a(stored, scale, term); }
@if(nf4 || int8)
fn half_b(at: u32, stored: StoredB, scale: f32, term: u32) -> vec4<f16> {
    let scaled = scale_in(at, stored.x) * scale * codes4(at, stored.y);
    @if(!f32) { return vec4<f16>(scaled); }
    @if(f32) { return term_of(scaled, term); }
}

// Where block `e` of a slice is: its first row or column of the tile, and its first step.
fn row_of(e: u32) -> u32 { return e / BLOCKS_ALONG * 4u; }
fn step_of(e: u32) -> u32 { return e % BLOCKS_ALONG * 4u; }

// The groups of `a` that an invocation stages of the slice from step k on: four groups of each of its blocks. Where a
// slice has fewer blocks than there are invocations, as of two terms, the others fetch the last again.
fn slice_of_a(product: Product, first_row: u32, lane: u32, k: u32) -> SomeOfA {
    var groups: SomeOfA;
    for (var i = 0u; i < 4u * A_TURNS; i++) {
        @if(!f32) let e = lane + LANES * (i / 4u);
        @if(f32) let e = min(lane + LANES * (i / 4u), A_BLOCKS - 1u);
        groups[i] = group_of_a(product, first_row, e, k, i % 4u);
    }
    return groups;
}

fn slice_of_b(product: Product, first_column: u32, lane: u32, k: u32) -> SomeOfB {
    var groups: SomeOfB;
    for (var i = 0u; i < 4u * B_TURNS; i++) {
        @if(!f32) let e = lane + LANES * (i / 4u);
        @if(f32) let e = min(lane + LANES * (i / 4u), B_BLOCKS - 1u);
        groups[i] = group_of_b(product, first_column, e, k, i % 4u);
    }
    return groups;
}

// Group `i` of block `e`: 4 steps of a row, or 4 rows of a step.
@if(!a_transposed)
fn group_of_a(product: Product, first_row: u32, e: u32, k: u32, i: u32) -> StoredA {
    let row = first_row + row_of(e) + i;
    let step = k + step_of(e);
    let at = min(step, product.k - 1u) / 4u + select(0u, row, row < product.m) * params.a_stride;
    return a[product.a_start + at];
}

@if(a_transposed)
fn group_of_a(product: Product, first_row: u32, e: u32, k: u32, i: u32) -> StoredA {
    let row4 = min((first_row + row_of(e)) / 4u, (params.m - 1u) / 4u);
    let step = k + step_of(e) + i;
    let at = min(step, product.k - 1u) * params.a_stride + row4;
    return a[product.a_start + at];
}

// Group `i` of block `e` of `b`, whose columns take the place of rows.
@if(b_transposed)
fn group_of_b(product: Product, first_column: u32, e: u32, k: u32, i: u32) -> StoredB {
    let step = k + step_of(e);
    let at = min(step, product.k - 1u) / 4u + row_of_b(first_column, row_of(e) + i) * params.b_stride;
    return load_b(product.b_start + at);
}

// The row of `b` that belongs to column `c` of the tile.
@if(b_transposed && !swiglu)
fn row_of_b(first_column: u32, c: u32) -> u32 {
    return select(0u, first_column + c, first_column + c < params.n);
}

@if(swiglu)
fn row_of_b(first_column: u32, c: u32) -> u32 {
    let column = first_column + c / (4u * SIDE) * 2u * SIDE + c % (2u * SIDE);
    return min(column, params.n - 1u) + c / (2u * SIDE) % 2u * params.up_start;
}

@if(!b_transposed)
fn group_of_b(product: Product, first_column: u32, e: u32, k: u32, i: u32) -> StoredB {
    let column4 = min((first_column + row_of(e)) / 4u, (params.n - 1u) / 4u);
    let step = k + step_of(e) + i;
    let at = min(step, product.k - 1u) * params.b_stride + column4;
    return load_b(product.b_start + at);
}

@if(!nf4 && !int8) fn load_b(at: u32) -> StoredB { return b[at]; }
@if(nf4 || int8) fn load_b(at: u32) -> StoredB { return fetch_b(at); }

// The place of a slice of `b` in its first block of quantised weights, and how far from there the groups of block `e`
// are. Rows are whole blocks.
@if(b_transposed) fn place_of_b(product: Product, first_column: u32, k: u32) -> u32 { return product.b_start + k / 4u; }
@if(b_transposed) fn from_place(e: u32) -> u32 { return step_of(e) / 4u; }
@if(!b_transposed)
fn place_of_b(product: Product, first_column: u32, k: u32) -> u32 {
    return product.b_start + first_column / 4u;
}
@if(!b_transposed) fn from_place(e: u32) -> u32 { return row_of(e) / 4u; }

// Stages the fetched groups as f16, each block as 4 rows of 4 steps, and low terms behind all high ones. Only `steps`
// steps of the last slice exist; the others are staged as zeros.
fn stage_a(lane: u32, fetched: SomeOfA, steps: u32) {
    var stored = fetched; // naga allows dynamic indexing of variables, not of values
    if (steps < DEPTH) {
        for (var i = 0u; i < 4u * A_TURNS; i++) {
            @if(!a_transposed) let step = step_of(lane + LANES * (i / 4u));
            @if(a_transposed) let step = step_of(lane + LANES * (i / 4u)) + i % 4u;
            stored[i] = select(StoredA(), stored[i], step < steps);
        }
    }
    let scale = scale_of_a();
    for (var turn = 0u; turn < A_TURNS; turn++) {
        let e = lane + LANES * turn;
        if (A_IS_WHOLE || e < A_BLOCKS) {
            for (var term = 0u; term < TERMS; term++) {
                var groups: array<vec4<f16>, 4>;
                for (var i = 0u; i < 4u; i++) {
                    groups[i] = half_a(stored[4u * turn + i], scale, term);
                }
                let at = term * LOW_A + row_of(e) * STRIDE + step_of(e) / VECTOR;
                for (var i = 0u; i < 4u; i++) {
                    @if(!a_transposed) let four = groups[i];
                    @if(a_transposed)
                    let four = vec4<f16>(groups[0][i], groups[1][i], groups[2][i], groups[3][i]);
                    put_a(at + i * STRIDE, four);
                }
            }
        }
    }
}

@if(!scalar_pointers) fn put_a(at: u32, four: vec4<f16>) { a_tile[at] = four; }
@if(scalar_pointers)
fn put_a(at: u32, four: vec4<f16>) {
    a_tile[at] = four.x;
    a_tile[at + 1u] = four.y;
    a_tile[at + 2u] = four.z;
    a_tile[at + 3u] = four.w;
}

fn stage_b(lane: u32, fetched: SomeOfB, steps: u32, place: u32) {
    var stored = fetched;
    if (steps < DEPTH) {
        for (var i = 0u; i < 4u * B_TURNS; i++) {
            @if(b_transposed) let step = step_of(lane + LANES * (i / 4u));
            @if(!b_transposed) let step = step_of(lane + LANES * (i / 4u)) + i % 4u;
            stored[i] = select(StoredB(), stored[i], step < steps);
        }
    }
    let scale = scale_of_b();
    for (var turn = 0u; turn < B_TURNS; turn++) {
        let e = lane + LANES * turn;
        if (B_IS_WHOLE || e < B_BLOCKS) {
            for (var term = 0u; term < TERMS; term++) {
                var groups: array<vec4<f16>, 4>;
                for (var i = 0u; i < 4u; i++) {
                    groups[i] = half_b(place + from_place(e), stored[4u * turn + i], scale, term);
                }
                let at = term * LOW_B + row_of(e) * STRIDE + step_of(e) / VECTOR;
                for (var i = 0u; i < 4u; i++) {
                    @if(b_transposed) let four = groups[i];
                    @if(!b_transposed)
                    let four = vec4<f16>(groups[0][i], groups[1][i], groups[2][i], groups[3][i]);
                    put_b(at + i * STRIDE, four);
                }
            }
        }
    }
}

@if(!scalar_pointers) fn put_b(at: u32, four: vec4<f16>) { b_tile[at] = four; }
@if(scalar_pointers)
fn put_b(at: u32, four: vec4<f16>) {
    b_tile[at] = four.x;
    b_tile[at + 1u] = four.y;
    b_tile[at + 2u] = four.z;
    b_tile[at + 3u] = four.w;
}
