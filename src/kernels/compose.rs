//! Composes a [`Kernel`] into the module that the driver compiles: WESL resolves imports and conditions, naga
//! validates.

use super::condition::Condition;
use super::kernel::Kernel;
use super::sources::sources;
use crate::error::{Error, Result};
use std::collections::HashMap;
use wesl::{CompileOptions, EscapeMangler, Feature, Features, Mangler, ModulePath, VirtualResolver};

/// A composed and validated shader.
pub struct Composed {
    /// The WGSL text, as written by `dump-wgsl`.
    pub wgsl: String,
    /// The parsed module.
    pub module: naga::Module,
    /// The bound variables that the entry point uses, sorted by index.
    pub variables: Vec<Variable>,
}

/// A variable of a shader that a buffer is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name in the shader file that declares it.
    pub name: String,
    /// Its `@binding` number.
    pub index: u32,
    /// How the entry point accesses it.
    pub access: Access,
    /// The variable in [`Composed::module`].
    pub handle: naga::Handle<naga::GlobalVariable>,
}

/// How an entry point accesses a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The params struct.
    Uniform,
    /// A read-only tensor.
    Read,
    /// A tensor that is written and possibly read.
    ReadWrite,
}

/// Composes and validates `kernel`.
///
/// # Errors
/// A defect in a shader file, never in a user's input.
pub fn compose(kernel: &Kernel) -> Result<Composed> {
    let wgsl = wgsl(kernel)?;
    let fault = |what: String| Error::Device(format!("shader {kernel} does not compile: {what}"));
    let module = naga::front::wgsl::parse_str(&wgsl).map_err(|e| fault(e.emit_to_string(&wgsl)))?;
    let mut validator =
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), naga::valid::Capabilities::all());
    let info = validator.validate(&module).map_err(|e| fault(e.emit_to_string(&wgsl)))?;
    let entry = module.entry_points.iter().position(|entry| entry.name == kernel.entry);
    let entry = entry.ok_or_else(|| fault(format!("there is no entry point {}", kernel.entry)))?;
    let usage = info.get_entry_point(entry);
    let used = module.global_variables.iter().filter(|(handle, _)| !usage[*handle].is_empty());
    let mut variables: Vec<Variable> = used.filter_map(|(handle, global)| variable(handle, global)).collect();
    variables.sort_by_key(|variable| variable.index);
    Ok(Composed { wgsl, module, variables })
}

fn variable(handle: naga::Handle<naga::GlobalVariable>, global: &naga::GlobalVariable) -> Option<Variable> {
    let (index, access) = (global.binding.as_ref()?.binding, access(global.space)?);
    Some(Variable { name: declared_name(global.name.as_deref()?), index, access, handle })
}

/// The name that an item of a composed module has in the file that declares it: composition prefixes the items of
/// imported files with their path.
fn declared_name(name: &str) -> String {
    let imported = name.starts_with("package_").then(|| EscapeMangler.unmangle(name)).flatten();
    imported.map_or_else(|| name.to_string(), |(_, item)| item)
}

fn access(space: naga::AddressSpace) -> Option<Access> {
    match space {
        naga::AddressSpace::Uniform => Some(Access::Uniform),
        naga::AddressSpace::Storage { access } if access.contains(naga::StorageAccess::STORE) => {
            Some(Access::ReadWrite)
        }
        naga::AddressSpace::Storage { .. } => Some(Access::Read),
        _ => None,
    }
}

fn wgsl(kernel: &Kernel) -> Result<String> {
    let mut resolver = VirtualResolver::new();
    for (path, source) in sources() {
        resolver.add_module(module_path(&path), source.into());
    }
    resolver.add_module(module_path("tile"), tile_module(kernel).into());
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
    let composed = composed.map_err(|e| Error::Device(format!("shader {kernel} does not compose: {e}")))?;
    Ok(composed.to_string())
}

/// The text of the virtual module `package::tile`: the constants that size register arrays and workgroups.
fn tile_module(kernel: &Kernel) -> String {
    kernel.constants().iter().map(|(name, value)| format!("const {name}: u32 = {value}u;\n")).collect()
}

fn module_path(path: &str) -> ModulePath {
    let components = path.split('/').map(str::to_string).collect();
    ModulePath { origin: wesl::syntax::PathOrigin::Absolute, components }
}
