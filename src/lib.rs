//! gristmill
pub mod device;
pub mod element;
pub mod error;
pub mod kernels;
pub mod ops;
pub mod record;
pub mod reference;
