// Stable counting sort of choices by expert: assigns each choice of a token a row among its expert's rows
//
//   histogram   n[b][e] = choices of expert e among the positions of block b
//   scan        n[b][e] <- Σ n[b'][e] over blocks b' before b;   counts[e] = Σ_b n[b][e];   offsets = Σ rows before e
//   scatter     the choice of rank r within its expert gets row offsets[e] + r, or NONE if the expert has no such row
//
// Positions number the order in which choices are served: token by token, or with `by_choice` the first choices of all
// tokens, then all second ones. An expert has as many rows as choices plus `extra`, or `capacity`, or capacities[e].
// Rows that no choice claims have the source NONE. Integers only, so the same from run to run.
// With hot_last an expert is replaced by its place in groups[e], where cold ones come first: they have `cold_capacity`.
// Software: an invocation walks a block and counts in the block's row of n. Portable: a workgroup walks it in chunks of
// LANES; a choice's rank is its expert's count before the chunk plus the equal experts to its left, found by scanning
// the chunk: LANES steps per LANES choices, no atomics. scan is one workgroup; its lane 0 accumulates the offsets over
// E.
// Cost: three launches, O(N·k + blocks·E) reads. At most 256 blocks, so scan takes at most 256 steps per LANES experts.
// llvmpipe, two cores: 0.09 ms for N = 1024, k = 2, E = 8; 0.7 ms for 4096, 8, 256; 10 ms for 2^17, 8, 64.

import package::lib::grid::linear_index;
import package::tile::LANES;

const NONE: u32 = 0xffffffffu;
@if(capacities) const ROWS: u32 = 0x7fffffffu; // the bits of a capacity that count rows

