enable f16;
alias Number = f32;

struct Params {
    silu: u32,
    @size(16) rows: u32,
}
@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

fn sum(a: f32, c: f32) -> f32 {
    return a + c;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, ) {
    var x = Number(y[0]);
    for (var i = 0u; i < 4u; i++) { x += 1.0; }
    x = sum(x, 2.0);
    switch id.x {
        case 3u: { x = 6.0; }
        default: { x = lib_silu__silu(vec4<f32>(x)).x + f32(params.silu); }
    }
    y[id.x] = x;
}

fn lib_silu__sigmoid(x: vec4<f32>) -> vec4<f32> {
    return 1.0 / (1.0 + exp(-x));
}

fn lib_silu__bounded(gate: vec4<f32>) -> vec4<f32> {
    return select(gate, vec4<f32>(-80.0), gate < vec4<f32>(-80.0));
}

fn lib_silu__silu(x: vec4<f32>) -> vec4<f32> {
    let gate = lib_silu__bounded(x);
    return gate * lib_silu__sigmoid(gate);
}
