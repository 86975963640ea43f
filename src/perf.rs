//! The memory and time that a run takes: forecasts from its recordings, and measurements beside them.
//!
//! | file | answers |
//! |---|---|
//! | [`forecast`] | the memory and work of a run, before it opens a device |
//! | [`fit`] | the micro-batch and recomputation that fit a given memory |
//! | `limits`, `memory_budget` | what does not fit an adapter, and what would save memory, in the words of errors |
//! | [`peak`] | the peaks of an adapter, which MFU refers to |
//! | [`profile`] | the measured time of each launch of a step |
//! | [`roofline`] | the time of each launch on a published GPU (model) |

pub mod fit;
pub mod forecast;
pub(crate) mod limits;
pub(crate) mod memory_budget;
pub mod peak;
pub mod profile;
pub mod roofline;
