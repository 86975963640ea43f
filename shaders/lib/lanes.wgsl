// Sharing of loads between the invocations of a workgroup that is a single subgroup.
//
// llvmpipe of Mesa 22 executes a load inside a loop lane by lane, so it costs the same whether the invocations read one
// address or LANES different ones. Each lane therefore loads a different value that all of them need, and shuffles hand
// them round in registers. Newer llvmpipe and SwiftShader gain less. Without `shuffled` every lane loads all values.

@if(shuffled) import package::tile::LANES;

// Number of shared values that one load of all lanes brings in.
@if(shuffled) const SHARED: u32 = LANES;
@if(!shuffled) const SHARED: u32 = 1u;

// Which of those values this lane loads.
@if(shuffled) fn own_share(lane: u32) -> u32 { return lane; }
@if(!shuffled) fn own_share(lane: u32) -> u32 { return 0u; }

// The value that `lane` has loaded; `lane` is uniform.
@if(shuffled) fn from_lane(value: vec4<f32>, lane: u32) -> vec4<f32> { return subgroupShuffle(value, lane); }
@if(!shuffled) fn from_lane(value: vec4<f32>, lane: u32) -> vec4<f32> { return value; }
