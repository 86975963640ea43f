@group(0) @binding(0) var<storage, read> gradients: array<f32>;
@group(0) @binding(1) var<storage, read_write> overflows: array<u32>;

fn word_of(value: f32) -> u32 {
    return bitcast<u32>(value * 2.0);
}

fn is_beyond(word: u32, bound: u32) -> bool {
    return (word & 0x7fffffffu) > bound;
}

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>) {
    overflows[workgroup.x] = select(0u, 1u, is_beyond(word_of(gradients[workgroup.x]), overflows[0]));
}
