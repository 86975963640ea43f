// Philox4x32-10: 128 random bits as a pure function of a counter and a key, the same as `Philox` in src/gpu/random.rs.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

fn philox(counter: vec4<u32>, key: vec2<u32>) -> vec4<u32> {
    var words = counter;
    var round_key = key;
    for (var i = 0u; i < 10u; i++) {
        let first = wide_product(0xd2511f53u, words.x);
        let second = wide_product(0xcd9e8d57u, words.z);
        words = vec4<u32>(second.y ^ words.y ^ round_key.x, second.x, first.y ^ words.w ^ round_key.y, first.x);
        round_key += vec2<u32>(0x9e3779b9u, 0xbb67ae85u);
    }
    return words;
}

// (low, high) words of the 64-bit product a · b, from 16-bit halves: WGSL has no widening multiplication.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let cross = (a >> 16u) * (b & 0xffffu) + (low >> 16u); // at most (2^16 - 1)^2 + 2^16 - 1: no carry is lost
    let other = (a & 0xffffu) * (b >> 16u) + (cross & 0xffffu);
    return vec2<u32>(a * b, (a >> 16u) * (b >> 16u) + (cross >> 16u) + (other >> 16u));
}
