//! Fingerprints of tensors, as `shaders/fingerprint.wgsl` computes them.

/// The two sums of `words`, of which the first has the place `first`.
pub fn fingerprint(words: &[u32], first: u32) -> [u32; 2] {
    let places = (0..).map(|i: u32| first.wrapping_add(i));
    let hashes = words.iter().zip(places).map(|(word, place)| {
        let low = hash(word ^ place.wrapping_mul(0x9e37_79b1));
        let high = hash(word ^ place.wrapping_mul(0x7feb_352d) ^ 0x5bd1_e995);
        [low, high]
    });
    hashes.fold([0; 2], |sums, hashes| [0, 1].map(|i| sums[i].wrapping_add(hashes[i])))
}

/// The finaliser of MurmurHash3.
fn hash(word: u32) -> u32 {
    let word = (word ^ (word >> 16)).wrapping_mul(0x85eb_ca6b);
    let word = (word ^ (word >> 13)).wrapping_mul(0xc2b2_ae35);
    word ^ (word >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_has_another_fingerprint() {
        let words: Vec<u32> = (0..1000u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let own = fingerprint(&words, 0);
        let parts = [fingerprint(&words[..300], 0), fingerprint(&words[300..], 300)];
        assert_eq!([0, 1].map(|i| parts[0][i].wrapping_add(parts[1][i])), own, "parts add up");
        for changed in [0, 1, 500, 999] {
            for bit in [0, 7, 31] {
                let mut other = words.clone();
                other[changed] ^= 1 << bit;
                let other = fingerprint(&other, 0);
                assert!(other[0] != own[0] && other[1] != own[1], "bit {bit} of word {changed}");
            }
        }
        let mut swapped = words.clone();
        swapped.swap(10, 20);
        assert_ne!(fingerprint(&swapped, 0), own);
        assert_ne!(fingerprint(&[0; 8], 0), fingerprint(&[0; 9], 0));
    }
}
