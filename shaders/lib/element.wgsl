// Storage of 4 consecutive elements of a tensor, and their conversion to and from f32.
//
// A binding is `array<Packed>`; `load4` widens to f32, `store4` rounds to nearest even and overflows to infinity.
// store4 packs both 16-bit types in integer arithmetic: WGSL leaves rounding and overflow of pack2x16float open, and no
// device feature is needed this way. WGSL also leaves rounding and overflow of a conversion to f16 open, so
// `native_f16` holds only on adapters whose conversion was found to give the same bits (src/gpu/device/f16_probe.rs).
//
// Widening is exact, but an adapter may treat subnormal halves as zeros, both in unpack2x16float and in a conversion
// from f16. Where it was found to (src/gpu/device/f16_widen_probe.rs), `integer_widening` computes the bits in
// integers.

@if(native_f16) enable f16;

@if(f32) alias Packed = vec4<f32>;
@if(f16 || bf16) alias Packed = vec2<u32>;

@if(f32) const LINE4: u32 = 4u; // groups of 4 in 64 bytes
@if(f16 || bf16) const LINE4: u32 = 8u;

// Whether one of the elements is infinite or NaN, by its exponent as stored (lib/bits).
fn has_overflow(packed: Packed) -> bool {
    let words = words_of(packed);
    return any((words & vec4<u32>(EXPONENT)) == vec4<u32>(EXPONENT));
}

@if(f16) const EXPONENT: u32 = 0x7c000000u;
@if(!f16) const EXPONENT: u32 = 0x7f800000u;

@if(f32) fn words_of(packed: Packed) -> vec4<u32> { return bitcast<vec4<u32>>(packed); }
@if(f16 || bf16) fn words_of(packed: Packed) -> vec4<u32> { return vec4<u32>(packed << vec2<u32>(16u), packed); }

@if(f32)
fn load4(packed: Packed) -> vec4<f32> {
    return packed;
}

@if(f32)
fn store4(value: vec4<f32>) -> Packed {
    return value;
}

@if(bf16)
fn load4(packed: Packed) -> vec4<f32> {
    let low = packed << vec2<u32>(16u);
    let high = packed & vec2<u32>(0xffff0000u);
    return bitcast<vec4<f32>>(vec4<u32>(low.x, high.x, low.y, high.y));
}

@if(bf16)
fn store4(value: vec4<f32>) -> Packed {
    let bits = bitcast<vec4<u32>>(value);
    // Round to nearest even at the lower half. Arithmetic keeps a NaN a NaN, since a test of it might be folded
    // (lib/bits): the bits of the lower half that alone tell it from infinity are added to the upper half, and a carry
    // into the sign is cut off.
    let magnitude = bits & vec4<u32>(0x7fffffffu);
    let nearest = vec4<u32>(0x7fffu) + ((bits >> vec4<u32>(16u)) & vec4<u32>(1u));
    let of_nan = max(magnitude, vec4<u32>(0x7f800000u)) << vec4<u32>(16u); // 0 for others
    let half = (bits + min(nearest | of_nan, vec4<u32>(0x7fffffffu) - magnitude)) >> vec4<u32>(16u);
    return vec2<u32>(half.x | (half.y << 16u), half.z | (half.w << 16u));
}

@if(f16 && !integer_widening)
fn load4(packed: Packed) -> vec4<f32> {
    return vec4<f32>(unpack2x16float(packed.x), unpack2x16float(packed.y));
}

@if(f16 && integer_widening)
fn load4(packed: Packed) -> vec4<f32> {
    let half = vec4<u32>(packed.x & 0xffffu, packed.x >> 16u, packed.y & 0xffffu, packed.y >> 16u);
    let magnitude = half & vec4<u32>(0x7fffu);
    // Exponents are biased by 127 instead of 15; infinities and NaN have the largest exponent in both types.
    let is_finite = magnitude < vec4<u32>(0x7c00u);
    let normal = (magnitude << vec4<u32>(13u)) + select(vec4<u32>(0x70000000u), vec4<u32>(0x38000000u), is_finite);
    // Subnormal: a count of 2^-24, which the conversion of an integer turns into a normal float.
    let subnormal = bitcast<vec4<u32>>(vec4<f32>(magnitude) * 5.9604644775390625e-8);
    let bits = select(normal, subnormal, magnitude < vec4<u32>(0x400u));
    return bitcast<vec4<f32>>(bits | ((half & vec4<u32>(0x8000u)) << vec4<u32>(16u)));
}

// The packed values are exact, and compilers for GPUs drop the detour over f32. WGSL could bitcast instead, but naga
// does not between 16 and 32 bits.
@if(f16 && native_f16)
fn store4(value: vec4<f32>) -> Packed {
    let half = vec4<f32>(vec4<f16>(value));
    return vec2<u32>(pack2x16float(half.xy), pack2x16float(half.zw));
}

@if(f16 && !native_f16)
fn store4(value: vec4<f32>) -> Packed {
    let half = vec4<u32>(half_bits(value.x), half_bits(value.y), half_bits(value.z), half_bits(value.w));
    return vec2<u32>(half.x | (half.y << 16u), half.z | (half.w << 16u));
}

@if(f16 && !native_f16)
fn half_bits(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x477ff000u) {
        // 65520 and above round to infinity. The quiet bit of a NaN is set by arithmetic, since a test might be folded
        // (lib/bits).
        return sign | 0x7c00u | (((magnitude + 0x7fffffu) >> 22u) & 0x200u);
    }
    if (magnitude < 0x38800000u) {
        // Subnormal: the ulp of 0.5f is 2^-24, the spacing of subnormal halves, so the addition rounds correctly.
        return sign | (bitcast<u32>(bitcast<f32>(magnitude) + 0.5) - 0x3f000000u);
    }
    let odd = (magnitude >> 13u) & 1u;
    return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13u);
}
