// Four weights of a matrix whose rows are stored in quantised blocks of 64: src/gpu/element/quantised.rs has the
// layout.
//
//   nf4    9 words: the largest magnitude in f32, then 64 codes of 4 bits, each of which stands for a level in [-1, 1]
//   int8   17 words: two scales in f16, for 32 weights each, then 64 signed bytes
//
// A weight is the scale times a level or a byte, rounded once. Weights are counted in groups of 4, as everywhere.

@if(nf4) const BLOCK_WORDS: u32 = 9u;
@if(int8) const BLOCK_WORDS: u32 = 17u;

// The first word of the block that holds group `at` of a matrix, counted in groups of 4.
fn block_of(at: u32) -> u32 {
    return at / 16u * BLOCK_WORDS;
}

// The word with the codes of group `at`, counted from the first of its block.
@if(nf4) fn word_of_codes(at: u32) -> u32 { return 1u + at % 16u / 2u; }
@if(int8) fn word_of_codes(at: u32) -> u32 { return 1u + at % 16u; }

// In workgroup memory, since a dynamic index into a constant would make compilers spill a private copy.
@if(nf4) var<workgroup> levels: array<f32, 16>;

// Must be called before the first `codes4` of a workgroup, with a barrier in between.
@if(nf4)
fn fill_levels(lane: u32) {
    if (lane == 0u) {
        levels = array<f32, 16>(
            -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
            0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
        );
    }
}

// Group `at`. `first` is the first word of its block, and `codes` the word with its codes.
fn widened(at: u32, first: u32, codes: u32) -> vec4<f32> {
    return scale_in(at, first) * codes4(at, codes);
}

// What the codes of group `at` stand for, in units of the scale.
@if(nf4)
fn codes4(at: u32, codes: u32) -> vec4<f32> {
    let four = codes >> (16u * (at & 1u));
    return vec4<f32>(
        levels[four & 15u],
        levels[(four >> 4u) & 15u],
        levels[(four >> 8u) & 15u],
        levels[(four >> 12u) & 15u],
    );
}

@if(int8)
fn codes4(at: u32, codes: u32) -> vec4<f32> {
    return vec4<f32>(vec4<i32>(vec4<u32>(codes << 24u, codes << 16u, codes << 8u, codes)) >> vec4<u32>(24u));
}

// The scale of group `at`.
@if(nf4) fn scale_in(at: u32, first: u32) -> f32 { return bitcast<f32>(first); }
@if(int8)
fn scale_in(at: u32, first: u32) -> f32 {
    return widened_half((first >> (16u * ((at >> 3u) & 1u))) & 0xffffu);
}

// Computed in integers, since an adapter may treat subnormal halves as zeros. Scales are not negative. Infinities and
// NaN have the largest exponent in both types.
@if(int8)
fn widened_half(half: u32) -> f32 {
    let bias = select(0x38000000u, 0x70000000u, half >= 0x7c00u);
    let normal = bitcast<f32>((half << 13u) + bias);
    return select(normal, f32(half) * 5.9604644775390625e-8, half < 0x400u);
}

// The bits of an f32 that no magnitude in a block exceeds after it is rounded to f16's 11 bits of significand, from the
// first word of the block. Those of the largest magnitude are carried to its exponent if rounding could; 128 times the
// larger scale has 11 bits. They are above those of every number if a scale is infinite or NaN.
@if(nf4) fn largest_in(first: u32) -> u32 { return first + 0x2000u; }
@if(int8)
fn largest_in(first: u32) -> u32 {
    return bitcast<u32>(widened_half(max(first & 0xffffu, first >> 16u))) + (7u << 23u);
}
