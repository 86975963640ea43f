//! What an entry point takes: its bindings, and the layout of its params struct.

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
    /// (name, byte offset) of each field, in declaration order.
    pub fields: Vec<(String, u32)>,
    /// Size in bytes.
    pub bytes: u32,
}

impl ParamsLayout {
    /// The layout of the uniform struct of `module`, if it has one.
    pub(super) fn of(module: &naga::Module) -> Option<Self> {
        let is_uniform = |global: &naga::GlobalVariable| global.space == naga::AddressSpace::Uniform;
        let (_, uniform) = module.global_variables.iter().find(|(_, global)| is_uniform(global))?;
        let naga::TypeInner::Struct { members, span } = &module.types[uniform.ty].inner else { return None };
        let fields = members.iter().map(|m| (m.name.clone().unwrap_or_default(), m.offset)).collect();
        Some(Self { fields, bytes: *span })
    }

    /// The first difference from a struct of Rust with `fields`, as (name, byte offset), and `bytes` bytes.
    pub fn difference(&self, fields: &[(&str, usize)], bytes: usize) -> Option<String> {
        let show = |field: Option<(&str, usize)>| {
            field.map_or("missing".to_string(), |(name, offset)| format!("`{name}` at byte {offset}"))
        };
        for index in 0..self.fields.len().max(fields.len()) {
            let shader = self.fields.get(index).map(|(name, offset)| (name.as_str(), *offset as usize));
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

/// The bindings that an entry point uses, as (index, access), sorted by index.
pub(super) fn bindings(module: &naga::Module, usage: &naga::valid::FunctionInfo) -> Vec<(u32, Access)> {
    let used = module.global_variables.iter().filter(|(handle, _)| !usage[*handle].is_empty());
    let mut bindings: Vec<(u32, Access)> = used
        .filter_map(|(_, global)| Some((global.binding.as_ref()?.binding, access(global.space)?)))
        .collect();
    bindings.sort_by_key(|(index, _)| *index);
    bindings
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
        let layout = ParamsLayout { fields: vec![("rows".into(), 0), ("cols".into(), 4)], bytes: 8 };
        assert_eq!(layout.difference(&[("rows", 0), ("cols", 4)], 8), None);
        for (fields, bytes, what) in [
            (
                &[("rows", 0), ("columns", 4)][..],
                8,
                "field 1 of its params is `cols` at byte 4 in the shader and `columns` at byte 4 in Rust",
            ),
            (
                &[("rows", 0)],
                4,
                "field 1 of its params is `cols` at byte 4 in the shader and missing in Rust",
            ),
            (&[("rows", 0), ("cols", 4)], 16, "its params take 8 bytes in the shader and 16 in Rust"),
        ] {
            assert_eq!(layout.difference(fields, bytes).as_deref(), Some(what));
        }
    }
}
