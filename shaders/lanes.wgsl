// Capability probe, run once per adapter: is a workgroup of LANES invocations one subgroup, as lib/lanes assumes?
//
//   heard (LANES, 4) f32 written: row i counts, per component, the lanes from which invocation i got the right value
//
// Lane s contributes four values derived from its index. With working shuffles all counts are LANES; without `shuffled`
// each lane only sees its own value and counts 1. The loop bound is a uniform, as in the kernels that rely on this.

import package::lib::lanes::from_lane;
import package::tile::LANES;

struct Params {
    lanes: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> heard: array<vec4<f32>>;

@compute @workgroup_size(LANES)
fn hear_lanes(@builtin(local_invocation_index) lane: u32) {
    let said = words_of(lane);
    var count = vec4<f32>(0.0);
    for (var s = 0u; s < params.lanes; s++) {
        count += select(vec4<f32>(0.0), vec4<f32>(1.0), from_lane(said, s) == words_of(s));
    }
    heard[lane] = count;
}

fn words_of(lane: u32) -> vec4<f32> {
    return f32(lane) + vec4<f32>(0.25, 32.5, -64.0, 128.0);
}
