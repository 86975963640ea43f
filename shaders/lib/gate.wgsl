// The activation of a gate, which multiplies what another projection yields ("up"):   activated(gate) · up
//   default     silu (lib/silu): SwiGLU
//   gelu_gate   gelu (lib/gelu): GeGLU
//
// Source: Shazeer, "GLU Variants Improve Transformer", 2020.

@if(gelu_gate) import package::lib::gelu::{gelu_and_slope, gelu_of};
import package::lib::silu::Slopes;
@if(!gelu_gate) import package::lib::silu::{silu, swiglu_slopes};

@if(!gelu_gate) fn activated(gate: vec4<f32>) -> vec4<f32> { return silu(gate); }
@if(gelu_gate) fn activated(gate: vec4<f32>) -> vec4<f32> { return gelu_of(gate); }

// The gradients of gate and up, from the gradient of activated(gate) · up.
fn gate_slopes(gate: vec4<f32>, up: vec4<f32>, dy: vec4<f32>) -> Slopes {
    @if(!gelu_gate) { return swiglu_slopes(gate, up, dy); }
    @if(gelu_gate) {
        let gelu = gelu_and_slope(gate);
        return Slopes(dy * up * gelu.slope, dy * gelu.value);
    }
}
