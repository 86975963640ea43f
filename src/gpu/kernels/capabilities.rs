//! The properties of an adapter that decide which kernel variants run on it, and on what grids.

use super::units::Units;
use crate::element::Element;

/// A family of kernels written for one class of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Software adapters (llvmpipe, WARP): barriers are slow, so one invocation computes a whole register tile.
    Software,
    /// Any GPU: f32 arithmetic, at most 16 KiB of workgroup memory and 256 invocations.
    Portable,
    /// GPUs with cooperative matrices, which compute products of f16 and bf16, also by quantised weights, and attention
    /// in both types, in up to 32 KiB of workgroup memory; products of f32 where they may be split. Everything else is
    /// as on [`Tier::Portable`].
    Matrix,
}

impl Tier {
    /// Every implemented tier.
    pub const ALL: [Self; 3] = [Self::Software, Self::Portable, Self::Matrix];
    /// The tiers that run on every adapter.
    pub const EVERYWHERE: [Self; 2] = [Self::Software, Self::Portable];

    /// The name in `--tier`, logs and benches.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Portable => "portable",
            Self::Matrix => "matrix",
        }
    }

    /// The tier called `name`, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

/// Size limits of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Limits {
    /// Largest range of a buffer that one binding can cover, in bytes; no tensor or arena segment is larger.
    pub binding_bytes: u64,
    /// Largest buffer that is allocated, in bytes: min(adapter limit, 1 GiB).
    pub buffer_bytes: u64,
}

/// Cooperative matrices of an adapter: square, of f16 with sums in f32. Each belongs to a subgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Matrices {
    /// Rows and columns: 8 or 16.
    pub side: u32,
    /// Invocations of a subgroup. Kernels are correct with any number, and fastest with this one.
    pub subgroup: u32,
}

impl Matrices {
    /// The matrices of most GPUs, assumed where no adapter is opened.
    pub const ASSUMED: Self = Self { side: 16, subgroup: 32 };

    /// Whether a GPU uses [`Tier::Matrix`] unless told otherwise. Matrices of 8 x 8 (Apple) are computed by the
    /// ordinary lanes, and by the model of `benches/roofline` their products take as long as those of the portable
    /// tier.
    pub const fn are_preferred(self) -> bool {
        self.side == 16
    }
}

/// The properties that kernel planning may rely on. Tests modify them to force a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Capabilities {
    /// The tier of all kernels.
    pub tier: Tier,
    /// Size limits.
    pub limits: Limits,
    /// Compute units; the tiers of GPUs divide products among them.
    pub units: Units,
    /// The cooperative matrices of [`Tier::Matrix`], if the device was opened with matrices and they passed a test.
    pub matrices: Option<Matrices>,
    /// Workgroup size of the software tier: the subgroup size; 8, a vector of 256 bits, where that is unknown.
    pub software_workgroup: u32,
    /// Subgroup size that kernels of the software tier shuffle across, if a workgroup of that size is one subgroup; 1
    /// if shuffles are not used.
    pub lanes: u32,
    /// Whether invocations of the software tier load from different addresses by the processor's gather instructions,
    /// which no prefetcher follows, and which load 64 bits at a time if asked to. Kernels that are bound by such loads
    /// then prefetch.
    pub gathers: bool,
    /// Whether kernels convert between f32 and f16 by the adapter's own instructions, which have then been tested to
    /// round to nearest even; otherwise they use integer arithmetic, with the same bits.
    pub native_f16: bool,
    /// Whether kernels widen f16 in integer arithmetic, because the adapter is known to widen wrongly.
    pub widens_in_integers: bool,
    /// Whether matrices compute products of f32, each factor split into two terms of f16.
    #[serde(default)]
    pub splits_f32: bool,
}

impl Capabilities {
    /// A software adapter with llvmpipe's limits: the default where no adapter is opened.
    pub const fn software() -> Self {
        Self {
            tier: Tier::Software,
            limits: Limits { binding_bytes: 128 << 20, buffer_bytes: 1 << 30 },
            units: Units::ASSUMED,
            matrices: None,
            software_workgroup: 8,
            lanes: 8,
            gathers: false,
            native_f16: false,
            widens_in_integers: false,
            splits_f32: false,
        }
    }

    /// A GPU with the limits that most have and [`Units::ASSUMED`], for recordings of [`Tier::Portable`] where no
    /// adapter is opened.
    pub const fn portable() -> Self {
        Self {
            tier: Tier::Portable,
            limits: Limits { binding_bytes: 1 << 30, buffer_bytes: 1 << 30 },
            units: Units::ASSUMED,
            matrices: None,
            software_workgroup: 8,
            lanes: 1,
            gathers: false,
            native_f16: false,
            widens_in_integers: false,
            splits_f32: false,
        }
    }

