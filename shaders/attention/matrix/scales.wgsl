// Scales of attention by matrices. Tensors of f16 have none. Tensors of bf16 become f16 where they are staged, times
// powers of two (lib/half_scale): one for queries, keys and values, which are one tensor, and one for dout. out, a mean
// of values times the factor of dropout, has the power of values over 2^rise, which is above that factor.
//
// Weights p are at most 1. The backward passes keep dp = dout · v and delta in the units of both powers. There both are
// below V 2^32 factor, so p (dp − delta) is below V 2^(32 + rise + 1). It is stored times GAIN and `slope`, which bring
// that bound to 2^16, f16's largest: what is above 2^-30 of the bound is a normal f16, and has all of its bits.

import package::attention::params::params;
@if(bf16) import package::lib::element::Packed;
@if(bf16) import package::lib::half_scale::{factors_of, half_scale, power_of, scaled4};
@if(bf16) import package::tile::{PARTS, V4};

enable f16;

// Four elements as they are stored, and as matrices take them.
@if(f16) alias Stored = vec4<f16>;
@if(bf16) alias Stored = Packed;
@if(f16) fn half4(stored: Stored, scale: f32) -> vec4<f16> { return stored; }
@if(bf16) fn half4(stored: Stored, scale: f32) -> vec4<f16> { return scaled4(stored, scale); }

@if(bf16) @group(0) @binding(10) var<storage, read> qkv_largest: array<vec4<u32>>; // (PARTS), see largest.wgsl
@if(bf16) @group(0) @binding(11) var<storage, read> dout_largest: array<vec4<u32>>;

// A factor on the weights p and ds, and its logarithm: f16 keeps 11 bits down to 2^-14, and most weights of long
// sequences are small.
const GAIN: f32 = 64.0;
const LOG2_GAIN: f32 = 6.0;

// Scales of the tensors, and factors that undo them.
struct ForwardScales {
    qkv: f32,
    score: f32, // of a product q · k: params.scale times what undoes both scales
    out: f32,
}

struct BackwardScales {
    qkv: f32,
    dout: f32,
    out: f32,
    delta: f32, // brings products of dout and out to the units of dp
    score: f32,
    slope: f32, // of ds, beside GAIN
    dqk: vec2<f32>, // of sums of q or k times what is stored of ds
    dv: vec2<f32>, // of sums of dout times what is stored of p
}

@if(f16)
fn forward_scales() -> ForwardScales {
    return ForwardScales(1.0, params.scale, 1.0);
}

@if(bf16)
fn forward_scales() -> ForwardScales {
    let largest = largest_of_qkv();
    let undone = factors_of(-power_of(largest), largest);
    return ForwardScales(half_scale(largest), score_factor(largest), undone.x * undone.y);
}

@if(f16)
fn backward_scales() -> BackwardScales {
    let dqk = vec2<f32>(params.scale / GAIN, 1.0);
    return BackwardScales(1.0, 1.0, 1.0, 1.0, params.scale, 1.0, dqk, vec2<f32>(1.0 / GAIN, 1.0));
}

@if(bf16)
fn backward_scales() -> BackwardScales {
    let of_qkv = largest_of_qkv();
    let of_dout = largest_of_dout();
    let largest = max(of_qkv, of_dout);
    let rise = i32(bitcast<u32>(params.factor) >> 23u) - 126;
    let log2_v = i32(firstLeadingBit(4u * V4 - 1u)) + 1;
    let slope = 23 + rise + log2_v; // log2(GAIN V 2^(32 + rise + 1)) - 16
    let of_ds = slope - power_of(of_qkv) - power_of(of_dout);
    return BackwardScales(
        half_scale(of_qkv),
        half_scale(of_dout),
        half_scale(of_qkv) * exp2_of(-rise),
        exp2_of(rise),
        score_factor(of_qkv),
        exp2_of(-slope),
        factors_of(of_ds - power_of(of_qkv), largest) * vec2<f32>(params.scale / GAIN, 1.0),
        factors_of(-power_of(of_dout), largest) * vec2<f32>(1.0 / GAIN, 1.0),
    );
}

// 2^x, which exp2 need not compute exactly.
@if(bf16)
fn exp2_of(x: i32) -> f32 {
    return bitcast<f32>(u32(x + 127) << 23u);
}

@if(bf16)
fn score_factor(largest: u32) -> f32 {
    let undone = factors_of(-2 * power_of(largest), largest);
    return params.scale * undone.x * undone.y;
}

// All lanes read all parts, from addresses that they share.
@if(bf16)
fn largest_of_qkv() -> u32 {
    var top = vec4<u32>();
    for (var i = 0u; i < PARTS / 4u; i++) {
        top = max(top, qkv_largest[i]);
    }
    return max(max(top.x, top.y), max(top.z, top.w));
}

@if(bf16)
fn largest_of_dout() -> u32 {
    var top = vec4<u32>();
    for (var i = 0u; i < PARTS / 4u; i++) {
        top = max(top, dout_largest[i]);
    }
    return max(max(top.x, top.y), max(top.z, top.w));
}
