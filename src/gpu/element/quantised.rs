//! Quantised rows: NF4 and int8, in blocks of 64 weights.
//!
//! | | a block, in words of 32 bits | weight i |
//! |---|---|---|
//! | `nf4` | the largest magnitude s in f32; 8 of codes | s · [`LEVELS`]\[code i\], bits 4 i and up |
//! | `int8` | scales of both halves in f16, the first one low; 16 of signed bytes | scale · byte i |
//!
//! The last block of a row is filled with zeros. `shaders/lib/quantised.wgsl` widens both.
//!
//! NF4: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023; the codes are those of bitsandbytes
//! where 64 divides the row. Int8 is `Q8_0` of GGUF: scale = largest magnitude / 127, codes rounded half away from
//! zero.

/// Weights per block.
pub(super) const BLOCK: u64 = 64;

/// Words per NF4 block.
pub(super) const NF4_WORDS: u64 = 1 + BLOCK / 8;

/// Words per int8 block.
pub(super) const INT8_WORDS: u64 = 1 + BLOCK / 4;

/// Weights of an int8 block that share a scale.
const SHARING: usize = 32;

/// The values of the NF4 codes, in units of the largest magnitude in their block.
const LEVELS: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The midpoint between each level and the next.
const MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut i = 0;
    while i < midpoints.len() {
        midpoints[i] = (LEVELS[i] + LEVELS[i + 1]) / 2.0;
        i += 1;
    }
    midpoints
};

/// Appends the blocks of one row in NF4.
pub(super) fn nf4_row(values: &[f32], out: &mut Vec<u8>) {
    for values in values.chunks(BLOCK as usize) {
        let largest = largest_magnitude(values);
        let mut codes = [ZERO_CODE; BLOCK as usize];
        let inverse = 1.0 / largest.max(f32::MIN_POSITIVE);
        for (code, value) in codes.iter_mut().zip(values) {
            *code = nearest_level(value * inverse);
        }
        out.extend(largest.to_le_bytes());
        out.extend(codes.chunks_exact(2).map(|pair| pair[0] | pair[1] << 4));
    }
}

/// Appends the blocks of one row in int8.
pub(super) fn int8_row(values: &[f32], out: &mut Vec<u8>) {
    for values in values.chunks(BLOCK as usize) {
        let mut codes = [0i8; BLOCK as usize];
        let mut scales = [half::f16::ZERO; BLOCK as usize / SHARING];
        for ((values, codes), stored) in
            values.chunks(SHARING).zip(codes.chunks_mut(SHARING)).zip(&mut scales)
        {
            let scale = largest_magnitude(values) / 127.0;
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            for (code, value) in codes.iter_mut().zip(values) {
                *code = (value * inverse).round() as i8;
            }
            *stored = half::f16::from_f32(scale);
        }
        out.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
        out.extend(codes.map(|code| code as u8));
    }
}

/// The weights of whole blocks of NF4.
pub(super) fn nf4_values(bytes: &[u8]) -> Vec<f32> {
    let block = |block: &[u8]| {
        let (largest, codes) = block.split_at(4);
        let largest = f32::from_le_bytes([largest[0], largest[1], largest[2], largest[3]]);
        let codes = codes.iter().flat_map(|pair| [pair & 15, pair >> 4]);
        codes.map(|code| largest * LEVELS[usize::from(code)]).collect::<Vec<_>>()
    };
    bytes.chunks_exact(4 * NF4_WORDS as usize).flat_map(block).collect()
}

/// The weights of whole blocks of int8.
pub(super) fn int8_values(bytes: &[u8]) -> Vec<f32> {
    let block = |block: &[u8]| {
        let (scales, codes) = block.split_at(4);
        let scales = scales.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32());
        let halves = scales.zip(codes.chunks(SHARING));
        halves
            .flat_map(|(scale, codes)| codes.iter().map(move |code| scale * f32::from(*code as i8)))
            .collect::<Vec<_>>()
    };
    bytes.chunks_exact(4 * INT8_WORDS as usize).flat_map(block).collect()
}

