// The sigmoid linear unit:   silu(x) = x · s(x),   s(x) = 1 / (1 + e^-x)
//
// x is clamped to at least -80, so that e^-x stays finite; |silu| is below 1.5e-33 there.

fn sigmoid(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-x));
}

// max may replace a NaN by -80, which would hide an overflow; select keeps it. (See lib/bits.)
fn bounded(gate: vec4<f32>) -> vec4<f32> {
    return select(gate, vec4<f32>(-80.0), gate < vec4<f32>(-80.0));
}

fn silu(x: vec4<f32>) -> vec4<f32> {
    let gate = bounded(x);
    return gate * sigmoid(gate);
}

// The gradients of gate and up, from the gradient of silu(gate) · up.
struct Slopes {
    gate: vec4<f32>,
    up: vec4<f32>,
}

fn swiglu_slopes(unbounded: vec4<f32>, up: vec4<f32>, dy: vec4<f32>) -> Slopes {
    let gate = bounded(unbounded);
    let s = sigmoid(gate);
    let silu = gate * s;
    return Slopes(dy * up * (s + silu * (1.0 - s)), dy * silu);
}
