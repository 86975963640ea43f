//! What the `optimizer` section says.

/// AdamW with decoupled weight decay (Loshchilov and Hutter, "Decoupled weight decay regularization", 2019):
/// p ← p (1 - lr wd) - lr m̂ / (√v̂ + eps), moments in f32 and bias-corrected.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerConfig {
    /// Decay of the first moment, in (0, 1).
    pub beta1: f64,
    /// Decay of the second moment, in (0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decay of weights per unit of learning rate; biases and vectors are exempt.
    pub weight_decay: f64,
}

impl Default for OptimizerConfig {
    /// The original's defaults.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 }
    }
}