    /// How many turns all loops of an invocation may take together. llvmpipe ends them after 65,535, without an error.
    /// It unrolls loops over arrays of the invocation, whose turns do not count.
    pub const fn most_turns(self) -> u64 {
        match self.tier {
            Tier::Software => 65_535,
            Tier::Portable | Tier::Matrix => u64::MAX,
        }
    }

    /// Whether kernels that are bound by what they gather prefetch it, for all lanes of a subgroup.
    pub(crate) const fn prefetches(self) -> bool {
        matches!(self.tier, Tier::Software) && self.gathers && self.lanes > 1
    }

    /// The GPU of [`portable`](Self::portable) with matrices, for recordings of [`Tier::Matrix`] where no adapter is
    /// opened.
    pub const fn matrix() -> Self {
        Self::portable().with_matrices(Matrices::ASSUMED)
    }

    /// The same adapter with another tier forced.
    pub const fn with_tier(self, tier: Tier) -> Self {
        Self { tier, ..self }
    }

    /// The same adapter on [`Tier::Matrix`], with these matrices.
    pub const fn with_matrices(self, matrices: Matrices) -> Self {
        Self { tier: Tier::Matrix, matrices: Some(matrices), ..self }
    }

    /// The same adapter for products of `factors`: on [`Tier::Portable`] if matrices have no kernel for these elements,
    /// and splitting f32 only if they are split.
    pub fn for_factors(self, factors: [Element; 2]) -> Self {
        let [left, right] = factors;
        let splits_f32 = self.splits_f32 && self.tier == Tier::Matrix && left == Element::F32;
        let have_kernel = (splits_f32 || matches!(left, Element::F16 | Element::Bf16))
            && (right == left || right.is_quantised());
        match self.tier {
            Tier::Matrix if !have_kernel => self.with_tier(Tier::Portable),
            _ => self.with_split_f32(splits_f32),
        }
    }

    /// The same adapter with shuffles across `lanes` invocations.
    pub const fn with_lanes(self, lanes: u32) -> Self {
        Self { software_workgroup: lanes, lanes, ..self }
    }

    /// The same adapter with or without conversions of its own between f32 and f16.
    pub const fn with_native_f16(self, native_f16: bool) -> Self {
        Self { native_f16, ..self }
    }

    /// The same adapter with f16 widened in integer arithmetic or by its own instruction.
    pub const fn with_integer_widening(self, widens_in_integers: bool) -> Self {
        Self { widens_in_integers, ..self }
    }

    /// The same adapter with products of f32 by matrices, if it has some, or without.
    pub const fn with_split_f32(self, splits_f32: bool) -> Self {
        Self { splits_f32, ..self }
    }

    /// The same adapter with other compute units.
    pub const fn with_units(self, units: Units) -> Self {
        Self { units, ..self }
    }

    /// The same adapter with bindings, and so tensors, of at most `bytes`.
    pub const fn with_binding_bytes(self, bytes: u64) -> Self {
        Self { limits: Limits { binding_bytes: bytes, ..self.limits }, ..self }
    }
}

impl std::fmt::Display for Capabilities {
    /// The properties that decide which kernels run: `tier software, 8 lanes, gathers, native f16, f16 widened in
    /// integers`, `tier portable, 96 units`, `tier matrix, 96 units, matrices of 16 in subgroups of 32, f32 in two
    /// terms`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tier {}", self.tier.name())?;
        match (self.tier, self.lanes) {
            (Tier::Software, 2..) => write!(f, ", {} lanes", self.lanes)?,
            (Tier::Software, _) if self.software_workgroup == 8 => {}
            (Tier::Software, _) => write!(f, ", workgroups of {}", self.software_workgroup)?,
            (Tier::Portable | Tier::Matrix, _) => write!(f, ", {} units", self.units.count)?,
        }
        if let Some(Matrices { side, subgroup }) = self.matrices.filter(|_| self.tier == Tier::Matrix) {
            write!(f, ", matrices of {side} in subgroups of {subgroup}")?;
            f.write_str(if self.splits_f32 { ", f32 in two terms" } else { "" })?;
        }
        f.write_str(if self.gathers { ", gathers" } else { "" })?;
        f.write_str(if self.native_f16 { ", native f16" } else { "" })?;
        f.write_str(if self.widens_in_integers { ", f16 widened in integers" } else { "" })
    }
}