/// The code of 0.
const ZERO_CODE: u8 = 7;

/// The largest magnitude; NaN if any value is NaN.
fn largest_magnitude(values: &[f32]) -> f32 {
    let larger = |largest: f32, value: &f32| {
        if largest.is_nan() || value.abs() <= largest { largest } else { value.abs() }
    };
    values.iter().fold(0.0, larger)
}

/// The code of the level nearest to `value`; of two equally near ones the lower.
fn nearest_level(value: f32) -> u8 {
    MIDPOINTS.partition_point(|&midpoint| midpoint < value) as u8
}

#[cfg(test)]
mod tests {
    use crate::element::Element;

    fn stored(element: Element, values: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let mut bytes = Vec::new();
        element.encode_row(values, &mut bytes);
        assert_eq!(bytes.len() as u64, element.bytes_of(element.stride(values.len() as u32).into()));
        let values = element.decode(&bytes);
        (bytes, values)
    }

    #[test]
    fn levels_and_zeros_are_exact() {
        let (bytes, values) = stored(Element::Nf4, &[2.0, 0.0, -2.0 * 0.696_192_8, 0.5]);
        assert_eq!(bytes[..4], 2f32.to_le_bytes());
        assert_eq!(bytes[4..6], [0x7f, 0xa1], "codes 15, 7, 1 and 10");
        assert_eq!(values[..3], [2.0, 0.0, -1.392_385_6]);
        assert!(values[4..].iter().all(|&value| value == 0.0) && values.len() == 64);
        assert!(stored(Element::Nf4, &[0.0; 65]).1.iter().all(|&value| value == 0.0));
    }

    #[test]
    fn bytes_have_a_scale_for_each_half_of_a_block() {
        let row: Vec<f32> = (0..40).map(|i| if i < 32 { 127.0 - i as f32 } else { -0.5 }).collect();
        let (bytes, values) = stored(Element::Int8, &row);
        assert_eq!(bytes[4..7], [127, 126, 125]);
        assert_eq!(bytes[4 + 32] as i8, -127);
        assert_eq!(values[..32], row[..32]);
        assert!((values[32] + 0.5).abs() < 0.5 / 2048.0, "f16 rounds the scale");
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for element in [Element::Nf4, Element::Int8] {
            for bad in [f32::NAN, f32::INFINITY] {
                let (_, values) = stored(element, &[1.0, bad, 3.0]);
                assert!(values[..3].iter().any(|value| !value.is_finite()), "{element:?} {bad}: {values:?}");
            }
        }
    }

    /// Codes, scales and values of bitsandbytes 0.50.2 on a CPU, made by `tests/transformers/quantised.py`.
    #[test]
    fn codes_are_those_of_bitsandbytes() {
        let text = include_str!("../../../tests/data/nf4.tsv");
        let mut rows = 0;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let fields: Vec<&str> = line.split('\t').collect();
            let bits = |field: &str| -> Vec<u32> {
                field.split(' ').map(|word| u32::from_str_radix(word, 16).expect("hexadecimal")).collect()
            };
            let values: Vec<f32> = bits(fields[0]).into_iter().map(f32::from_bits).collect();
            let (bytes, widened) = stored(Element::Nf4, &values);
            let blocks = bytes.chunks_exact(36);
            let scales =
                blocks.clone().map(|block| u32::from_le_bytes([block[0], block[1], block[2], block[3]]));
            assert_eq!(scales.collect::<Vec<_>>(), bits(fields[1]));
            let codes = blocks.flat_map(|block| block[4..].iter().flat_map(|pair| [pair & 15, pair >> 4]));
            assert_eq!(codes.map(u32::from).collect::<Vec<_>>(), bits(fields[2]));
            assert_eq!(widened.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), bits(fields[3]));
            rows += 1;
        }
        assert_eq!(rows, 4);
    }
}
