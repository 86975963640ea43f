//! State structs: records on the device that several kernels read and write, with the same layout in Rust and WGSL.

use super::fields::Field;
use super::persistent::Persistents;
use super::tensor::{Binding, Tensor};
use crate::element::Element;

/// A struct that a kernel binds as a variable of its own. A tensor of one row holds it. Only kernels of this crate use
/// such structs: a test compares each with the struct of the same name in the shaders.
pub trait State: bytemuck::Pod + Default {
    /// The name of the struct in Rust and WGSL.
    const NAME: &'static str;
    /// The fields, in declaration order.
    const FIELDS: &'static [Field];
    /// Size in 32-bit words.
    const WORDS: u32 = (size_of::<Self>() / 4) as u32;

    /// A persistent tensor that holds one such struct, initially zeros.
    fn tensor(persistents: &mut Persistents, label: impl Into<String>) -> Tensor {
        persistents.tensor(label, 1, Self::WORDS, Element::U32)
    }

    /// Binds `tensor`, which holds such a struct, to the variable `variable` of a shader.
    #[track_caller]
    fn bind(variable: &'static str, tensor: Tensor) -> Binding {
        Self::assert_held_by(tensor);
        tensor.bind(variable, Element::U32)
    }

    /// Asserts that `tensor` has the shape for one such struct.
    #[track_caller]
    fn assert_held_by(tensor: Tensor) {
        let Tensor { rows, cols, element, .. } = tensor;
        assert!(
            (rows, cols, element) == (1, Self::WORDS, Element::U32),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Scalar::{F32, U32};

    crate::state! {
        /// Three words, one short of a group of 4.
        pub struct Triple {
            /// A float.
            pub first: f32,
            /// An integer.
            pub second: u32,
            /// Another.
            pub third: u32,
        }
    }

    #[test]
    fn fields_are_listed_and_a_tensor_holds_them() {
        let fields = Triple::FIELDS.iter().map(|field| (field.name, field.offset, field.scalar));
        assert!(fields.eq([("first", 0, F32), ("second", 4, U32), ("third", 8, U32)]));
        let mut persistents = Persistents::new();
        let tensor = Triple::tensor(&mut persistents, "triple");
        assert_eq!((tensor.rows, tensor.cols, tensor.element), (1, 3, Element::U32));
        assert_eq!(Triple::bind("triple", tensor).bytes, 16, "rows are padded");
    }

    #[test]
    #[should_panic(expected = "a Triple is one row of 3 words, not 1 x 4 u32")]
    fn a_tensor_of_another_width_is_refused() {
        let mut persistents = Persistents::new();
        Triple::bind("triple", persistents.tensor("four words", 1, 4, Element::U32));
    }
}
