// Row padding: rows are stored in whole groups of 4, and their padding is always zero.

// Zeroes the elements of `value` at columns `length` and beyond; `first` is the column of its first element.
fn keep_inside(value: vec4<f32>, first: u32, length: u32) -> vec4<f32> {
    let index = vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(0.0), value, index < vec4<u32>(length));
}
