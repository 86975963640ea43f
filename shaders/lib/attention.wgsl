// What the three attention kernels share.

const LOG2_E: f32 = 1.4426950408889634;
const LN_2: f32 = 0.6931471805599453;

// The score of a key that a query does not see. Finite, so that the difference of two such scores is a number.
const MASKED: f32 = -1e30;

// Where a running maximum starts: so far above MASKED that a masked score has no weight even before the first real one.
const LOWEST: f32 = -5e29;

// sum + a · b
fn add_dot(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
