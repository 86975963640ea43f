// How the invocations of a workgroup share what they load, where the workgroup is one subgroup.
//
// On llvmpipe of Mesa 22 a load in a loop costs the same whether the invocations read one address or LANES different ones:
// it reads lane by lane. Newer ones and SwiftShader gain less. So each lane reads something else that all of them need, and hands it round in registers.

@if(shuffled) import package::tile::LANES;

// How many places one load reads that all lanes want.
@if(shuffled) const SHARED: u32 = LANES;
@if(!shuffled) const SHARED: u32 = 1u;

// Which of those places this lane reads.
@if(shuffled) fn own_share(lane: u32) -> u32 { return lane; }
@if(!shuffled) fn own_share(lane: u32) -> u32 { return 0u; }

// What `lane` has read, for every lane; `lane` is the same for all of them.
@if(shuffled) fn from_lane(value: vec4<f32>, lane: u32) -> vec4<f32> { return subgroupShuffle(value, lane); }
@if(!shuffled) fn from_lane(value: vec4<f32>, lane: u32) -> vec4<f32> { return value; }
