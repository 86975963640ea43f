// The largest magnitude of a tensor, in parts:   largest[p] = max |x| over part p, as the bits of an f32
//
//   x (rows, 4 · cols4) bf16 or f32; with `grouped` only the rows before offsets[experts] hold anything
//   largest (PARTS) u32       of words, since infinity and NaN are above all numbers there and a maximum of f32 may
//                             drop a NaN; of f32 the upper halves, since only exponents are needed
//
// matmul/matrix multiplies by a power of two that follows from it (lib/half_scale). A workgroup takes one part: groups
// of 4 that lie PARTS · LANES apart. Each reads its own words and writes its own result, so nothing is cleared before
// and nothing is added atomically; the reader takes the maximum of the parts. EACH loads of an invocation are under way
// at once.

import package::lib::element::{Packed, words_of};
import package::lib::reduce::row_max;
import package::tile::{EACH, LANES, PARTS};

struct Params {
    rows: u32,
    cols4: u32,
    offset: u32, // offset and stride count groups of 4
    stride: u32,
    experts: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> largest: array<u32>;
@if(grouped) @group(0) @binding(3) var<storage, read> offsets: array<u32>; // (E + 1), rows by expert

const STEP: u32 = PARTS * LANES;
const MAGNITUDE = vec4<u32>(0x7fff0000u);

@compute @workgroup_size(LANES)
fn largest_of_parts(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    @if(!grouped) let rows = params.rows;
    @if(grouped) let rows = min(params.rows, offsets[params.experts]);
    let count = rows * params.cols4;
    var top = vec4<u32>();
    for (var first = workgroup.x * LANES + lane; first < count; first += EACH * STEP) {
        for (var i = 0u; i < EACH; i++) {
            let at = min(first + i * STEP, count - 1u);
            let words = words_of(x[params.offset + at / params.cols4 * params.stride + at % params.cols4]);
            top = max(top, words & MAGNITUDE);
        }
    }
    // The upper halves are whole numbers that f32 holds exactly.
    let two = max(top.xy, top.zw);
    let of_part = row_max(f32(max(two.x, two.y) >> 16u), lane);
    if (lane == 0u) {
        largest[workgroup.x] = u32(of_part) << 16u;
    }
}
