// Constants and helpers of the attention kernels.

const LOG2_E: f32 = 1.4426950408889634;
const LN_2: f32 = 0.6931471805599453;

// Score of a masked key. Finite, so that the difference of two masked scores is 0 and not NaN.
const MASKED: f32 = -1e30;

// Initial running maximum: so far above MASKED that masked scores have weight 0 even before the first visible key.
const LOWEST: f32 = -5e29;

// ALiBi's slope of a head, times log2 e: the amount that the score of a key loses for each token between it and the
// query. Slopes of P = 2^i heads are 2^(-8 h / P) for h from 1 to P; heads past the largest power of two take every
// second slope of 2 P heads, from the first on. The exponents are exact.
// Source: Press et al., "Train Short, Test Long", 2022, section 3, and the code published with it.
fn alibi_slope(head: u32, heads: u32) -> f32 {
    let power = 1u << firstLeadingBit(heads);
    let first = -8.0 * f32(head + 1u) / f32(power);
    let rest = -4.0 * f32(2u * (head - power) + 1u) / f32(power);
    return LOG2_E * exp2(select(rest, first, head < power));
}

// sum + a · b
fn add_dot(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
