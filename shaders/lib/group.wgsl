// Rows sorted by expert: which of them a workgroup of a grouped product works on, and with whose matrix.

struct Group {
    first: u32, // its first row
    rows: u32, // how many; 0: nothing to do
    matrix: u32, // the expert's number within the part of the stack that is bound
}

// A tile of the work list, (expert, first row, end row, 0). Tiles of experts whose matrices are not bound have no rows.
fn group_of_tile(tile: vec4<u32>, first_expert: u32, experts: u32) -> Group {
    let is_bound = tile.x >= first_expert && tile.x - first_expert < experts;
    return Group(tile.y, select(0u, tile.z - tile.y, is_bound), select(0u, tile.x - first_expert, is_bound));
}
