//! gristmill
pub mod config;
pub mod data;
pub mod device;
pub mod element;
pub mod error;
pub mod kernels;
pub mod model;
pub mod ops;
pub mod random;
pub mod record;
pub mod reference;
pub mod tape;
pub mod train;
