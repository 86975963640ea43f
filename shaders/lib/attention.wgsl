// Constants and helpers of the attention kernels.

const LOG2_E: f32 = 1.4426950408889634;
const LN_2: f32 = 0.6931471805599453;

// Score of a masked key. Finite, so that the difference of two masked scores is 0 and not NaN.
const MASKED: f32 = -1e30;

// Initial running maximum: so far above MASKED that masked scores have weight 0 even before the first visible key.
const LOWEST: f32 = -5e29;

// sum + a · b
fn add_dot(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
