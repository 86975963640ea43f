// Gaussian error linear unit:   y = x · Φ(x)                                                       x, y, dy, dx (N, F)
//   exact     Φ is the standard normal CDF, (1 + erf(x / √2)) / 2
//   default   the tanh approximation: Φ(x) = (1 + tanh u) / 2 = 1 / (1 + e^-2u),   u = √(2/π) · (x + 0.044715 x³)
//   fast      the logistic approximation, u = 0.851 x
//
//   gelu            writes y
//   gelu_backward   writes dx = dy · (Φ(x) + x · Φ'(x))
//
// One invocation computes 4 columns of one row; a workgroup stays within a row.
// Numerics: f32 between load and store. exact: Φ(−z) = e^(−z²/2) · R(z) for z ≥ 0, which keeps full relative precision
// in the lower tail; R is a polynomial in 1 / (1 + 0.3 z) with a relative error of at most 3.3e-8. Where Φ has
// saturated to 0 or 1 in f32, x is clamped first, so that no power overflows. Padding needs no mask: zeros map to
// zeros.
// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016. R has the form of Abramowitz and Stegun, 26.2.17;
// its coefficients interpolate R at 96 Chebyshev nodes, computed with 50 digits.

import package::lib::element::{Packed, load4, store4};
import package::lib::grid::linear_index;
import package::tile::LANES;

struct Params {
    rows: u32,
    columns4: u32, // groups of 4 in a row
    chunks: u32, // workgroups per row
    x_offset: u32, // offsets and strides count groups of 4 elements
    x_stride: u32,
    y_offset: u32, // y or dy
    y_stride: u32,
    dx_offset: u32,
    dx_stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read> x: array<Packed>;
@group(0) @binding(2) var<storage, read_write> y: array<Packed>;
@group(0) @binding(3) var<storage, read> dy: array<Packed>;
@group(0) @binding(4) var<storage, read_write> dx: array<Packed>;

@if(exact) const BOUND: f32 = 13.0; // e^(-BOUND²/2) is 2e-37
@if(fast) const BOUND: f32 = 50.0; // e^(2u) is 9e36
@if(!exact && !fast) const BOUND: f32 = 10.0; // e^(2u) is 9e37

const INVERSE_SQRT_TAU: f32 = 0.3989422804014327; // 1 / √(2π)
const SQRT_2_OVER_PI: f32 = 0.7978845608028654;

@compute @workgroup_size(LANES)
fn gelu(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column = index % params.chunks * LANES + lane;
    if (row >= params.rows || column >= params.columns4) {
        return;
    }
    let value = load4(x[params.x_offset + row * params.x_stride + column]);
    let at = params.y_offset + row * params.y_stride + column;
    y[at] = store4(bounded_below(value) * distribution(bounded(value)).value);
}

@compute @workgroup_size(LANES)
fn gelu_backward(@builtin(workgroup_id) workgroup: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let index = linear_index(workgroup);
    let row = index / params.chunks;
    let column = index % params.chunks * LANES + lane;
    if (row >= params.rows || column >= params.columns4) {
        return;
    }
    let value = bounded(load4(x[params.x_offset + row * params.x_stride + column]));
    let phi = distribution(value);
    let gradient = load4(dy[params.y_offset + row * params.y_stride + column]);
    let at = params.dx_offset + row * params.dx_stride + column;
    dx[at] = store4(gradient * (phi.value + value * phi.slope));
}

// Φ(x) and Φ'(x).
struct Distribution {
    value: vec4<f32>,
    slope: vec4<f32>,
}

@if(exact)
fn distribution(x: vec4<f32>) -> Distribution {
    let z = abs(x);
    let density = exp(-0.5 * z * z);
    let t = 1.0 / (1.0 + 0.3 * z);
    let tail = density * t * ratio(2.0 * t - 1.0); // Φ(-z)
    return Distribution(select(tail, 1.0 - tail, x > vec4<f32>(0.0)), INVERSE_SQRT_TAU * density);
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
fn distribution(x: vec4<f32>) -> Distribution {
    let e = exp(-1.702 * x);
    let s = 1.0 / (1.0 + e);
    return Distribution(s, 1.702 * (e * s) * s);
}

@if(!exact && !fast)
fn distribution(x: vec4<f32>) -> Distribution {
    let u = SQRT_2_OVER_PI * (x + 0.044715 * x * x * x);
    let e = exp(-2.0 * u);
    let s = 1.0 / (1.0 + e);
    // s' = s · (1 - s); e · s equals 1 - s without cancellation where s is close to 1.
    return Distribution(s, 2.0 * (e * s) * s * SQRT_2_OVER_PI * (1.0 + 0.134145 * x * x));
}

// clamp may replace a NaN by a bound, which would hide an overflow; select keeps it.
fn bounded(x: vec4<f32>) -> vec4<f32> {
    let below = bounded_below(x);
    return select(below, vec4<f32>(BOUND), below > vec4<f32>(BOUND));
}

fn bounded_below(x: vec4<f32>) -> vec4<f32> {
    return select(x, vec4<f32>(-BOUND), x < vec4<f32>(-BOUND));
}
