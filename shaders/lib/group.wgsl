// The rows and the expert that a workgroup of a grouped product works on. Rows are sorted by expert.

struct Group {
    first: u32, // first row
    rows: u32, // number of rows; 0: nothing to do
    matrix: u32, // index of the expert within the bound part of the stack
}

// Decodes a tile of the work list, (expert, first row, end row, 0). Tiles of unbound experts have 0 rows.
fn group_of_tile(tile: vec4<u32>, first_expert: u32, experts: u32) -> Group {
    let is_bound = tile.x >= first_expert && tile.x - first_expert < experts;
    return Group(tile.y, select(0u, tile.z - tile.y, is_bound), select(0u, tile.x - first_expert, is_bound));
}
