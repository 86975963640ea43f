// Powers of two that bring the values of a tensor of bf16 or f32 into the range of f16.
//
// Where the largest magnitude is in [2^e, 2^(e+1)), the tensor is multiplied by 2^(15-e). The largest then has f16's
// largest exponent, and none is above 255 · 2^8 = 65,280, so nothing overflows. What is 2^(e-29) or more is a normal
// f16, and exact, since bf16 has 8 bits of significand and f16 has 11. Smaller values become subnormal or 0, as the
// adapter has it: the error is below 2^(e-29), a 2^-21 of half an ulp of the largest value. (The power is at most
// 2^126, whose inverse is a normal f32. So below e = -111 the error is below 2^-140, or 2^-126 where an adapter takes
// subnormal f32 for 0.)
//
// A value of f32 becomes two terms, high + 2^-11 · low. It is multiplied by 2^(14-e), since rounding to 11 bits could
// carry more to 2^16. The remainder has at most 12 bits, one of which low rounds off. So the error is at most 2^-23 of
// the value, plus 2^(e-39) for what is subnormal; where an adapter takes subnormal f16 for 0, a value below 2^(e-28)
// may be lost. A product of two low terms, which matmul/matrix leaves out, is at most 2^-22 of the product of the
// values.
//
// The largest magnitude is measured just before the product (shaders/largest.wgsl), so no state outlives a step,
// nothing saturates, and a resumed run has the same bits.
//
// Of quantised weights (lib/quantised) it is a bound from the scales of those that a workgroup multiplies by. A weight
// has up to 24 bits of significand, and f16 rounds it by up to 2^-11 of itself, besides the error above; two terms hold
// it as a value of f32.

@if(bf16) import package::lib::element::{Packed, load4};

enable f16;

// The largest magnitude of a tensor whose power is 1.
const UNSCALED: u32 = 0x47000000u;

// The power for a tensor whose largest magnitude has the bits `largest`.
fn half_scale(largest: u32) -> f32 {
    return bitcast<f32>(exponent_of(largest) << 23u);
}

// The biased exponent of the power; at most 14 where the largest is infinite or NaN, and finite values still become
// finite.
fn exponent_of(largest: u32) -> u32 {
    @if(!f32) { return min(269u - (largest >> 23u), 253u); }
    @if(f32) { return min(268u - (largest >> 23u), 253u); }
}

// Four values times the power.
@if(bf16)
fn scaled4(packed: Packed, scale: f32) -> vec4<f16> {
    return vec4<f16>(load4(packed) * scale);
}

// The high term of four scaled values of f32, or the low one if `term` is 1.
@if(f32)
fn term_of(scaled: vec4<f32>, term: u32) -> vec4<f16> {
    // Rounded in integers, since compilers may leave out a conversion to f16 and back: llvmpipe's does.
    let high = bitcast<vec4<f32>>((bitcast<vec4<u32>>(scaled) + vec4<u32>(0x1000u)) & vec4<u32>(0xffffe000u));
    return vec4<f16>(select((scaled - high) * TO_LOW, high, term == 0u));
}

// The factor of low terms.
@if(f32) const TO_LOW: f32 = 2048.0;

// Two factors that undo both powers in a product.
fn undone(largest: vec2<u32>) -> vec2<f32> {
    return factors_of(-power_of(largest.x) - power_of(largest.y), max(largest.x, largest.y));
}

// The exponent of the power for a tensor whose largest magnitude has the bits `largest`.
fn power_of(largest: u32) -> i32 {
    return i32(exponent_of(largest)) - 127;
}

// Two factors whose product is 2^whole. Their exponents are halves of the whole one, which may be beyond f32's: a sum
// times the first lies between the sum and the result, so it overflows or vanishes only if one of these does. If a value
// of an operand is infinite or NaN, as its `largest` says, the factors are NaN, as are then all results: conversions to
// f16 need not keep such values, and whoever tests the result for overflow must see them.
fn factors_of(whole: i32, largest: u32) -> vec2<f32> {
    let inside = clamp(whole, -252, 254); // beyond, every sum becomes 0 or infinity
    let first = inside >> 1u;
    let exponents = vec2<u32>(vec2<i32>(first, inside - first) + vec2<i32>(127));
    return bitcast<vec2<f32>>(select(vec2<u32>(0x7fc00000u), exponents << vec2<u32>(23u), largest < 0x7f800000u));
}
