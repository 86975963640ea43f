//! Fields of structs that Rust and WGSL share.

/// The type of a field, a 32-bit scalar of WGSL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    /// `u32`.
    U32,
    /// `i32`.
    I32,
    /// `f32`.
    F32,
}

impl Scalar {
    /// The type's name in WGSL.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
        }
    }
}

/// A field of a struct that Rust and WGSL share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's name, the same in both languages.
    pub name: &'static str,
    /// Bytes from the start of the struct.
    pub offset: usize,
    /// The type of the field.
    pub scalar: Scalar,
}

/// A Rust type that a field may have.
pub trait FieldType {
    /// The same type in WGSL.
    const SCALAR: Scalar;
}

impl FieldType for u32 {
    const SCALAR: Scalar = Scalar::U32;
}

impl FieldType for i32 {
    const SCALAR: Scalar = Scalar::I32;
}

impl FieldType for f32 {
    const SCALAR: Scalar = Scalar::F32;
}

/// The list of [`Field`]s of a struct, in declaration order.
#[macro_export]
#[doc(hidden)]
macro_rules! fields {
    ($name:ident { $($field:ident: $kind:ty,)* }) => {
        &[$($crate::record::Field {
            name: stringify!($field),
            offset: std::mem::offset_of!($name, $field),
            scalar: <$kind as $crate::record::FieldType>::SCALAR,
        },)*]
    };
}
