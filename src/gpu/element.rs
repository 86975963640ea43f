//! Storage types of tensors, and the stride of their rows.
//!
//! Storage is f32, f16 or bf16; sums are f32. Ids, offsets, counts and the structs that kernels share are u32.
//! `shaders/lib/element.wgsl` hides the storage type from kernels: a binding is `array<Packed>`, `load4` widens,
//! `store4` rounds to nearest even, in integer arithmetic or by the adapter's own instruction where a test finds that
//! it gives the same bytes (`device/f16_probe.rs`, `device/f16_widen_probe.rs`). A row has a length and a stride, which
//! is the length rounded up to a multiple of four. Kernels take any length and write zeros into the padding of their
//! outputs; one invocation owns four elements of a row at a time.
//!
//! `compute_dtype` is the element of activations, their gradients and the weights that layers read. Three things are
//! f32 for every `compute_dtype`: logits, of which only the gradient is rounded, since it is a factor of two products
//! (in bf16 a logit of 10 would be off by up to 0.03); the scores of routers and gates, since rounding would choose
//! other experts; and the statistics of norms and attention.
//!
//! The matrices of a frozen base model may be quantised (`quantised.rs`): blocks of 64 weights of a row with their
//! scales. Products widen them when they load their right factor. Nothing writes such a tensor on the device.

mod quantised;

use half::slice::HalfFloatSliceExt;
use half::vec::HalfFloatVecExt;
use half::{bf16, f16};

/// Storage type of a tensor. Kernels accumulate in f32 for every type; it affects memory traffic and rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Element {
    /// 32-bit floats, four to a `vec4<f32>`.
    F32,
    /// IEEE half precision, packed two to a `u32`.
    F16,
    /// bfloat16, the upper half of an f32, packed two to a `u32`.
    Bf16,
    /// 32-bit words that are not numbers to compute with: ids, offsets, counts, and the structs that kernels share. No
    /// kernel has a variant for them.
    U32,
    /// 4-bit codes of the quantiles of a normal distribution, with a scale in f32 for each block of 64 elements of a
    /// row.
    Nf4,
    /// Signed bytes, with a scale in f16 for each block of 32 elements of a row.
    Int8,
}

impl Element {
    /// The smallest number of elements that can be stored on their own, and their bytes.
    pub const fn block(self) -> (u64, u64) {
        match self {
            Self::F32 | Self::U32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Nf4 => (quantised::BLOCK, 4 * quantised::NF4_WORDS),
            Self::Int8 => (quantised::BLOCK, 4 * quantised::INT8_WORDS),
        }
    }

    /// Bytes of one element.
    ///
    /// # Panics
    /// Of quantised elements, which are stored in blocks.
    #[track_caller]
    pub const fn bytes(self) -> u64 {
        assert!(!self.is_quantised(), "quantised elements are stored in blocks");
        self.block().1
    }

    /// Bytes of `count` elements, which must be whole blocks.
    pub const fn bytes_of(self, count: u64) -> u64 {
        let (elements, bytes) = self.block();
        count.div_ceil(elements).saturating_mul(bytes)
    }

    /// Row stride in elements: `cols` rounded up to whole groups of 4 ([`stride_of`]) or whole blocks.
    pub const fn stride(self, cols: u32) -> u32 {
        if self.is_quantised() { cols.next_multiple_of(quantised::BLOCK as u32) } else { stride_of(cols) }
    }

    /// Whether kernels compute with elements of this type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Whether elements are stored in blocks with scales, which only products read.
    pub const fn is_quantised(self) -> bool {
        matches!(self, Self::Nf4 | Self::Int8)
    }

    /// The name in listings and messages, and the name of the condition in shaders, except for u32.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::U32 => "u32",
            Self::Nf4 => "nf4",
            Self::Int8 => "int8",
        }
    }

    /// Appends the bytes of one row of values to `out`, rounded or quantised and zero-padded to its stride.
    ///
    /// # Panics
    /// Of `U32`: rounding to it would change the values; its bytes are those of the words.
    #[track_caller]
    pub fn encode_row(self, values: &[f32], out: &mut Vec<u8>) {
        let end = out.len() + self.bytes_of(self.stride(values.len() as u32).into()) as usize;
        match self {
            Self::F32 => out.extend_from_slice(bytemuck::cast_slice(values)),
            Self::F16 => out.extend_from_slice(bytemuck::cast_slice(&Vec::<f16>::from_f32_slice(values))),
            Self::Bf16 => out.extend_from_slice(bytemuck::cast_slice(&Vec::<bf16>::from_f32_slice(values))),
            Self::U32 => panic!("u32 tensors hold words, not values: write the words themselves"),
            Self::Nf4 => quantised::nf4_row(values, out),
            Self::Int8 => quantised::int8_row(values, out),
        }
        out.resize(end, 0);
    }

    /// The values in bytes written by [`encode_row`](Self::encode_row), padding included.
    ///
    /// # Panics
    /// Of `U32`, whose words would be rounded to f32.
    #[track_caller]
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Self::F32 => bytemuck::pod_collect_to_vec(bytes),
            Self::F16 => bytemuck::pod_collect_to_vec::<_, f16>(bytes).to_f32_vec(),
            Self::Bf16 => bytemuck::pod_collect_to_vec::<_, bf16>(bytes).to_f32_vec(),
            Self::U32 => panic!("u32 tensors hold words, not values: read the words themselves"),
            Self::Nf4 => quantised::nf4_values(bytes),
            Self::Int8 => quantised::int8_values(bytes),
        }
    }
}

/// Row stride in elements: `cols` rounded up to a multiple of 4.
///
/// Every kernel reads and writes whole groups of 4, each owned by one invocation, so that two invocations never store
/// to the same word of 16-bit elements. Kernels write zeros to the padding.
pub const fn stride_of(cols: u32) -> u32 {
    cols.next_multiple_of(4)
}
