//! Composes a [`Kernel`] into the module that the driver compiles: WESL resolves imports and conditions, naga
//! validates.

use super::condition::Condition;
use super::interface::{ParamsLayout, Variable};
use super::kernel::Kernel;
use super::sources::{Sources, TILE};
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use wesl::syntax::GlobalDeclaration;
use wesl::{
    CompileOptions, Diagnostic, EscapeMangler, Feature, Features, ImportError, Mangler, ModulePath,
    ResolveError, VirtualResolver,
};

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

    /// The text of a kernel. Kernels of one file and the same conditions have one text, but for the values of their
    /// constants. Of a file that belongs to this crate that text is composed once per process.
    fn wgsl(&self, kernel: &Kernel) -> Result<String> {
        /// File, conditions, and names of constants.
        type Variant = (&'static str, Vec<Condition>, Vec<&'static str>);
        static OURS: LazyLock<Mutex<HashMap<Variant, Arc<str>>>> = LazyLock::new(Mutex::default);
        if self.is_added(kernel.file) {
            return Ok(with_constants(&self.joined(kernel)?, kernel));
        }
        let names = kernel.constants().iter().map(|(name, _)| *name).collect();
        let variant = (kernel.file, kernel.conditions().collect(), names);
        let ours = || OURS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = ours().get(&variant).cloned(); // not locked while another is composed
        let text = match known {
            Some(text) => text,
            None => {
                let text: Arc<str> = self.joined(kernel)?.into();
                ours().entry(variant).or_insert(text).clone()
            }
        };
        Ok(with_constants(&text, kernel))
    }

    /// The file of a kernel and everything it imports, as one text in which its constants are 0.
    fn joined(&self, kernel: &Kernel) -> Result<String> {
        let mut resolver = VirtualResolver::new();
        for (path, source) in self.iter() {
            resolver.add_module(module_path(&path), source.into());
        }
        resolver.add_module(module_path(TILE), tile_module(kernel).into());
        let mut flags: HashMap<String, Feature> =
            Condition::ALL.iter().map(|condition| (condition.name().to_string(), Feature::Disable)).collect();
        flags.extend(kernel.conditions().map(|condition| (condition.name().to_string(), Feature::Enable)));
        let options = CompileOptions {
            validate: false, // naga validates, and knows the extensions in use
            keep_root: true,
            features: Features { default: Feature::Error, flags },
            ..CompileOptions::default()
        };
        let composed = wesl::compile(&module_path(kernel.file), &resolver, &EscapeMangler, &options);
        let mut text = composed
            .map_err(|error| {
                Error::Device(format!("shader {kernel} does not compose: {}", wesl_fault(error)))
            })?
            .syntax;
        // WESL joins imported files in another order each time. Dumps could not be compared, and a driver whose cache
        // knows a shader by its words would compile it again.
        text.global_directives.sort_by_cached_key(ToString::to_string);
        text.global_declarations.sort_by_cached_key(|declaration| file_of(declaration));
        Ok(text.to_string())
    }
}

/// The path of the imported file that has a declaration; `None` for the kernel's own file, and for what has no name.
fn file_of(declaration: &GlobalDeclaration) -> Option<Vec<String>> {
    let name = match declaration {
        GlobalDeclaration::Declaration(declared) => &declared.ident,
        GlobalDeclaration::TypeAlias(declared) => &declared.ident,
        GlobalDeclaration::Struct(declared) => &declared.ident,
        GlobalDeclaration::Function(declared) => &declared.ident,
        GlobalDeclaration::ConstAssert(_) | GlobalDeclaration::Void => return None,
    };
    imported(&name.name()).map(|(file, _)| file.components)
}

/// The name of an item in the file that declares it.
pub(super) fn declared_name(name: &str) -> String {
    imported(name).map_or_else(|| name.to_string(), |(_, item)| item)
}

/// The file of an item of a composed text and its name there, if the file is imported: composition prefixes such items
/// with its path.
fn imported(name: &str) -> Option<(ModulePath, String)> {
    name.starts_with("package_").then(|| EscapeMangler.unmangle(name)).flatten()
}

/// The text of the virtual module `package::tile`: the constants that size register arrays and workgroups.
fn tile_module(kernel: &Kernel) -> String {
    kernel.constants().iter().map(|(name, _)| declaration(name, 0) + "\n").collect()
}

/// A composed text with the values of the constants that it uses.
fn with_constants(text: &str, kernel: &Kernel) -> String {
    kernel.constants().iter().fold(text.to_string(), |text, (name, value)| {
        let name = EscapeMangler.mangle(&module_path(TILE), name);
        text.replace(&declaration(&name, 0), &declaration(&name, *value))
    })
}

fn declaration(name: &str, value: u32) -> String {
    format!("const {name}: u32 = {value}u;")
}

fn module_path(path: &str) -> ModulePath {
    let components = path.split('/').map(str::to_string).collect();
    ModulePath { origin: wesl::syntax::PathOrigin::Absolute, components }
}

/// WESL's error without the snippet that it draws over several lines.
fn wesl_fault(error: wesl::Error) -> String {
    let Diagnostic { error, detail } = innermost(error);
    let what = match &detail.module_path {
        Some(path) => format!("{path}: {error}"),
        None => error.to_string(),
    };
    let span = detail.span.as_ref().map(|span| span.range());
    located(what, detail.source.as_deref().unwrap_or_default(), span)
}

/// The innermost diagnosis: WESL wraps the errors of a file in errors of the files that import it.
fn innermost(error: wesl::Error) -> Diagnostic<wesl::Error> {
    let outer = Diagnostic::from(error);
    let wraps_another = matches!(
        *outer.error,
        wesl::Error::Error(_)
            | wesl::Error::ResolveError(ResolveError::Error(_))
            | wesl::Error::ImportError(ImportError::ResolveError(ResolveError::Error(_)))
    );
    if wraps_another { innermost(*outer.error) } else { outer }
}

/// `what`, followed by the line of `text` in which `span` starts. A line number would refer to the composed text.
fn located(what: String, text: &str, span: Option<Range<usize>>) -> String {
    let what = one_line(&what);
    let line = span.and_then(|span| {
        let before = text.get(..span.start)?;
        text[before.rfind('\n').map_or(0, |at| at + 1)..].lines().next()
    });
    match line.map(str::trim).filter(|line| !line.is_empty()) {
        Some(line) => format!("{what}, at `{line}`"),
        None => what,
    }
}

/// An error and its causes, outermost first.
fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element::F32;
    use std::collections::HashSet;

    /// Also where WESL's maps have another order, which they do each time.
    #[test]
    fn a_text_is_the_same_each_time() {
        let kernel = Kernel::new("rms_norm", "rms_norm", F32).condition(Condition::SharedTile, true);
        let kernel = kernel.constant("LANES", 128).constant("ROWS", 64);
        let texts = (0..20).map(|_| Sources::default().joined(&kernel).expect("a file of ours"));
        assert_eq!(texts.collect::<HashSet<String>>().len(), 1);
    }
}
