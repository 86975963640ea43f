//! The identity of a kernel variant, which is also the key of its pipeline.

use crate::element::Element;

/// Every condition that a shader may test with `@if(...)`. Any other name is a composition error, so a misspelt
/// condition cannot silently drop code.
pub const FEATURES: [&str; 25] = [
    "f32",
    "f16",
    "bf16",
    "a_transposed",
    "b_transposed",
    "accumulate",
    "balance",
    "bias",
    "capacities",
    "causal",
    "dropout",
    "exact",
    "gradient",
    "group_limited",
    "grouped",
    "interleaved",
    "residual",
    "segmented",
    "shared_tile",
    "shuffled",
    "sigmoid",
    "straddling",
    "two_tensors",
    "windowed",
    "z_loss",
];

/// One variant of one entry point: everything that determines the code the driver compiles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Path of the shader below `shaders/`, without extension: `rms_norm`, `matmul/software`.
    pub file: &'static str,
    /// Name of the entry point.
    pub entry: &'static str,
    /// Storage type of its tensors.
    pub element: Element,
    /// Enabled conditions other than the element's name. Sorted, so that equal variants compare equal.
    features: Vec<&'static str>,
    /// Constants of the virtual module `package::tile`, sorted by name.
    constants: Vec<(&'static str, u32)>,
}

impl Kernel {
    /// The entry point `entry` of `shaders/{file}.wgsl`, with no condition enabled.
    pub fn new(file: &'static str, entry: &'static str, element: Element) -> Self {
        Self { file, entry, element, features: Vec::new(), constants: Vec::new() }
    }

    /// Enables the condition `name` if `holds`.
    ///
    /// # Panics
    /// If `name` is not one of [`FEATURES`].
    #[track_caller]
    pub fn feature(mut self, name: &'static str, holds: bool) -> Self {
        assert!(
            FEATURES.contains(&name),
            "{name} is not one of kernels::FEATURES: add it there or fix its spelling"
        );
        if holds {
            self.features.push(name);
            self.features.sort_unstable();
            self.features.dedup();
        }
        self
    }

    /// Sets the constant `name` of the module `package::tile`.
    pub fn constant(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self.constants.sort_unstable();
        self
    }

    /// The enabled conditions, the element's name included.
    pub fn features(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.features.iter().copied().chain([self.element.name()])
    }

    /// The constants of `package::tile`.
    pub fn constants(&self) -> &[(&'static str, u32)] {
        &self.constants
    }
}

impl std::fmt::Display for Kernel {
    /// `rms_norm:rms_norm_backward bf16 +accumulate LANES=64`: identifies the variant in dumps and logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{} {}", self.file, self.entry, self.element.name())?;
        self.features.iter().try_for_each(|name| write!(f, " +{name}"))?;
        self.constants.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}
