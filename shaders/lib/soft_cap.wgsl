// A soft cap of scores or logits:   y = c · tanh(x / c),   dy/dx = 1 − (y / c)²
//
// tanh u = u P(u²) / Q(u²): four multiply-adds each and a division, no exponential, and no cancellation near 0. In f32 it
// is off by at most 2.8e-7 of its value; its largest value is 1 − 2^-24, so |y| < c. Where tanh is 1 in f32 but for
// that, u is clamped.
// Sources: Gemma Team, "Gemma 2", 2024, section 2. P and Q are of degree 4, the minimax fit of tanh(u) / u for
// |u| <= 8 by reweighted least squares; its relative error is 6.5e-9.

const BOUND: f32 = 8.0;

// `inverse` is 1 / `cap`.
fn soft_capped(x: f32, cap: f32, inverse: f32) -> f32 {
    // clamp may replace a NaN by a bound, which would hide an overflow; select keeps it. (See lib/bits.)
    let below = select(inverse * x, BOUND, inverse * x > BOUND);
    let u = select(below, -BOUND, below < -BOUND);
    let v = u * u;
    let p = fma(fma(fma(fma(1.523061009e-08, v, 2.189479948e-05), v, 3.571606367e-03), v, 1.344450501e-01), v, 1.0);
    let q = fma(fma(fma(fma(8.522524893e-07, v, 3.411305664e-04), v, 2.616447469e-02), v, 4.677783233e-01), v, 1.0);
    return cap * (u * p / q);
}

fn soft_capped4(x: vec4<f32>, cap: f32, inverse: f32) -> vec4<f32> {
    return vec4<f32>(
        soft_capped(x.x, cap, inverse),
        soft_capped(x.y, cap, inverse),
        soft_capped(x.z, cap, inverse),
        soft_capped(x.w, cap, inverse),
    );
}

// dy/dx where the cap has made y.
fn soft_cap_slope(y: f32, inverse: f32) -> f32 {
    let t = inverse * y;
    return 1.0 - t * t;
}

fn soft_cap_slope4(y: vec4<f32>, inverse: f32) -> vec4<f32> {
    let t = inverse * y;
    return 1.0 - t * t;
}
