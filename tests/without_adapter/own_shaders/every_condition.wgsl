// A condition before each construct that may have one; those with `causal` hold.

@if(!causal) enable subgroups;
@if(causal) enable f16;
@if(!causal) import package::lib::silu::unknown;
@if(causal) import package::lib::silu::{silu}; /* a comment /* in a comment */ import package::nothing::at_all; */

@if(causal && f32) alias Number = f32;
@if(!(causal && f32)) alias Number = f16;

struct Params {
    @if(causal) silu: u32, // a member of the name of an item
    @if(!causal) @align(16) table: vec2<u32>,
    @if(bf16 || causal) @size(16) rows: u32,
    @if(!causal) cols: u32
}

@group(0) @binding(0) var<uniform> params: Params;
@if(!causal) @group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>, 4>;
@if(causal) @group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn sum(a: f32, @if(!causal) b: array<f32, 2>, @if(causal) c: f32) -> f32 {
    return a + c;
}

@if(!causal)
fn gone(x: f32) -> f32 {
    if (x > 0.0) { return 1.0; } else { return 2.0; }
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @if(!causal) @builtin(local_invocation_index) lane: u32) {
    var x = Number(y[0]);
    @if(!causal) if (x > 0.0) { x = 1.0; } else if (x < 0.0) { x = 2.0; } else { x = 3.0; }
    @if(causal) for (var i = 0u; i < 4u; i++) { x += 1.0; }
    @if(!causal) { x = 4.0; }
    @if(causal) @if(f32) x = sum(x, 2.0);
    switch id.x {
        @if(!causal) case 1u, 2u: { x = 5.0; }
        @if(causal) case 3u: { x = 6.0; }
        default: { x = silu(vec4<f32>(x)).x + f32(params.silu); }
    }
    y[id.x] = x;
}
