//! Factors that some models multiply by, as Granite and Gemma do.

use super::ModelConfig;
use crate::element::Element;

/// The factors of a model; `None`: 1, but for that of the scores.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Factors {
    /// Of the embedded tokens.
    pub embedding: Option<f64>,
    /// Of what attention and feed-forward network add to the residual stream.
    pub residual: Option<f64>,
    /// Of the attention scores; `None`: what follows from the width of a head, as
    /// [`softmax_scale`](ModelConfig::softmax_scale) has it.
    pub scores: Option<f64>,
    /// Of the values of attention. Since its output is linear in them, the last product of attention has this factor;
    /// that product has no bias then.
    pub values: Option<f64>,
    /// What the logits are divided by.
    pub logits_divisor: Option<f64>,
}

impl ModelConfig {
    /// The factor of the embedded tokens, rounded to the storage type of activations, as Gemma's published code rounds
    /// it; `None`: 1.
    pub fn embedding_factor(&self) -> Option<f32> {
        let factor = self.factors.embedding? as f32;
        let rounded = match self.compute {
            Element::F16 => half::f16::from_f32(factor).to_f32(),
            Element::Bf16 => half::bf16::from_f32(factor).to_f32(),
            _ => factor,
        };
        other_than_one(rounded)
    }

    /// The factor of the last product of attention and feed-forward network, which the residual stream is added to;
    /// `None`: 1, or that product has a norm after it, which multiplies by the factor.
    pub(crate) fn residual_factor(&self) -> Option<f32> {
        other_than_one(self.factors.residual? as f32).filter(|_| !self.norm_placement.is_after())
    }

    /// The factor of the last product of attention by softmax: that of the values times
    /// [`residual_factor`](Self::residual_factor); `None`: 1.
    pub(crate) fn attention_factor(&self) -> Option<f32> {
        let values = self.factors.values.unwrap_or(1.0) as f32;
        other_than_one(values * self.residual_factor().unwrap_or(1.0))
    }

    /// The factor of the norms after attention and feed-forward network; `None`: 1.
    pub(crate) fn post_norm_factor(&self) -> Option<f32> {
        other_than_one(self.factors.residual? as f32).filter(|_| self.norm_placement.is_after())
    }

    /// The factor of the logits; `None`: 1.
    pub(crate) fn logits_factor(&self) -> Option<f32> {
        other_than_one((1.0 / self.factors.logits_divisor?) as f32)
    }
}

fn other_than_one(factor: f32) -> Option<f32> {
    Some(factor).filter(|factor| *factor != 1.0)
}
