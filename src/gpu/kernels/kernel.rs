//! The identity of a kernel variant, which is also the key of its pipeline.

use super::capabilities::Capabilities;
use super::condition::Condition;
use crate::element::Element;

/// Storage buffers of kernels by matrices: attention backward in bf16 with every mask binds the most. Devices with
/// matrices offer far more.
pub(crate) const MATRIX_STORAGE_BUFFERS: u32 = 10;

/// One variant of one entry point: everything that determines the code the driver compiles.
///
/// # Examples
///
/// An op records a variant of a user's own shader, `examples/own_kernel.wgsl`:
///
/// ```
/// use gristmill::device::{Gpu, GpuOptions};
/// use gristmill::element::Element::F32;
/// use gristmill::kernels::{Kernel, Sources};
///
/// gristmill::params! {
///     struct Params {
///         rows: u32,
///         cols: u32,
///         stride4: u32,
///     }
/// }
///
/// # fn main() -> gristmill::error::Result<()> {
/// # pollster::block_on(async {
/// let file = include_str!("../../../examples/own_kernel.wgsl"); // ln(1 + e^x)
/// let options =
///     GpuOptions { sources: Sources::default().with("mine/softplus", file)?, ..GpuOptions::default() };
/// let gpu = Gpu::request(&options).await?;
/// let soft = gpu
///     .run(|job| {
///         let (x, y) = (job.input(&[-100.0, 0.0, 2.0, 100.0], 1, 4), job.output(1, 4));
///         let kernel = Kernel::new("mine/softplus", "softplus", F32).constant("LANES", 64);
///         let params = Params { rows: 1, cols: 4, stride4: x.stride4() };
///         job.rec.dispatch(kernel, &[x.bind("x", F32), y.bind("y", F32)], &params, [1, 1, 1]);
///         y
///     })
///     .await?;
/// assert!(soft[0] == 0.0 && (soft[1] - 2f32.ln()).abs() < 1e-6 && soft[3] == 100.0);
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    /// Path of the shader below `shaders/`, without extension: `rms_norm`, `matmul/software`.
    pub file: &'static str,
    /// Name of the entry point.
    pub entry: &'static str,
    /// Storage type of the tensors that it computes on.
    pub element: Element,
    /// Enabled conditions other than the element's. Sorted, so that equal variants compare equal.
    conditions: Vec<Condition>,
    /// Constants of the virtual module `package::tile`, sorted by name.
    constants: Vec<(&'static str, u32)>,
}

impl Kernel {
    /// The entry point `entry` of `shaders/{file}.wgsl`, with no condition enabled but the element's.
    ///
    /// # Panics
    /// If `element` is not a float: ids, offsets and counts have fixed types in a shader, and no variants.
    #[track_caller]
    pub fn new(file: &'static str, entry: &'static str, element: Element) -> Self {
        assert!(
            element.is_float(),
            "{entry} computes with f32, f16 or bf16 tensors, not with {}",
            element.name()
        );
        Self { file, entry, element, conditions: Vec::new(), constants: Vec::new() }
    }

    /// Enables `condition` if it `holds`.
    pub fn condition(mut self, condition: Condition, holds: bool) -> Self {
        if holds {
            self.conditions.push(condition);
            self.conditions.sort_unstable();
            self.conditions.dedup();
        }
        self
    }

    /// The variant of a product whose right factor is `weights`, whose type differs from the element if they are
    /// quantised.
    pub fn with_weights(self, weights: Element) -> Self {
        let is_quantised = weights.is_quantised();
        if is_quantised { self.condition(weights.into(), true) } else { self }
    }

    /// The variant that converts f16 the way an adapter with `capabilities` can, if the elements are f16.
    pub fn converting(self, capabilities: Capabilities) -> Self {
        let is_half = self.element == Element::F16;
        self.condition(Condition::NativeF16, is_half && capabilities.native_f16)
            .condition(Condition::IntegerWidening, is_half && capabilities.widens_in_integers)
    }

    /// The variant for Metal, whose functions load matrices through pointers to numbers alone.
    pub fn on_metal(self) -> Self {
        let is_by_matrices = self.is_by_matrices();
        self.condition(Condition::ScalarPointers, is_by_matrices)
    }

    /// Sets the constant `name` of the module `package::tile`.
    pub fn constant(mut self, name: &'static str, value: u32) -> Self {
        self.constants.push((name, value));
        self.constants.sort_unstable();
        self
    }

    /// The enabled conditions, the element's included.
    pub fn conditions(&self) -> impl Iterator<Item = Condition> + '_ {
        self.conditions.iter().copied().chain([self.element.into()])
    }

    /// The most storage buffers that the kernel may bind: WebGPU guarantees 8.
    pub fn most_storage_buffers(&self) -> u32 {
        if self.is_by_matrices() { MATRIX_STORAGE_BUFFERS } else { 8 }
    }

    /// Whether the kernel uses cooperative matrices, which only Vulkan and Metal have.
    pub fn is_by_matrices(&self) -> bool {
        self.file.split('/').any(|part| part == "matrix")
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
        self.conditions.iter().try_for_each(|condition| write!(f, " +{}", condition.name()))?;
        self.constants.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}
