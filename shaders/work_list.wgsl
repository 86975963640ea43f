// What a grouped product has to do, from how many rows each expert has: tiles of at most HEIGHT rows, none of two experts.
//
//   offsets    (E + 1)    the first row of each expert, and the end of the last one's; ascending
//   tiles      (T, 4)     (expert, first row, end row, 0), ordered by row; only as many as there are
//   grids      (C, 4)     (c + 1, number of tiles, 1, 0): the grid of a product with c + 1 tiles side by side
//
// One workgroup. Each lane counts the tiles of neighbouring experts, and adds to its own sums what the lanes before it
// counted; then lanes take turns with the tiles and look up, by bisection, whose each is. So neither one expert with all
// rows nor many with none makes a lane work alone. An expert without rows has no tile.
// Work: sum over experts of ceil(rows / HEIGHT), at most rows / HEIGHT + E.

import package::tile::{HEIGHT, LANES, EXPERTS, SHARE};

struct Params {
    tiles: u32, // there is room for
    grids: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> offsets: array<u32>;
@group(0) @binding(2) var<storage, read_write> tiles: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> grids: array<vec4<u32>>;

var<workgroup> counts: array<u32, LANES>; // tiles of each lane's experts
var<workgroup> ends: array<u32, EXPERTS>; // tiles of all experts up to this one

@compute @workgroup_size(LANES)
fn work_list(@builtin(local_invocation_index) lane: u32) {
    let first = min(lane * SHARE, EXPERTS); // this lane's experts: SHARE of them, fewer at the end
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
    // Never more than there is room for, whatever the offsets say.
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

// The first expert up to which there are more than `tile` tiles; it has some itself.
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
