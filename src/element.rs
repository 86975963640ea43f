//! How a number is stored, and how long a stored row is.

/// Storage type of a tensor. Sums are always f32; only memory traffic and rounding differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// 32-bit floats, four to a `vec4<f32>`.
    F32,
    /// IEEE half precision, packed two to a `u32`.
    F16,
    /// The upper half of an f32, packed two to a `u32`.
    Bf16,
}

impl Element {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The name shaders know it by (a condition in `shaders/lib/element.wgsl`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// The bytes of one row of `cols` values, zero-padded to its stride.
    pub fn encode_row(self, values: &[f32], out: &mut Vec<u8>) {
        let pad = stride_of(values.len() as u32) as usize - values.len();
        let padded = values.iter().copied().chain(std::iter::repeat_n(0.0, pad));
        match self {
            Self::F32 => padded.for_each(|v| out.extend(v.to_le_bytes())),
            Self::F16 => padded.for_each(|v| out.extend(half::f16::from_f32(v).to_le_bytes())),
            Self::Bf16 => padded.for_each(|v| out.extend(half::bf16::from_f32(v).to_le_bytes())),
        }
    }

    /// The values of the bytes `encode_row` made, pads included.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => {
                bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
            }
            Self::F16 => {
                bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
            Self::Bf16 => {
                bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
            }
        }
    }
}

/// Elements from the start of one row to the start of the next: `cols` rounded up to a multiple of 4.
///
/// Every kernel reads and writes whole groups of 4, owned by one invocation, so that 16-bit stores never share a
/// word; it writes zeros into the pad.
pub const fn stride_of(cols: u32) -> u32 {
    cols.next_multiple_of(4)
}
