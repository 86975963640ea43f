// The activation of a gate and what it multiplies, which another projection yields ("up"):
//   default        silu(gate) · up (lib/silu): SwiGLU
//   gelu_gate      gelu(gate) · up (lib/gelu): GeGLU
//   clamped_gate   g · s(1.702 g) · (u + 1), s the logistic function, g = min(gate, 7), u = up between -7 and 7.
//                  g · s(a g) is silu(a g) / a. What is clamped has no gradient; at a limit there is one, as in torch
//
// Sources: Shazeer, "GLU Variants Improve Transformer", 2020; OpenAI, "gpt-oss", 2025.

@if(gelu_gate) import package::lib::gelu::{gelu_and_slope, gelu_of};
import package::lib::silu::Slopes;
@if(!gelu_gate) import package::lib::silu::{silu, swiglu_slopes};

@if(clamped_gate) const STEEPNESS: f32 = 1.702;
@if(clamped_gate) const LIMIT = vec4<f32>(7.0);

fn gated(gate: vec4<f32>, up: vec4<f32>) -> vec4<f32> {
    @if(!gelu_gate && !clamped_gate) { return silu(gate) * up; }
    @if(gelu_gate) { return gelu_of(gate) * up; }
    @if(clamped_gate) { return silu(STEEPNESS * below(gate)) * (1.0 / STEEPNESS) * (within(up) + 1.0); }
}

// The gradients of gate and up, from the gradient of gated(gate, up).
fn gate_slopes(gate: vec4<f32>, up: vec4<f32>, dy: vec4<f32>) -> Slopes {
    @if(!gelu_gate && !clamped_gate) { return swiglu_slopes(gate, up, dy); }
    @if(gelu_gate) {
        let gelu = gelu_and_slope(gate);
        return Slopes(dy * up * gelu.slope, dy * gelu.value);
    }
    @if(clamped_gate) {
        let slopes = swiglu_slopes(STEEPNESS * below(gate), within(up) + 1.0, dy);
        let zero = vec4<f32>(0.0);
        return Slopes(
            select(slopes.gate, zero, gate > LIMIT),
            select(slopes.up * (1.0 / STEEPNESS), zero, abs(up) > LIMIT),
        );
    }
}

// min and clamp may replace a NaN by a limit, which would hide an overflow; select keeps it. (See lib/bits.)
@if(clamped_gate) fn below(x: vec4<f32>) -> vec4<f32> { return select(x, LIMIT, x > LIMIT); }
@if(clamped_gate) fn within(x: vec4<f32>) -> vec4<f32> { return select(below(x), -LIMIT, x < -LIMIT); }
