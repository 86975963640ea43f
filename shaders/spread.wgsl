// Rows of experts that are spread over ranks: where the rows of this rank's experts start
//
//   local[e + 1] = Σ over experts i ≤ e of Σ over ranks r of (offsets[r][first + i + 1] - offsets[r][first + i])
//
//   offsets (ranks, E + 1) u32    for each rank, the first row of each expert among the rows that it sends, and the end
//   local (1, experts + 1) u32    the same for the rows that this rank receives for experts first to first + experts
//
// One invocation: a few hundred integers at most.

struct Params {
    ranks: u32,
    stride: u32, // from one rank's offsets to the next
    first: u32,
    experts: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> offsets: array<u32>;
@group(0) @binding(2) var<storage, read_write> local: array<u32>;

@compute @workgroup_size(1)
fn local_offsets() {
    var end = 0u;
    local[0] = 0u;
    for (var expert = 0u; expert < params.experts; expert++) {
        for (var rank = 0u; rank < params.ranks; rank++) {
            let at = rank * params.stride + params.first + expert;
            end += offsets[at + 1u] - offsets[at];
        }
        local[expert + 1u] = end;
    }
}