struct Params {
    tokens: u32, // N
    chosen: u32, // k
    choices: u32, // N·k
    experts: u32, // E
    by_choice: u32, // 1: positions are choice-major
    block: u32, // positions per block
    blocks: u32,
    stride: u32, // row stride of n, in words
    rows: u32, // R
    capacity: u32, // rows per expert; 0: as many as it has choices, plus `extra`
    extra: u32,
    has_empty_rows: u32, // 1: some rows may be unclaimed
    cold: u32, // how many experts are cold
    cold_capacity: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> ids: array<u32>; // (N·k): the expert of choice j of token t at t·k + j
@group(0) @binding(2) var<storage, read_write> histograms: array<u32>; // n (blocks, E)
@group(0) @binding(3) var<storage, read_write> counts: array<u32>; // (E)
@group(0) @binding(4) var<storage, read_write> offsets: array<u32>; // (E + 1)
@if(capacities) @group(0) @binding(5) var<storage, read> capacities: array<u32>; // (E)
@if(hot_last) @group(0) @binding(5) var<storage, read_write> counts_by_expert: array<u32>; // (E); others by place
@if(hot_last) @group(0) @binding(7) var<storage, read> groups: array<u32>; // (E)

@group(0) @binding(3) var<storage, read> counts_in: array<u32>;
@group(0) @binding(4) var<storage, read> offsets_in: array<u32>;
@group(0) @binding(5) var<storage, read_write> places: array<u32>; // (N·k)
@group(0) @binding(6) var<storage, read_write> sources: array<u32>; // (R)

@if(!shared_tile)
@compute @workgroup_size(LANES)
fn histogram(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = linear_index(workgroup) * LANES + lane;
    if (block >= params.blocks) {
        return;
    }
    let row = block * params.stride;
    for (var expert = 0u; expert < params.experts; expert++) {
        histograms[row + expert] = 0u;
    }
    let end = min((block + 1u) * params.block, params.choices);
    for (var position = block * params.block; position < end; position++) {
        histograms[row + expert_of_choice(choice_at(position))] += 1u;
    }
}

@if(!shared_tile)
@compute @workgroup_size(LANES)
fn scatter(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = linear_index(workgroup) * LANES + lane;
    if (block >= params.blocks) {
        return;
    }
    let end = min((block + 1u) * params.block, params.choices);
    for (var position = block * params.block; position < end; position++) {
        let choice = choice_at(position);
        let expert = expert_of_choice(choice);
        let at = block * params.stride + expert;
        let rank = histograms[at];
        histograms[at] = rank + 1u;
        claim(choice, expert, rank);
    }
    leave_empty(block, 0u, 1u);
}

@if(shared_tile) const MOST_EXPERTS: u32 = 512u;
@if(shared_tile) var<workgroup> chunk: array<u32, LANES>; // experts of the chunk's choices
@if(shared_tile) var<workgroup> running: array<u32, MOST_EXPERTS>; // choices of each expert before the chunk

@if(shared_tile)
@compute @workgroup_size(LANES)
fn histogram(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = linear_index(workgroup);
    if (block >= params.blocks) {
        return;
    }
    for (var expert = lane; expert < params.experts; expert += LANES) {
        running[expert] = 0u;
    }
    let end = min((block + 1u) * params.block, params.choices);
    for (var first = block * params.block; first < end; first += LANES) {
        let seat = seat_of(first + lane, end, lane);
    }
    workgroupBarrier();
    for (var expert = lane; expert < params.experts; expert += LANES) {
        histograms[block * params.stride + expert] = running[expert];
    }
}

@if(shared_tile)
@compute @workgroup_size(LANES)
fn scatter(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let block = linear_index(workgroup);
    if (block >= params.blocks) {
        return;
    }
    for (var expert = lane; expert < params.experts; expert += LANES) {
        running[expert] = histograms[block * params.stride + expert];
    }
    let end = min((block + 1u) * params.block, params.choices);
    for (var first = block * params.block; first < end; first += LANES) {
        let seat = seat_of(first + lane, end, lane);
        if (first + lane < end) {
            claim(seat.choice, seat.expert, seat.rank);
        }
    }
    leave_empty(block, lane, LANES);
}

// A choice, its expert, and its rank: the number of earlier choices of that expert.
@if(shared_tile)
struct Seat {
    choice: u32,
    expert: u32,
    rank: u32,
}

// The seat of this invocation's position; adds the chunk to `running`. Its first barrier also separates the
// initialisation of `running` from its first use.
@if(shared_tile)
fn seat_of(position: u32, end: u32, lane: u32) -> Seat {
    let is_inside = position < end;
    let choice = choice_at(min(position, end - 1u));
    let expert = select(NONE, expert_of_choice(choice), is_inside);
    chunk[lane] = expert;
    workgroupBarrier();
    var before = 0u;
    var after = 0u;
    for (var other = 0u; other < LANES; other++) {
        let is_same = chunk[other] == expert;
        before += select(0u, 1u, is_same && other < lane);
        after += select(0u, 1u, is_same && other > lane);
    }
    var rank = 0u;
    if (is_inside) {
        rank = running[expert] + before;
    }
    workgroupBarrier();
    if (is_inside && after == 0u) {
        running[expert] = rank + 1u;
    }
    return Seat(choice, expert, rank);
}

@compute @workgroup_size(LANES)
fn scan(@builtin(local_invocation_index) lane: u32) {
    for (var expert = lane; expert < params.experts; expert += LANES) {
        var sum = 0u;
        for (var block = 0u; block < params.blocks; block++) {
            let at = block * params.stride + expert;
            let count = histograms[at];
            histograms[at] = sum;
            sum += count;
        }
        counts[expert] = sum;
    }
    storageBarrier();
    @if(hot_last) {
        for (var expert = lane; expert < params.experts; expert += LANES) {
            counts_by_expert[expert] = counts[groups[expert]];
        }
    }
    if (lane != 0u) {
        return;
    }
    var row = 0u;
    for (var expert = 0u; expert < params.experts; expert++) {
        offsets[expert] = row;
        row += rows_of(expert);
    }
    offsets[params.experts] = row;
}

@if(capacities)
fn rows_of(expert: u32) -> u32 {
    return capacities[expert] & ROWS;
}

@if(hot_last)
fn rows_of(expert: u32) -> u32 {
    return select(params.capacity, params.cold_capacity, expert < params.cold);
}

@if(!capacities && !hot_last)
fn rows_of(expert: u32) -> u32 {
    return select(params.capacity, counts[expert] + params.extra, params.capacity == 0u);
}

@if(hot_last)
fn expert_of_choice(choice: u32) -> u32 {
    return groups[ids[choice]];
}

@if(!hot_last)
fn expert_of_choice(choice: u32) -> u32 {
    return ids[choice];
}

fn choice_at(position: u32) -> u32 {
    let by_choice = (position % params.tokens) * params.chosen + position / params.tokens;
    return select(position, by_choice, params.by_choice == 1u);
}

// Writes the place of a choice and the source of its row.
fn claim(choice: u32, expert: u32, rank: u32) {
    let row = offsets_in[expert] + rank;
    let is_kept = row < offsets_in[expert + 1u];
    places[choice] = select(NONE, row, is_kept);
    if (is_kept) {
        sources[row] = choice;
    }
}

// Marks the unclaimed rows within this block's share of all rows.
fn leave_empty(block: u32, first: u32, step: u32) {
    if (params.has_empty_rows == 0u) {
        return;
    }
    let share = (params.rows + params.blocks - 1u) / params.blocks;
    let end = min((block + 1u) * share, params.rows);
    for (var row = block * share + first; row < end; row += step) {
        let expert = expert_of(row);
        if (row - offsets_in[expert] >= counts_in[expert]) {
            sources[row] = NONE;
        }
    }
}

// The expert e with offsets[e] <= row < offsets[e + 1].
fn expert_of(row: u32) -> u32 {
    var low = 0u;
    var high = params.experts;
    while (high - low > 1u) {
        let middle = (low + high) / 2u;
        if (offsets_in[middle] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}
