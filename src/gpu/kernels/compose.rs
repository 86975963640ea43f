//! Composes a [`Kernel`] into the module that the driver compiles: imports and conditions are resolved (`link.rs`), naga
//! parses and validates.

use super::condition::Condition;
use super::interface::{ParamsLayout, Variable};
use super::kernel::Kernel;
use super::link::{Source, link, located};
use super::sources::{Sources, TILE};
use crate::error::{Error, Result};

/// A composed and validated shader.
pub struct Composed {
    /// The WGSL text, as written by `dump-wgsl`.
    pub wgsl: String,
    /// The parsed module.
    pub module: naga::Module,
    /// naga's analysis of the module: the types of expressions, and which variables each function uses.
    pub info: naga::valid::ModuleInfo,
    /// The bound variables that the entry point uses, sorted by index.
    pub variables: Vec<Variable>,
    /// The params struct; `None` if the file declares none.
    pub params: Option<ParamsLayout>,
}

/// Composes and validates a kernel of this crate's own files.
///
/// # Errors
/// A defect in a shader file, never in a user's input.
pub fn compose(kernel: &Kernel) -> Result<Composed> {
    Sources::default().compose(kernel)
}

impl Sources {
    /// Composes and validates a kernel of these files.
    ///
    /// # Errors
    /// One line that names the kernel: a file or an import that does not exist, WGSL that does not parse or that naga
    /// finds invalid, an unknown condition, or a missing entry point.
    pub fn compose(&self, kernel: &Kernel) -> Result<Composed> {
        let wgsl = self.wgsl(kernel)?;
        let fault = |what: String| Error::Device(format!("shader {kernel} does not compile: {what}"));
        let parsed = naga::front::wgsl::parse_str(&wgsl);
        let module = parsed.map_err(|error| {
            let span = error.labels().next().and_then(|(span, _)| span.to_range());
            fault(located(error.message().to_string(), &wgsl, span))
        })?;
        let (flags, capabilities) = (naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
        let validated = naga::valid::Validator::new(flags, capabilities).validate(&module);
        let info = validated.map_err(|error| {
            let span = error.spans().next().and_then(|(span, _)| span.to_range());
            fault(located(causes(error.as_inner()), &wgsl, span))
        })?;
        let entry = module.entry_points.iter().position(|entry| entry.name == kernel.entry);
        let entry = entry.ok_or_else(|| fault(format!("there is no entry point {}", kernel.entry)))?;
        let variables = Variable::used(&module, info.get_entry_point(entry));
        let params = ParamsLayout::of(&module);
        Ok(Composed { wgsl, module, info, variables, params })
    }

    /// The text of a kernel: its file, what that imports, and its constants as the file `package::tile`.
    fn wgsl(&self, kernel: &Kernel) -> Result<String> {
        let constants = kernel.constants().iter();
        let tile: String =
            constants.map(|(name, value)| format!("const {name}: u32 = {value}u;\n")).collect();
        let source_of = |path: &str| if path == TILE { Some(Source::new(&tile)) } else { self.source(path) };
        let holds = |name: &str| {
            let condition = Condition::ALL.iter().find(|condition| condition.name() == name)?;
            Some(kernel.conditions().any(|held| held == *condition))
        };
        link(kernel.file, source_of, holds)
            .map_err(|what| Error::Device(format!("shader {kernel} does not compose: {what}")))
    }
}

/// An error and its causes, outermost first.
fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
