@group(0) @binding(0) var<storage, read> gradients: array<f32>;
@group(0) @binding(1) var<storage, read_write> overflows: array<u32>;

fn is_beyond(word: u32, bound: u32) -> bool {
    return (word & 0x7fffffffu) > bound;
}

fn order_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

// The magnitude of what was computed, beside that of a finite number.
fn is_large(value: f32) -> bool {
    return (bitcast<u32>(value) & 0x7fffffffu) >= 0x477ff000u;
}

@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) workgroup: vec3<u32>) {
    let g = gradients[workgroup.x];
    var count = select(0u, 1u, is_beyond(bitcast<u32>(g), 0x7f7fffffu));
    count += select(0u, 1u, (bitcast<u32>(g) & 0x7f800000u) == 0x7f800000u);
    count += select(0u, 1u, order_of(2.0 * g) > order_of(3.0 - g));
    count += select(0u, 1u, is_large(2.0 * g));
    overflows[workgroup.x] = count;
}
