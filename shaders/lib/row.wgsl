// The end of a row: rows are stored in whole groups of 4 and their pad is always zero.

// `value` with the elements at `length` and beyond set to zero; its first element is number `first`.
fn keep_inside(value: vec4<f32>, first: u32, length: u32) -> vec4<f32> {
    let index = vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(0.0), value, index < vec4<u32>(length));
}
