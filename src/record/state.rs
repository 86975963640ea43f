//! State structs: records on the device that several kernels read and write, with the same layout in Rust and WGSL.

use super::fields::Field;
use super::persistent::Persistents;
use super::tensor::Tensor;
use crate::element::Element;

/// A struct that a kernel binds as a variable of its own. A tensor of one row holds it. Defined with
/// [`state!`](crate::state) only: a test compares it with the struct of the same name in the shaders.
pub trait State: bytemuck::Pod + Default {
    /// The name of the struct in Rust and WGSL.
    const NAME: &'static str;
    /// The fields, in declaration order.
    const FIELDS: &'static [Field];
    /// Size in 32-bit words.
    const WORDS: u32 = (size_of::<Self>() / 4) as u32;

    /// A persistent tensor that holds one such struct, zeros at first.
    fn tensor(persistents: &mut Persistents, label: impl Into<String>) -> Tensor {
        persistents.tensor(label, 1, Self::WORDS, Element::F32)
    }

    /// Asserts that `tensor` has the shape of one that holds such a struct.
    #[track_caller]
    fn assert_held_by(tensor: Tensor) {
        let Tensor { rows, cols, element, .. } = tensor;
        assert!(
            (rows, cols, element) == (1, Self::WORDS, Element::F32),
            "a {} is one row of {} words, not {rows} x {cols} {}",
            Self::NAME,
            Self::WORDS,
            element.name()
        );
    }
}

/// Defines a state struct and its list of fields.
#[macro_export]
#[doc(hidden)]
macro_rules! state {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name {
            $($(#[$doc])* pub $field: $kind,)*
        }
        impl $crate::record::State for $name {
            const NAME: &'static str = stringify!($name);
            const FIELDS: &'static [$crate::record::Field] = $crate::fields!($name { $($field: $kind,)* });
        }
    };
}
