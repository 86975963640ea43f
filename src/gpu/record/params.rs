//! Params structs: the scalars of a dispatch, with the same layout in Rust and WGSL.

use super::fields::Field;

/// The uniform struct at binding 0 of a kernel. Define it only with [`params!`](crate::params): a test compares
/// `FIELDS` with the struct that naga finds in the shader.
pub trait Params: bytemuck::NoUninit {
    /// The fields, in declaration order.
    const FIELDS: &'static [Field];
}

/// Defines a params struct of `u32`, `i32` and `f32` and its list of fields. (It names this crate as `gristmill`.)
///
/// ```
/// gristmill::params! {
///     struct Params {
///         rows: u32,
///         /// What each row is multiplied by.
///         factor: f32,
///     }
/// }
/// # let _ = Params { rows: 1, factor: 2.0 };
/// ```
#[macro_export]
macro_rules! params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$doc:meta])* $of:vis $field:ident: $kind:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, $crate::bytemuck::NoUninit)]
        #[bytemuck(crate = "gristmill::bytemuck")]
        $vis struct $name {
            $($(#[$doc])* $of $field: $kind,)*
        }
        impl $crate::record::Params for $name {
            const FIELDS: &'static [$crate::record::Field] = $crate::fields!($name { $($field: $kind,)* });
        }
    };
}
