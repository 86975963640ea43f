//! The interface of an entry point: its variables, and the layout of its params struct.

use super::link::declared_name;
use naga::{GlobalVariable, Handle, Module, TypeInner};

/// A variable of a shader that a buffer is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The variable's name in the shader file that declares it.
    pub name: String,
    /// The variable's `@binding` number.
    pub index: u32,
    /// How the entry point accesses it.
    pub access: Access,
    /// Whether the entry point reads the binding; many outputs are only written.
    pub is_read: bool,
    /// The variable in the module of [`Composed`](super::Composed).
    pub handle: Handle<GlobalVariable>,
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

/// The layout of a params struct in a shader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParamsLayout {
    /// (name, byte offset, type in WGSL) of each field, in declaration order.
    pub fields: Vec<(String, u32, &'static str)>,
    /// Size in bytes.
    pub bytes: u32,
}

impl Variable {
    /// The bound variables of `module` that an entry point uses, sorted by index.
    pub(super) fn used(module: &Module, usage: &naga::valid::FunctionInfo) -> Vec<Self> {
        let used = module.global_variables.iter().filter(|(handle, _)| !usage[*handle].is_empty());
        let is_read = |handle: Handle<GlobalVariable>| usage[handle].contains(naga::valid::GlobalUse::READ);
        let variable = |(handle, global)| Self::of(handle, global, is_read(handle));
        let mut variables: Vec<Self> = used.filter_map(variable).collect();
        variables.sort_by_key(|variable| variable.index);
        variables
    }

    fn of(handle: Handle<GlobalVariable>, global: &GlobalVariable, is_read: bool) -> Option<Self> {
        let (index, access) = (global.binding.as_ref()?.binding, access(global.space)?);
        Some(Self { name: declared_name(global.name.as_deref()?).into(), index, access, is_read, handle })
    }
}

impl ParamsLayout {
    /// The layout of the uniform struct of `module`, if it has one.
    pub(super) fn of(module: &Module) -> Option<Self> {
        let is_uniform = |global: &GlobalVariable| global.space == naga::AddressSpace::Uniform;
        let (_, uniform) = module.global_variables.iter().find(|(_, global)| is_uniform(global))?;
        let TypeInner::Struct { members, span } = &module.types[uniform.ty].inner else { return None };
        let kind = |member: &naga::StructMember| scalar_name(&module.types[member.ty].inner);
        let fields =
            members.iter().map(|m| (m.name.clone().unwrap_or_default(), m.offset, kind(m))).collect();
        Some(Self { fields, bytes: *span })
    }

    /// The first difference from a Rust struct of `bytes` bytes with `fields`, as (name, byte offset, type in WGSL).
    pub fn difference(&self, fields: &[(&str, usize, &str)], bytes: usize) -> Option<String> {
        let show = |field: Option<(&str, usize, &str)>| {
            field.map_or("missing".to_string(), |(name, offset, kind)| {
                format!("`{name}: {kind}` at byte {offset}")
            })
        };
        for index in 0..self.fields.len().max(fields.len()) {
            let shader = self.fields.get(index);
            let shader = shader.map(|(name, offset, kind)| (name.as_str(), *offset as usize, *kind));
            let rust = fields.get(index).copied();
            if shader != rust {
                let (shader, rust) = (show(shader), show(rust));
                return Some(format!(
                    "field {index} of its params is {shader} in the shader and {rust} in Rust"
                ));
            }
        }
        let differs = self.bytes as usize != bytes;
        differs.then(|| format!("its params take {} bytes in the shader and {bytes} in Rust", self.bytes))
    }
}

/// The WGSL name of a type that a field of a params struct in Rust may have.
fn scalar_name(inner: &TypeInner) -> &'static str {
    match *inner {
        TypeInner::Scalar(naga::Scalar::U32) => "u32",
        TypeInner::Scalar(naga::Scalar::I32) => "i32",
        TypeInner::Scalar(naga::Scalar::F32) => "f32",
        _ => "not a scalar of 32 bits",
    }
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

#[cfg(test)]
mod tests {
    use super::ParamsLayout;

    #[test]
    fn the_first_difference_is_named() {
        let layout =
            ParamsLayout { fields: vec![("rows".into(), 0, "u32"), ("cols".into(), 4, "f32")], bytes: 8 };
        assert_eq!(layout.difference(&[("rows", 0, "u32"), ("cols", 4, "f32")], 8), None);
        for (fields, bytes, what) in [
            (
                &[("rows", 0, "u32"), ("columns", 4, "f32")][..],
                8,
                "field 1 of its params is `cols: f32` at byte 4 in the shader and `columns: f32` at byte 4 in Rust",
            ),
            (
                &[("rows", 0, "u32")],
                4,
                "field 1 of its params is `cols: f32` at byte 4 in the shader and missing in Rust",
            ),
            (
                &[("rows", 0, "u32"), ("cols", 4, "u32")],
                8,
                "field 1 of its params is `cols: f32` at byte 4 in the shader and `cols: u32` at byte 4 in Rust",
            ),
            (
                &[("rows", 0, "u32"), ("cols", 4, "f32")],
                16,
                "its params take 8 bytes in the shader and 16 in Rust",
            ),
        ] {
            assert_eq!(layout.difference(fields, bytes).as_deref(), Some(what));
        }
    }
}
