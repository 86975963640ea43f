// The bits of f32 values: their order, and whether one is finite.
//
// A compiler may assume that arithmetic yields neither NaN nor infinity (Metal's does unless told otherwise), and then
// folds a test of a result, even a test of the result's bits. It cannot assume anything about a word in a buffer. So
// code that depends on a value that may not be finite tests words as they were loaded; tests/without_adapter/finite.rs
// finds code that does not.
// Bounds are written as `select`, because `max` and `clamp` may drop a NaN and so hide an overflow. Such a compiler may
// turn them into `max` again; the NaN is then seen only where the same input is used in another way.

const INFINITY: u32 = 0x7f800000u;
const LARGEST_WORD: u32 = 0x7f7fffffu; // the largest finite f32

// Whether |value| is beyond that of the word `bound`: a NaN is beyond infinity, and both are beyond the largest f32.
fn is_beyond(word: u32, bound: u32) -> bool {
    return (word & 0x7fffffffu) > bound;
}

// Whether the value of one of the four words is beyond `bound`.
fn is_any_beyond(words: vec4<u32>, bound: u32) -> bool {
    return any((words & vec4<u32>(0x7fffffffu)) > vec4<u32>(bound));
}

// An integer with the order of `value`. A NaN is at one of the ends, depending on its sign.
fn order_of(value: f32) -> u32 {
    let bits = bitcast<u32>(value);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
