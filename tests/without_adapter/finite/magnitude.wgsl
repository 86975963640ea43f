@group(0) @binding(0) var<storage, read> gradients: array<f32>;
@group(0) @binding(1) var<storage, read_write> overflows: array<u32>;

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>) {
    let words = bitcast<vec4<u32>>(vec4<f32>(gradients[workgroup.x]) + 1.0);
    let magnitudes = words & vec4<u32>(0x7fffffffu);
    overflows[workgroup.x] = select(0u, 1u, magnitudes.y > 0x7f800000u);
}
