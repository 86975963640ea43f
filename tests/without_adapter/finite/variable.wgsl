@group(0) @binding(0) var<storage, read> gradients: array<f32>;
@group(0) @binding(1) var<storage, read_write> overflows: array<u32>;

fn is_finite(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7f800000u) != 0x7f800000u;
}

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>) {
    var value = gradients[workgroup.x];
    if (workgroup.y > 0u) {
        value = 1.0 / value;
    }
    overflows[workgroup.x] = select(1u, 0u, is_finite(value));
}
