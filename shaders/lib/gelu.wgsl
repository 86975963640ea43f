// Gaussian error linear unit:   gelu(x) = x · Φ(x)
//   exact     Φ is the standard normal CDF, (1 + erf(x / √2)) / 2
//   default   the tanh approximation: Φ(x) = (1 + tanh u) / 2 = 1 / (1 + e^-2u),   u = √(2/π) · (x + 0.044715 x³)
//   fast      the logistic approximation, u = 0.851 x
// and the rectified units that it smooths, which are products of x in the same way:
//   relu      max(x, 0);  with `squared` its square
//
// exact: Φ(−z) = e^(−z²/2) · R(z) for z ≥ 0, which keeps full relative precision in the lower tail; R is a polynomial
// in 1 / (1 + 0.3 z) with a relative error of at most 3.3e-8. Where Φ has saturated to 0 or 1 in f32, x is clamped
// first, so that no power overflows.
// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016. R has the form of Abramowitz and Stegun, 26.2.17;
// its coefficients interpolate R at 96 Chebyshev nodes, computed with 50 digits.

@if(exact) const BOUND: f32 = 13.0; // e^(-BOUND²/2) is 2e-37
@if(fast) const BOUND: f32 = 50.0; // e^(2u) is 9e36
@if(!exact && !fast && !relu) const BOUND: f32 = 10.0; // e^(2u) is 9e37

const INVERSE_SQRT_TAU: f32 = 0.3989422804014327; // 1 / √(2π)
const SQRT_2_OVER_PI: f32 = 0.7978845608028654;

@if(!relu)
fn gelu_of(x: vec4<f32>) -> vec4<f32> {
    return bounded_below(x) * distribution(bounded(x)).value;
}

// The derivative of gelu.
@if(!relu)
fn gelu_slope(x: vec4<f32>) -> vec4<f32> {
    let value = bounded(x);
    let phi = distribution(value);
    return phi.value + value * phi.slope;
}

// gelu(x) and its derivative.
@if(!relu)
fn gelu_and_slope(x: vec4<f32>) -> Differentiated {
    let value = bounded(x);
    let phi = distribution(value);
    return Differentiated(bounded_below(x) * phi.value, phi.value + value * phi.slope);
}

// A function of x, Φ among others, and its derivative.
struct Differentiated {
    value: vec4<f32>,
    slope: vec4<f32>,
}

@if(relu)
fn gelu_of(x: vec4<f32>) -> vec4<f32> {
    let value = select(x, vec4<f32>(0.0), x < vec4<f32>(0.0)); // keeps a NaN
    @if(!squared) { return value; }
    @if(squared) { return value * value; }
}

@if(relu)
fn gelu_slope(x: vec4<f32>) -> vec4<f32> {
    @if(!squared) { return select(vec4<f32>(1.0), vec4<f32>(0.0), x <= vec4<f32>(0.0)); }
    @if(squared) { return 2.0 * select(x, vec4<f32>(0.0), x < vec4<f32>(0.0)); }
}

@if(exact)
fn distribution(x: vec4<f32>) -> Differentiated {
    let z = abs(x);
    let density = exp(-0.5 * z * z);
    let t = 1.0 / (1.0 + 0.3 * z);
    let tail = density * t * ratio(2.0 * t - 1.0); // Φ(-z)
    return Differentiated(select(tail, 1.0 - tail, x > vec4<f32>(0.0)), INVERSE_SQRT_TAU * density);
}

// R(z) / t as a polynomial in v = 2 t - 1, which runs from -1 (z = ∞) to 1 (z = 0); centring avoids cancellation.
@if(exact)
fn ratio(v: vec4<f32>) -> vec4<f32> {
    var sum = vec4<f32>(-8.877314083e-06);
    sum = fma(sum, v, vec4<f32>(-2.889905542e-05));
    sum = fma(sum, v, vec4<f32>(8.725423552e-05));
    sum = fma(sum, v, vec4<f32>(2.653205780e-04));
    sum = fma(sum, v, vec4<f32>(-5.740814506e-04));
    sum = fma(sum, v, vec4<f32>(-2.416392571e-03));
    sum = fma(sum, v, vec4<f32>(1.816763076e-03));
    sum = fma(sum, v, vec4<f32>(2.775907704e-02));
    sum = fma(sum, v, vec4<f32>(8.654966967e-02));
    sum = fma(sum, v, vec4<f32>(1.645795469e-01));
    return fma(sum, v, vec4<f32>(2.219706134e-01));
}

@if(fast)
fn distribution(x: vec4<f32>) -> Differentiated {
    let e = exp(-1.702 * x);
    let s = 1.0 / (1.0 + e);
    return Differentiated(s, 1.702 * (e * s) * s);
}

@if(!exact && !fast && !relu)
fn distribution(x: vec4<f32>) -> Differentiated {
    let u = SQRT_2_OVER_PI * (x + 0.044715 * x * x * x);
    let e = exp(-2.0 * u);
    let s = 1.0 / (1.0 + e);
    // s' = s · (1 - s); e · s equals 1 - s without cancellation where s is close to 1.
    return Differentiated(s, 2.0 * (e * s) * s * SQRT_2_OVER_PI * (1.0 + 0.134145 * x * x));
}

// clamp may replace a NaN by a bound, which would hide an overflow; select keeps it. (See lib/bits.)
@if(!relu)
fn bounded(x: vec4<f32>) -> vec4<f32> {
    let below = bounded_below(x);
    return select(below, vec4<f32>(BOUND), below > vec4<f32>(BOUND));
}

@if(!relu)
fn bounded_below(x: vec4<f32>) -> vec4<f32> {
    return select(x, vec4<f32>(-BOUND), x < vec4<f32>(-BOUND));
}
