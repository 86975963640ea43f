//! The floats of a tensor as files store them: f32, f16 and bf16, f64, or FP8 with a scale for each block.
//!
//! FP8 is E4M3 without infinities, as torch's `float8_e4m3fn` (Micikevicius et al., FP8 Formats for Deep Learning,
//! 2022). Beside an FP8 matrix `NAME` is `NAME_scale_inv`, a factor for each block of 128 x 128 elements; blocks at the
//! edges are cut off. A value is the product of element and factor in f32. The `config.json` may give blocks of another
//! size (`quantization_config.weight_block_size`). MXFP4 is in `mxfp4`.

use super::mxfp4;
use super::weight_faults::remedy_of_type;
use crate::element::Element;
use safetensors::Dtype;
use serde_json::Value as Json;
use std::ops::Range;

/// The suffix that makes the name of an FP8 matrix the name of its scales.
const SCALE: &str = "_scale_inv";

/// How a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// In a type that the device has too.
    Plain(Element),
    /// Narrowed to f32, to nearest even.
    F64,
    /// Multiplied by the scale of its block.
    E4m3,
    /// Four bits, two values in a byte, multiplied by the scale of their block.
    Mxfp4,
}

impl Encoding {
    /// The encoding of a type in files; `None` for a type that is not of floats, or is not read.
    pub fn of(dtype: Dtype) -> Option<Self> {
        Some(match dtype {
            Dtype::F32 => Self::Plain(Element::F32),
            Dtype::F16 => Self::Plain(Element::F16),
            Dtype::BF16 => Self::Plain(Element::Bf16),
            Dtype::F64 => Self::F64,
            Dtype::F8_E4M3 => Self::E4m3,
            Dtype::F4 => Self::Mxfp4,
            _ => return None,
        })
    }

    /// The bytes of `values`, rounded to nearest even; `None` for FP8 and MXFP4, in which nothing is written.
    pub fn encode(self, values: &[f32]) -> Option<Vec<u8>> {
        match self {
            Self::Plain(element) => {
                let mut bytes = Vec::new();
                element.encode_row(values, &mut bytes); // padded
                bytes.truncate(values.len() * element.bytes() as usize);
                Some(bytes)
            }
            Self::F64 => Some(values.iter().flat_map(|value| f64::from(*value).to_le_bytes()).collect()),
            Self::E4m3 | Self::Mxfp4 => None,
        }
    }

    /// The values in `bytes`, without the scales; those of MXFP4 lie in another order than its codes.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::Plain(element) => element.decode(bytes),
            Self::F64 => {
                let values = bytes.as_chunks::<8>().0.iter();
                values.map(|value| f64::from_le_bytes(*value) as f32).collect()
            }
            Self::E4m3 => bytes.iter().map(|code| E4M3[usize::from(*code)]).collect(),
            Self::Mxfp4 => Vec::new(),
        }
    }
}

/// The value of each code of E4M3: sign, 4 bits of exponent with a bias of 7, 3 of mantissa; the two codes of all ones
/// are NaN.
const E4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = (code as u32 >> 3 & 0xf, code as u32 & 7);
        let magnitude = match (exponent, mantissa) {
            (0xf, 7) => f32::NAN,
            (0, _) => mantissa as f32 / 512.0,
            _ => f32::from_bits((exponent + 127 - 7) << 23 | mantissa << 20),
        };
        values[code] = if code < 128 { magnitude } else { -magnitude };
        code += 1;
    }
    values
};

/// Rows and columns of a block that has a scale of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    rows: usize,
    columns: usize,
}

impl Block {
    /// The block that a `config.json` names, or 128 x 128.
    pub fn of(config: &Json) -> Self {
        let sizes = &config["quantization_config"]["weight_block_size"];
        let size = |index: usize| Some(sizes[index].as_u64()?.clamp(1, u64::from(u32::MAX)) as usize);
        size(0)
            .zip(size(1))
            .map_or(Self { rows: 128, columns: 128 }, |(rows, columns)| Self { rows, columns })
    }

    /// The shape of the scales of a matrix (rows, columns).
    pub fn scales_of(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        [rows.div_ceil(self.rows), columns.div_ceil(self.columns)]
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {}", self.rows, self.columns)
    }
}

/// The name of the scales of the matrix `name`.
pub(super) fn scale_name(name: &str) -> String {
    format!("{name}{SCALE}")
}

/// A tensor of floats in a file.
pub(super) struct StoredFloats<'a> {
    pub encoding: Encoding,
    /// Rows, of all its matrices if there are several, or elements of a vector.
    pub rows: usize,
    pub bytes: &'a [u8],
    /// The scales of FP8 and MXFP4.
    pub scales: Option<Scales<'a>>,
}

