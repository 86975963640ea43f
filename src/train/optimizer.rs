//! What the `optimizer` section says, and the groups of parameters that differ from it.

use super::schedule::ScheduleConfig;

/// The optimizer and its numbers. Weight decay is decoupled in every kind (Loshchilov and Hutter, "Decoupled weight decay
/// regularization", 2019): p ← p (1 - lr wd) - lr update.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// How the update follows from gradient and moments.
    pub kind: OptimizerKind,
    /// Decay of the first moment, in (0, 1). Muon: of the parameters that AdamW updates, as the next two.
    pub beta1: f64,
    /// Decay of the second moment, in (0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decay of weights per unit of learning rate; biases and vectors are exempt.
    pub weight_decay: f64,
}

/// The optimizers, under the names of the original. m and v are the moments, in f32; a hat means corrected for their
/// start at 0: m̂ = m / (1 - β1ᵗ), v̂ = v / (1 - β2ᵗ).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptimizerKind {
    /// m̂ / (√v̂ + eps). `FusedAdamW` and `FusedAdamWeightDecay` compute the same.
    AdamW,
    /// m / (√v + eps): moments as they are, so that the first updates are small ones divided by small ones.
    Fp32StateAdamWeightDecay,
    /// m̂ / ((√v + eps) / √(1 - β2ᵗ)): eps is added before the correction.
    AdamWeightDecayX,
    /// Momentum made orthogonal for the matrices of the layers; AdamW for tables and vectors.
    Muon(MuonConfig),
}

/// What only Muon has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MuonConfig {
    /// What remains of the momentum from step to step, in [0, 1).
    pub momentum: f64,
    /// Whether the update looks one step ahead.
    pub nesterov: bool,
    /// Newton-Schulz steps.
    pub ns_steps: u32,
    /// The root mean square of an update at learning rate 1, chosen so that AdamW's rates and decays suit.
    pub matched_adamw_rms: f64,
}

impl Default for MuonConfig {
    /// The original's defaults.
    fn default() -> Self {
        Self { momentum: 0.95, nesterov: true, ns_steps: 5, matched_adamw_rms: 0.2 }
    }
}

/// Parameters with a learning rate of their own: an item of `grouped_lr_schedule.grouped`.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupConfig {
    /// Patterns of their names.
    pub params: Vec<String>,
    /// Their learning rate.
    pub schedule: ScheduleConfig,
    /// Their weight decay; that of the optimizer where absent.
    pub weight_decay: Option<f64>,
}

impl OptimizerKind {
    /// The name by which a configuration asks for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AdamW => "AdamW",
            Self::Fp32StateAdamWeightDecay => "FP32StateAdamWeightDecay",
            Self::AdamWeightDecayX => "AdamWeightDecayX",
            Self::Muon(_) => "Muon",
        }
    }

    /// Whether moments are corrected for their start at 0.
    pub fn corrects_bias(self) -> bool {
        self != Self::Fp32StateAdamWeightDecay
    }
}

impl Default for OptimizerConfig {
    /// The original's defaults.
    fn default() -> Self {
        Self { kind: OptimizerKind::AdamW, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}
