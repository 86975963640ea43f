// Reductions over the invocations that share a row, and the assignment of rows and columns to invocations.
//
// With `shared_tile` a workgroup of LANES invocations shares a row and reduces over a tree in workgroup memory, in a
// fixed order, so results are the same from run to run. With `shuffled` the workgroup is a subgroup of 4, 8 or 16 and
// adds in the order of the same tree, without barriers, which software adapters are slow at. With neither (software
// tier, many rows) one invocation processes the whole row and the reductions are the identity. LANES is a power of two.

import package::tile::LANES;

@if(shared_tile) var<workgroup> shared_values: array<f32, LANES>;

@if(shared_tile)
fn row_sum(value: f32, lane: u32) -> f32 {
    shared_values[lane] = value;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            shared_values[lane] += shared_values[lane + half];
        }
    }
    workgroupBarrier();
    let total = shared_values[0];
    workgroupBarrier(); // the next reduction writes the same memory
    return total;
}

@if(shared_tile)
fn row_max(value: f32, lane: u32) -> f32 {
    shared_values[lane] = value;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            shared_values[lane] = max(shared_values[lane], shared_values[lane + half]);
        }
    }
    workgroupBarrier();
    let largest = shared_values[0];
    workgroupBarrier();
    return largest;
}

@if(shared_tile) var<workgroup> shared_sums: array<vec4<f32>, LANES>;

@if(shared_tile)
fn row_sum4(value: vec4<f32>, lane: u32) -> vec4<f32> {
    shared_sums[lane] = value;
    for (var half = LANES / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            shared_sums[lane] += shared_sums[lane + half];
        }
    }
    workgroupBarrier();
    let total = shared_sums[0];
    workgroupBarrier(); // the next sum writes the same memory
    return total;
}

// Each distance is a constant, so that llvmpipe permutes registers. For computed distances Mesa 22 asks lane after
// lane, and kernels take five to twelve times as long to compile.
@if(shuffled)
fn row_sum(value: f32, lane: u32) -> f32 {
    var sum = value;
    if (LANES > 8u) {
        sum += subgroupShuffleXor(sum, 8u);
    }
    if (LANES > 4u) {
        sum += subgroupShuffleXor(sum, 4u);
    }
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 1u);
    return sum;
}

@if(shuffled)
fn row_max(value: f32, lane: u32) -> f32 {
    var largest = value;
    if (LANES > 8u) {
        largest = max(largest, subgroupShuffleXor(largest, 8u));
    }
    if (LANES > 4u) {
        largest = max(largest, subgroupShuffleXor(largest, 4u));
    }
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    largest = max(largest, subgroupShuffleXor(largest, 1u));
    return largest;
}

@if(shuffled)
fn row_sum4(value: vec4<f32>, lane: u32) -> vec4<f32> {
    var sum = value;
    if (LANES > 8u) {
        sum += subgroupShuffleXor(sum, 8u);
    }
    if (LANES > 4u) {
        sum += subgroupShuffleXor(sum, 4u);
    }
    sum += subgroupShuffleXor(sum, 2u);
    sum += subgroupShuffleXor(sum, 1u);
    return sum;
}

// Lets the invocations that share a row read and write each other's part of storage. The barriers above are for
// workgroup memory alone.
@if(shared_tile) fn row_barrier() { storageBarrier(); }
@if(!shared_tile) fn row_barrier() {}

@if(!shared_tile && !shuffled) fn row_sum(value: f32, lane: u32) -> f32 { return value; }
@if(!shared_tile && !shuffled) fn row_max(value: f32, lane: u32) -> f32 { return value; }
@if(!shared_tile && !shuffled) fn row_sum4(value: vec4<f32>, lane: u32) -> vec4<f32> { return value; }

// The row of an invocation, and its elements within it: first_of(lane), first_of(lane) + STEP, ...
//
// Separate functions, not one that returns a struct: kernels return early for rows past the end, before the barriers
// above, so WGSL's uniformity analysis must see that the row does not depend on the lane. It treats a struct as a
// whole.
@if(shared_tile || shuffled) const STEP: u32 = LANES;
@if(!shared_tile && !shuffled) const STEP: u32 = 1u;

@if(shared_tile || shuffled) fn row_of(workgroup: u32, lane: u32) -> u32 { return workgroup; }
@if(!shared_tile && !shuffled) fn row_of(workgroup: u32, lane: u32) -> u32 { return workgroup * LANES + lane; }

@if(shared_tile || shuffled) fn first_of(lane: u32) -> u32 { return lane; }
@if(!shared_tile && !shuffled) fn first_of(lane: u32) -> u32 { return 0u; }

// Sums over the rows of a block, for 4 columns: an invocation adds the rows first, first + ROW_STEP, ... of the block,
// and `down` adds the sums of the invocations with the same columns. With `shared_tile` a workgroup has 16 groups of
// columns, 256 bytes of f32 in a row, and its lanes share the rows; without it each lane has a group and adds all rows.
@if(shared_tile) const ACROSS: u32 = 16u;
@if(!shared_tile) const ACROSS: u32 = LANES;
const ROW_STEP: u32 = LANES / ACROSS;

struct ColumnBlock {
    column4: u32,
    first: u32,
    end: u32, // exclusive; 0 past the last column
    is_writer: bool, // whether the invocation gets the sum
}

fn column_block(workgroup: vec3<u32>, lane: u32, block: u32, rows: u32, columns4: u32) -> ColumnBlock {
    let start = workgroup.y * block;
    return columns_of(workgroup, lane, start, min(start + block, rows), columns4);
}

// The same for the rows from `start` to `end` (exclusive).
fn columns_of(workgroup: vec3<u32>, lane: u32, start: u32, end: u32, columns4: u32) -> ColumnBlock {
    let column4 = workgroup.x * ACROSS + lane % ACROSS;
    let is_column = column4 < columns4;
    return ColumnBlock(column4, start + lane / ACROSS, select(0u, end, is_column), lane < ACROSS && is_column);
}

// The sum over invocations with the same columns, for the lanes of the first row, in a fixed order.
@if(shared_tile)
fn down(value: vec4<f32>, lane: u32) -> vec4<f32> {
    shared_sums[lane] = value;
    for (var half = LANES / 2u; half >= ACROSS; half /= 2u) {
        workgroupBarrier();
        if (lane < half) {
            shared_sums[lane] += shared_sums[lane + half];
        }
    }
    let total = shared_sums[lane]; // elements of the first row, which its lanes have written themselves
    workgroupBarrier(); // the next sum writes the same memory
    return total;
}

@if(!shared_tile) fn down(value: vec4<f32>, lane: u32) -> vec4<f32> { return value; }
