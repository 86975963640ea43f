//! Experts in MXFP4 (Open Compute Project, "OCP Microscaling Formats (MX) Specification v1.0", 2023), as gpt-oss is
//! published.
//!
//! A tensor `NAME` (experts, in, out) is stored as two: `NAME_blocks` (experts, out, blocks, 16) has two codes of E2M1
//! in each byte, the first in its lower half, and `NAME_scales` (experts, out, blocks) a code of E8M0 for each block of
//! 32 inputs, by whose value the block is multiplied. Products are exact in f32 where they do not overflow.

use super::tensor_file::TensorInfo;
use safetensors::Dtype;
use std::collections::BTreeMap;

const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";
/// Bytes of a block; each has two elements.
const BYTES: usize = 16;

/// The value of each code of E2M1: sign, 2 bits of exponent, 1 of mantissa.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// A tensor that is stored as blocks and scales.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Packed {
    /// The name of its blocks.
    pub blocks: String,
    /// The name of its scales.
    pub scales: String,
    /// (experts, in, out)
    pub shape: Vec<usize>,
}

/// The tensors among `stored` that are blocks with scales, by the names of what they make up.
pub(super) fn packed(stored: &[TensorInfo]) -> BTreeMap<String, Packed> {
    let infos: BTreeMap<&str, &TensorInfo> = stored.iter().map(|info| (info.name.as_str(), info)).collect();
    let of = |info: &TensorInfo| {
        let name = info.name.strip_suffix(BLOCKS)?;
        let scales = infos.get(format!("{name}{SCALES}").as_str())?;
        let (&[experts, outputs, count, BYTES], [of_scales @ .., blocks]) =
            (&info.shape[..], &scales.shape[..])
        else {
            return None;
        };
        let fits = of_scales == [experts, outputs] && *blocks == count;
        let are_bytes = [info, scales].iter().all(|info| info.dtype == Dtype::U8);
        let shape = vec![experts, count.checked_mul(2 * BYTES)?, outputs];
        let packed = Packed { blocks: info.name.clone(), scales: scales.name.clone(), shape };
        (fits && are_bytes && !infos.contains_key(name)).then(|| (name.to_string(), packed))
    };
    stored.iter().filter_map(of).collect()
}

/// The values of whole experts, (in, out) of each, from their blocks and the codes of their scales.
pub(super) fn decode(blocks: &[u8], scales: &[u8], [inputs, outputs]: [usize; 2]) -> Vec<f32> {
    let mut values = vec![0.0; 2 * blocks.len()];
    let of_output = inputs / (2 * BYTES); // blocks
    let experts = values.chunks_exact_mut((inputs * outputs).max(1));
    let stored = blocks.chunks_exact((inputs * outputs / 2).max(1));
    for ((values, blocks), scales) in
        experts.zip(stored).zip(scales.chunks_exact((outputs * of_output).max(1)))
    {
        for (index, (block, scale)) in blocks.chunks_exact(BYTES).zip(scales).enumerate() {
            let (output, first) = (index / of_output, index % of_output * 2 * BYTES);
            let factor = e8m0(*scale);
            let codes = block.iter().flat_map(|byte| [byte & 0xf, byte >> 4]);
            for (input, code) in (first..).zip(codes) {
                values[input * outputs + output] = factor * E2M1[usize::from(code)];
            }
        }
    }
    values
}

/// 2^(code − 127), and NaN for 255.
fn e8m0(code: u8) -> f32 {
    match code {
        0 => f32::from_bits(1 << 22), // 2^-127 is subnormal
        255 => f32::NAN,
        _ => f32::from_bits(u32::from(code) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, dtype: Dtype, shape: &[usize]) -> TensorInfo {
        TensorInfo { name: name.to_string(), dtype, shape: shape.to_vec() }
    }

    #[test]
    fn scales_are_powers_of_two() {
        for code in 0..255u8 {
            assert_eq!(f64::from(e8m0(code)), 2f64.powi(i32::from(code) - 127), "{code}");
        }
        assert!(e8m0(255).is_nan());
    }

    /// One expert with two outputs and 64 inputs: codes of the first and the last block, and their places.
    #[test]
    fn a_block_is_multiplied_by_its_scale() {
        let mut blocks = vec![0u8; 2 * 2 * BYTES];
        blocks[0] = 0x71; // inputs 0 and 1 of output 0: 0.5 and 6
        blocks[3 * BYTES + 15] = 0x9f; // inputs 62 and 63 of output 1: -6 and -0.5
        let values = decode(&blocks, &[127, 1, 1, 129], [64, 2]);
        let at = |input: usize, output: usize| values[input * 2 + output];
        assert_eq!([at(0, 0), at(1, 0), at(62, 1), at(63, 1)], [0.5, 6.0, -24.0, -2.0]);
        assert_eq!(values.iter().filter(|value| **value != 0.0).count(), 4);
        // Two experts are one after the other.
        let twice = decode(&blocks.repeat(2), &[127, 1, 1, 129, 128, 1, 1, 127], [64, 2]);
        assert_eq!(twice[..128], values);
        assert_eq!([twice[128], twice[255]], [1.0, -0.5]);
    }

    #[test]
    fn only_blocks_with_fitting_scales_are_packed() {
        let blocks = info("a_blocks", Dtype::U8, &[3, 8, 2, 16]);
        let scales = info("a_scales", Dtype::U8, &[3, 8, 2]);
        let found = packed(&[blocks.clone(), scales.clone()]);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(found["a"].shape, [3, 64, 8]);
        let not = |infos: &[TensorInfo]| assert!(packed(infos).is_empty(), "{infos:?}");
        not(std::slice::from_ref(&blocks));
        not(&[blocks.clone(), info("a_scales", Dtype::U8, &[3, 8, 1])]);
        not(&[blocks.clone(), info("a_scales", Dtype::BF16, &[3, 8, 2])]);
        not(&[info("a_blocks", Dtype::U8, &[3, 8, 2, 8]), scales.clone()]);
        not(&[blocks, scales, info("a", Dtype::BF16, &[3, 64, 8])]);
    }
}
