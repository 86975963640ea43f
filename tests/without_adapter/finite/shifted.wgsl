@group(0) @binding(0) var<storage, read> gradients: array<f32>;
@group(0) @binding(1) var<storage, read_write> overflows: array<u32>;

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>) {
    let word = bitcast<u32>(exp(gradients[workgroup.x]));
    overflows[workgroup.x] = select(0u, 1u, ((word >> 23u) & 0xffu) == 0xffu);
}
