//! The random numbers that the device draws, on the host.
#![allow(dead_code)] // each test binary uses its own part

use gristmill::random::{DROPOUT_STREAM, Philox, ROUNDING_STREAM};

/// The random words of dropout as the device draws them: the host version of `shaders/lib/dropout.wgsl`.
#[derive(Clone, Copy, Debug)]
pub struct DropoutWords {
    /// The run's seed.
    pub seed: u64,
    /// Number of the dropout site in the model, below 32768.
    pub site: u32,
    /// The step, counted from 1.
    pub step: u32,
    /// The micro-batch within the step, counted from 0.
    pub micro_step: u32,
}

impl DropoutWords {
    /// Words for the 4 elements of group `group` in vector `index`.
    pub fn at(&self, index: u32, group: u32) -> [u32; 4] {
        let place = u64::from(self.site << 16 | self.micro_step & 0xffff);
        let stream = DROPOUT_STREAM | place << 32 | u64::from(group);
        Philox::new(self.seed, stream).block(u64::from(self.step) << 32 | u64::from(index))
    }
}

/// The bits that round updated weights, as the device draws them: the host version of `shaders/lib/rounding.wgsl`.
#[derive(Clone, Copy, Debug)]
pub struct RoundingBits {
    /// The run's seed.
    pub seed: u64,
    /// The update, counted from 1; steps that overflow make none.
    pub update: u32,
}

impl RoundingBits {
    /// 16 bits for each of the 4 weights of group `group`, counted from the start of the arena.
    pub fn at(&self, group: u32) -> [u16; 4] {
        let counter = u64::from(self.update) << 32 | u64::from(group);
        Philox::new(self.seed, ROUNDING_STREAM).block(counter).map(|word| (word >> 16) as u16)
    }
}
