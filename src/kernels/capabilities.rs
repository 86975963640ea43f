//! What an adapter can do, as far as choosing a kernel is concerned.

/// A family of kernels written for one class of machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// CPU adapters: barriers are slow there, so one invocation owns a whole register tile.
    Software,
    /// Any GPU: f32 arithmetic, at most 16 KiB of workgroup memory and 256 invocations.
    Portable,
}

impl Tier {
    /// Every tier that is written.
    pub const ALL: [Self; 2] = [Self::Software, Self::Portable];

    /// The name used by `--tier`, in logs and in benches.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Software => "software",
            Self::Portable => "portable",
        }
    }

    /// The tier of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

/// The sizes an adapter allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest range one binding can cover, in bytes; no tensor or segment is larger.
    pub binding_bytes: u64,
    /// Largest buffer we make, in bytes: min(adapter limit, 1 GiB).
    pub buffer_bytes: u64,
}

/// What a plan may use. Tests change it to force any variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The tier plans choose from.
    pub tier: Tier,
    /// The sizes plans respect.
    pub limits: Limits,
    /// How many invocations of the software tier hand values to each other in registers: those of a subgroup, where each
    /// workgroup of that size is one; 1 where nothing is handed round.
    pub lanes: u32,
}

impl Capabilities {
    /// A software adapter with llvmpipe's limits: what plans and tests use when no adapter is asked.
    pub const fn software() -> Self {
        Self {
            tier: Tier::Software,
            limits: Limits { binding_bytes: 128 << 20, buffer_bytes: 1 << 30 },
            lanes: 8,
        }
    }

    /// Invocations of a workgroup of the software tier: those that hand values to each other, or a vector of 8.
    pub const fn software_workgroup(self) -> u32 {
        if self.lanes > 1 { self.lanes } else { 8 }
    }

    /// The same adapter with another tier forced.
    pub const fn with_tier(self, tier: Tier) -> Self {
        Self { tier, ..self }
    }

    /// The same adapter with subgroups of `lanes` invocations, or without (1).
    pub const fn with_lanes(self, lanes: u32) -> Self {
        Self { lanes, ..self }
    }

    /// The same adapter with no binding, and so no tensor, larger than `bytes`.
    pub const fn with_binding_bytes(self, bytes: u64) -> Self {
        Self { limits: Limits { binding_bytes: bytes, ..self.limits }, ..self }
    }
}

impl std::fmt::Display for Capabilities {
    /// What decides which kernels run: `tier software, 8 lanes`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "tier {}", self.tier.name())?;
        match (self.tier, self.lanes) {
            (Tier::Software, 2..) => write!(f, ", {} lanes", self.lanes),
            _ => Ok(()),
        }
    }
}
