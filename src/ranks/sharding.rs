//! Which rank holds which part of a model, where ranks share it.
//!
//! | word | meaning |
//! |---|---|
//! | [`Sharding`] | what a run shares out, and among how many ranks: the setting |
//! | segment | a range of an arena that fits one binding ([`Segment`](crate::model::arena::Segment)) |
//! | bucket | a range of a segment whose gradients are exchanged at once (`Bucket`) |
//! | replicas | the ranks that hold the parameters of a bucket, and whose gradients of them are summed |
//! | owners | those replicas that divide a bucket among each other; each updates its own part |
//! | copies | those that own the same part |
//! | `Ownership` | all of it for one rank, with the exchanges that follow, which recordings contain |
//! | holders | the owners, and those that share their matrices: they have a parameter together (`store/holdings.rs`) |
//! | global offsets | where the elements that a rank holds lie in the whole model ([`GlobalOffsets`](global_offsets::GlobalOffsets)) |
//!
//! A checkpoint that several ranks write is put together in `store/holdings.rs` and `store/tensor_set.rs`.

pub(crate) mod buckets;
pub mod global_offsets;
pub(crate) mod ownership;
pub(crate) mod shards;

/// The state of which each of the ranks that share a batch holds only a part, where plain data parallelism holds
/// everything on every rank. Sharding affects memory and exchanges, and results only by the order of sums.
///
/// Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models" (SC 2020).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// The state that is divided.
    pub what: Sharded,
    /// Number of neighbouring data ranks that hold one copy together; divides the number of data ranks. 1 if nothing is
    /// divided.
    pub ranks: usize,
    /// Whether weights that were gathered for the forward pass are dropped after it and gathered again for the backward
    /// pass.
    pub gathers_again: bool,
}

/// The state that a [`Sharding`] divides; each variant includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sharded {
    /// Nothing.
    None,
    /// Moments and master weights (ZeRO-1).
    Optimizer,
    /// Also the gradients that a step accumulates (ZeRO-2).
    Gradients,
}

impl Sharding {
    /// Everything is on every rank.
    pub const NONE: Self = Self { what: Sharded::None, ranks: 1, gathers_again: false };
}
