// Work list of grouped products: the rows of each expert, cut into tiles of at most HEIGHT rows of one expert
//
//   offsets (E + 1) u32     read: first row of each expert, and the end of the last one's rows; ascending
//   tiles (T, 4) u32        written: (expert, first row, end row, 0), ordered by row; undefined past the last tile
//   grids (C, 4) u32        written: (c + 1, number of tiles, 1, 0), the grid of a product that is c + 1 tiles wide
//
// There are Σ_e ceil(rows_e / HEIGHT) ≤ rows / HEIGHT + E tiles; an expert without rows has none.
// One workgroup. Each lane counts the tiles of SHARE consecutive experts and offsets them by the counts of the lanes
// before it. Then the lanes take tiles in turn and find the expert of each by binary search, so the work stays balanced
// whether one expert has all rows or most have none.

import package::tile::{HEIGHT, LANES, EXPERTS, SHARE};

struct Params {
    tiles: u32, // T, the capacity of the list
    grids: u32, // C
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> offsets: array<u32>;
@group(0) @binding(2) var<storage, read_write> tiles: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> grids: array<vec4<u32>>;

var<workgroup> counts: array<u32, LANES>; // tiles of each lane's experts
var<workgroup> ends: array<u32, EXPERTS>; // inclusive prefix sum of tiles over experts

@compute @workgroup_size(LANES)
fn work_list(@builtin(local_invocation_index) lane: u32) {
    let first = min(lane * SHARE, EXPERTS); // experts first..end are this lane's
    let end = min(first + SHARE, EXPERTS);
    var count = 0u;
    for (var expert = first; expert < end; expert++) {
        count += tiles_of(expert);
    }
    counts[lane] = count;
    workgroupBarrier();
    var sum = 0u;
    for (var other = 0u; other < lane; other++) {
        sum += counts[other];
    }
    for (var expert = first; expert < end; expert++) {
        sum += tiles_of(expert);
        ends[expert] = sum;
    }
    workgroupBarrier();
    // Clamped to the capacity, whatever the offsets contain.
    let total = min(ends[EXPERTS - 1u], params.tiles);
    for (var tile = lane; tile < total; tile += LANES) {
        let expert = owner(tile);
        let before = ends[expert] - tiles_of(expert);
        let row = offsets[expert] + (tile - before) * HEIGHT;
        tiles[tile] = vec4<u32>(expert, row, min(row + HEIGHT, offsets[expert + 1u]), 0u);
    }
    for (var grid = lane; grid < params.grids; grid += LANES) {
        grids[grid] = vec4<u32>(grid + 1u, total, 1u, 0u);
    }
}

fn tiles_of(expert: u32) -> u32 {
    return (offsets[expert + 1u] - offsets[expert] + HEIGHT - 1u) / HEIGHT;
}

// The expert that owns `tile`: the first one whose inclusive prefix sum exceeds it.
fn owner(tile: u32) -> u32 {
    var low = 0u;
    var high = EXPERTS - 1u;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (ends[middle] > tile) {
            high = middle;
        } else {
            low = middle + 1u;
        }
    }
    return low;
}
