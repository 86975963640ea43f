// Sums and maxima over the invocations that share a row; and, at the end, who sums which columns.
//
// With `shared_tile` a workgroup of LANES invocations shares the row and folds a tree in workgroup memory: the order is
// fixed, so results are the same from run to run. Without it (CPU adapters) one invocation has the whole row, and there
// is nothing to fold. LANES is a power of two.

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

@if(!shared_tile) fn row_sum(value: f32, lane: u32) -> f32 { return value; }
@if(!shared_tile) fn row_max(value: f32, lane: u32) -> f32 { return value; }
@if(!shared_tile) fn row_sum4(value: vec4<f32>, lane: u32) -> vec4<f32> { return value; }

// Which row an invocation works on, where in the row it starts, and how far apart its elements are.
struct Share {
    row: u32,
    first: u32,
    step: u32,
}

@if(shared_tile)
fn share_of(workgroup: u32, lane: u32) -> Share {
    return Share(workgroup, lane, LANES);
}

@if(!shared_tile)
fn share_of(workgroup: u32, lane: u32) -> Share {
    return Share(workgroup * LANES + lane, 0u, 1u);
}

// The 4 columns that an invocation sums over a block of rows, and the rows from `first` to before `end`.
struct ColumnBlock {
    column4: u32,
    first: u32,
    end: u32,
}

fn column_block(workgroup: vec3<u32>, lane: u32, block: u32, rows: u32) -> ColumnBlock {
    let first = workgroup.y * block;
    return ColumnBlock(workgroup.x * LANES + lane, first, min(first + block, rows));
}
