@group(0) @binding(0) var<storage, read> gradients: array<f32>;
@group(0) @binding(1) var<storage, read_write> overflows: array<u32>;

fn bits(value: f32) -> u32 {
    return bitcast<u32>(value) & 0x7f800000u;
}

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>) {
    let g = gradients[workgroup.x];
    let unscale = gradients[0];
    overflows[workgroup.x] = select(0u, 1u, bits(g * unscale) == 0x7f800000u);
}