/// The scales of a tensor.
pub(super) enum Scales<'a> {
    /// Of an FP8 matrix.
    OfBlocks {
        block: Block,
        /// Row by row of blocks.
        values: Vec<f32>,
        /// Columns of the matrix.
        columns: usize,
    },
    /// Of experts in MXFP4, which are the rows.
    Micro {
        codes: &'a [u8],
        /// Inputs and outputs of an expert.
        sizes: [usize; 2],
    },
}

impl StoredFloats<'_> {
    /// The values of some rows, one after the other.
    pub fn of_rows(&self, rows: Range<usize>) -> Vec<f32> {
        let of_rows = |bytes: &'_ [u8]| {
            let width = bytes.len() / self.rows.max(1);
            rows.start * width..rows.end * width
        };
        let bytes = &self.bytes[of_rows(self.bytes)];
        if let Some(Scales::Micro { codes, sizes }) = &self.scales {
            return mxfp4::decode(bytes, &codes[of_rows(codes)], *sizes);
        }
        let mut values = self.encoding.decode(bytes);
        if let Some(Scales::OfBlocks { block, values: scales, columns }) = &self.scales {
            let across = columns.div_ceil(block.columns);
            for (row, values) in rows.zip(values.chunks_mut((*columns).max(1))) {
                let of_row = &scales[row / block.rows * across..][..across];
                for (values, scale) in values.chunks_mut(block.columns).zip(of_row) {
                    values.iter_mut().for_each(|value| *value *= scale);
                }
            }
        }
        values
    }
}

/// Why a tensor of this type is not read.
pub(super) fn refusal(dtype: Dtype) -> String {
    format!("holds {dtype:?}, not floats; {}", remedy_of_type(dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that torch 2.6 gives codes of `float8_e4m3fn`.
    #[test]
    fn codes_have_the_values_of_torch() {
        let theirs = [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x07, 0.013671875),
            (0x08, 0.015625),
            (0x09, 0.017578125),
            (0x37, 0.9375),
            (0x38, 1.0),
            (0x3d, 1.625),
            (0x40, 2.0),
            (0x77, 240.0),
            (0x78, 256.0),
            (0x7e, 448.0),
            (0x81, -0.001953125),
            (0xb9, -1.125),
            (0xfe, -448.0),
        ];
        for (code, value) in theirs {
            assert_eq!(Encoding::E4m3.decode(&[code]), [value], "{code:#x}");
        }
        let values = Encoding::E4m3.decode(&(0..=255).collect::<Vec<u8>>());
        assert!(values[0x80].is_sign_negative() && values[0x7f].is_nan() && values[0xff].is_nan());
        // Codes ascend as their magnitudes do.
        assert!(values[..0x7f].is_sorted() && values[0x80..0xff].is_sorted_by(|a, b| a >= b));
    }

    #[test]
    fn f64_is_rounded_to_nearest_even() {
        let half_way = 1.0 + f64::powi(2.0, -24);
        let above = half_way + f64::powi(2.0, -50);
        for (value, expected) in [
            (0.1, 0.1f32),
            (half_way, 1.0),
            (above, 1.0 + f32::EPSILON),
            (1e300, f32::INFINITY),
            (-1e-300, -0.0),
        ] {
            assert_eq!(
                Encoding::F64.decode(&value.to_le_bytes())[0].to_bits(),
                expected.to_bits(),
                "{value}"
            );
        }
    }

    #[test]
    fn every_block_has_its_scale() {
        // Blocks of 2 x 3 in a matrix of 5 x 4: the last ones are cut at both edges.
        let (block, columns) = (Block { rows: 2, columns: 3 }, 4);
        assert_eq!(block.scales_of([5, columns]), [3, 2]);
        let one = 0x38;
        let scales = Scales::OfBlocks { block, values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], columns };
        let floats =
            StoredFloats { encoding: Encoding::E4m3, rows: 5, bytes: &[one; 20], scales: Some(scales) };
        assert_eq!(floats.of_rows(1..3), [1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0, 4.0]);
        assert_eq!(floats.of_rows(4..5), [5.0, 5.0, 5.0, 6.0]);
        assert!(floats.of_rows(5..5).is_empty());
    }

    #[test]
    fn config_json_may_name_another_block() {
        let of = |config: &str| Block::of(&serde_json::from_str(config).unwrap());
        let named = r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 32]}}"#;
        assert_eq!(of(named), Block { rows: 64, columns: 32 });
        for other in ["null", "{}", r#"{"quantization_config": {"weight_block_size": null}}"#] {
            assert_eq!(of(other), Block { rows: 128, columns: 128 }, "{other}");
        }
        // Sizes in a file are clamped before anything divides by them.
        let zero = of(r#"{"quantization_config": {"weight_block_size": [0, 18446744073709551615]}}"#);
        assert_eq!(zero, Block { rows: 1, columns: u32::MAX as usize });
    }
}
