//! `context`: the adapter that a run uses, and how it uses it.

use crate::kernels::Tier;
use crate::settings::engine::*;
use std::str::FromStr;

rows! {
    /// `context`: the adapter that a run uses, and which of its features and how much of its memory.
    pub struct Context in "context" {
        /// Part of the name of the adapter to use; see `gristmill doctor`. `gristmill plan` assumes the compute units
        /// of the published GPU of that name.
        device_name: Option<String> = Host.optional().example("llvmpipe"),
        /// Number of the adapter, from 0, in the list of `gristmill doctor`, or among those with `device_name`. Of
        /// several ranks on a machine, the first takes this adapter, and the others take the next ones of its kind in
        /// turn.
        device_id: Option<usize> = Host.optional().example("1"),
        /// Versions of the kernels to use, if the adapter runs more than one. `software` and `portable` run everywhere.
        /// `matrix` multiplies f16 and bf16, also by quantised weights, by cooperative matrices of f16, and float32
        /// where `f32_products` says so; without the key it is chosen for runs in these types on GPUs whose 16 x 16
        /// matrices pass a test.
        tier: Option<Tier> = Host.optional().example("portable"),
        /// Whether f16 is converted by the adapter's own instructions, if it has them and they pass a test; otherwise
        /// by integer arithmetic, which gives the same bits except for the payload of a NaN.
        native_f16: bool = Host.default(true),
        /// How products of float32 are computed: as they are, or `split` for the matrices of tier `matrix`: a factor is
        /// then two terms of f16, and a product three of these. The root mean square of errors is within four times that
        /// of float32, and smaller than it in long sums. That is faster where matrices multiply many times as fast as
        /// float32 is multiplied, as on GPUs of data centres. Attention is computed as it is.
        f32_products: F32Products = Host.default(F32Products::Float32),
        /// Longest wait for the device, in seconds. After that the device counts as hanging, and the run ends.
        hang_timeout: u64 = Host.default(600).within(COUNT),
        /// Whether the backend's own validation is on: on Vulkan the layers of Khronos, where they are installed, on
        /// DX12 its debug layer. Launches then take many times as long.
        validation: bool = Host.default(false),
        /// Whether Vulkan drivers check every access to a buffer, as wgpu asks them to. The kernels stay within their
        /// buffers in any case, and some drivers compile them to longer programs with the checks; `gristmill doctor`
        /// measures what they cost. No effect on Metal and DX12.
        robust_buffers: bool = Host.default(true),
        /// Upper limit of the device memory that the run takes, such as 8GB or 512MB, or a number of bytes.
        max_device_memory: Option<Bytes> = Host.optional().example("8GB"),
    }
}

words! {
    /// How products of float32 are multiplied.
    pub enum F32Products {
        /// As they are.
        #[default]
        Float32 = "float32",
        /// By matrices of f16, each factor as the sum of two terms.
        Split = "split",
    }
}

/// A size of memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub u64);

/// Sizes are powers of 1024, whatever the unit is called.
const UNITS: [(&str, u64); 6] =
    [("GB", 1 << 30), ("GIB", 1 << 30), ("G", 1 << 30), ("MB", 1 << 20), ("MIB", 1 << 20), ("M", 1 << 20)];

/// Numbers without a unit are bytes from this one on; a smaller number lacks its unit.
const LEAST_WITHOUT_UNIT: u64 = 1 << 20;

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text).ok_or_else(|| format!("expected {}, found `{text}`", Self::kind().expected()))
    }
}

impl Bytes {
    fn read(text: &str) -> Option<Self> {
        let size = text.trim().to_ascii_uppercase();
        if let Ok(bytes) = size.parse() {
            return Self::without_unit(bytes);
        }
        let digits = size.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = UNITS.iter().find(|(name, _)| *name == &size[digits.len()..])?.1;
        let count: f64 = digits.trim().parse().ok()?;
        let bytes = count * unit as f64;
        (bytes >= 1.0 && bytes < u64::MAX as f64).then_some(Self(bytes as u64))
    }

    fn without_unit(bytes: u64) -> Option<Self> {
        (bytes >= LEAST_WITHOUT_UNIT).then_some(Self(bytes))
    }
}

impl Setting for Bytes {
    fn kind() -> ValueKind {
        ValueKind::Form("a size such as 8GB or 512MB")
    }

    fn from_node(node: &Node) -> Option<Self> {
        match node {
            Node::Int(bytes) => Self::without_unit(u64::try_from(*bytes).ok()?),
            node => Self::read(node.word()?),
        }
    }

    /// In megabytes, with a fraction for bytes that do not fill one.
    fn to_node(&self) -> Option<Node> {
        Some(format!("{}MB", self.0 as f64 / (1 << 20) as f64).into())
    }
}

impl Words for Tier {
    const WORDS: &'static [(&'static str, Self)] = &[
        (Self::Software.name(), Self::Software),
        (Self::Portable.name(), Self::Portable),
        (Self::Matrix.name(), Self::Matrix),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let bytes = |text: &str| Bytes::from_node(&text.into()).map(|Bytes(bytes)| bytes);
        assert_eq!(bytes("58GB"), Some(58 << 30));
        assert_eq!(bytes("0.5 GiB"), Some(1 << 29));
        assert_eq!(bytes("512mb"), Some(512 << 20));
        assert_eq!(bytes("6000000001"), Some(6_000_000_001));
        for wrong in ["58", "GB", "-1GB", "1e99GB", "1TB", "infGB", "é", "1048575", "-6000000001"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
        assert_eq!(Bytes::from_node(&Node::Int(1 << 20)), Some(Bytes(1 << 20)));
        assert_eq!(Bytes::from_node(&Node::Int(58)), None);
        assert_eq!("8GB".parse(), Ok(Bytes(8 << 30)));
        assert_eq!("8".parse::<Bytes>(), Err("expected a size such as 8GB or 512MB, found `8`".to_string()));
    }
}
