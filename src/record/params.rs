//! Params structs: the scalars of a dispatch, laid out alike in Rust and WGSL.

/// A struct that is uniform binding 0 of a kernel. Made by [`params!`](crate::params), never by hand: a test compares
/// `FIELDS` with what naga reads in the shader.
pub trait Params: bytemuck::NoUninit {
    /// Name and byte offset of each field, in order.
    const FIELDS: &'static [(&'static str, usize)];
}

/// Defines a params struct and its list of fields.
#[macro_export]
#[doc(hidden)]
macro_rules! params {
    ($(#[$meta:meta])* struct $name:ident { $($field:ident: $kind:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::NoUninit)]
        struct $name {
            $($field: $kind,)*
        }
        impl $crate::record::Params for $name {
            const FIELDS: &'static [(&'static str, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*];
        }
    };
}
