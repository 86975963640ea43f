//! The operators of a layer that training can compute again in the backward pass.

/// An operator whose output training may drop after the forward pass and compute again when the backward pass reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // their paths say it, in the table below
pub enum Operator {
    AttentionNorm,
    Qkv,
    LinearIn,
    Convolution,
    DeltaGates,
    DeltaRule,
    GatedNorm,
    QkNorm,
    LatentQueryNorm,
    LatentNorm,
    LatentHeads,
    FlashAttention,
    AttentionGate,
    Output,
    PostAttentionNorm,
    FeedForwardNorm,
    GateUp,
    SwiGlu,
    Gelu,
    Xielu,
    ExpertsNorm,
    RouterNorm,
    Router,
    Permute,
    ExpertGateUp,
    ExpertSwiGlu,
    ExpertGelu,
    ExpertDown,
    SharedGateUp,
    SharedSwiGlu,
    SharedDown,
    SharedGate,
}

/// The feature that a layer must have to contain an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Every layer has it.
    Any,
    /// Norms before attention and feed-forward network.
    NormsBefore,
    /// A norm of its own before the feed-forward network.
    FeedForwardNorm,
    /// Norms of their outputs.
    NormsAfter,
    /// Attention by softmax.
    Softmax,
    /// Linear attention.
    LinearAttention,
    /// A convolution over tokens: that of linear attention, or a gated one.
    Convolution,
    /// Norms of the heads of q and k.
    QkNorm,
    /// A gate of attention's output.
    AttentionGate,
    /// Multi-head latent attention.
    Latent,
    /// A latent vector of the queries.
    LatentQueries,
    /// A dense feed-forward network.
    Dense,
    /// A dense feed-forward network with a gate.
    DenseSwiGlu,
    /// A dense feed-forward network without a gate.
    DenseGelu,
    /// A dense feed-forward network with xIELU.
    DenseXielu,
    /// A dense feed-forward network beside experts.
    DenseBesideExperts,
    /// Experts.
    Experts,
    /// Experts with a gate.
    ExpertsSwiGlu,
    /// Experts without a gate.
    ExpertsGelu,
    /// An expert that every token visits.
    SharedExpert,
    /// A gate of the shared expert's output.
    SharedExpertGate,
}

/// Each operator, in the order of the enum: the feature that a layer must have to contain it, and its path below the
/// layer.
const TABLE: [(Operator, Feature, &str); 32] = [
    (Operator::AttentionNorm, Feature::NormsBefore, "attention_norm"),
    (Operator::Qkv, Feature::Softmax, "attention.wqkv"),
    (Operator::LinearIn, Feature::Convolution, "attention.w_in"),
    (Operator::Convolution, Feature::Convolution, "attention.conv"),
    (Operator::DeltaGates, Feature::LinearAttention, "attention.gates"),
    (Operator::DeltaRule, Feature::LinearAttention, "attention.delta_rule"),
    (Operator::GatedNorm, Feature::LinearAttention, "attention.norm"),
    (Operator::QkNorm, Feature::QkNorm, "attention.qk_norm"),
    (Operator::LatentQueryNorm, Feature::LatentQueries, "attention.q_norm"),
    (Operator::LatentNorm, Feature::Latent, "attention.kv_norm"),
    (Operator::LatentHeads, Feature::Latent, "attention.heads"),
    (Operator::FlashAttention, Feature::Softmax, "attention.flash_attention"),
    (Operator::AttentionGate, Feature::AttentionGate, "attention.gate"),
    (Operator::Output, Feature::Any, "attention.wo"),
    (Operator::PostAttentionNorm, Feature::NormsAfter, "post_attention_norm"),
    (Operator::FeedForwardNorm, Feature::FeedForwardNorm, "ffn_norm"),
    (Operator::GateUp, Feature::Dense, "feed_forward.w_gate_up"),
    (Operator::SwiGlu, Feature::DenseSwiGlu, "feed_forward.mul"),
    (Operator::Gelu, Feature::DenseGelu, "feed_forward.gelu"),
    (Operator::Xielu, Feature::DenseXielu, "feed_forward.xielu"),
    (Operator::ExpertsNorm, Feature::DenseBesideExperts, "feed_forward.experts_norm"),
    (Operator::RouterNorm, Feature::DenseBesideExperts, "feed_forward.router_norm"),
    (Operator::Router, Feature::Experts, "feed_forward.router"),
    (Operator::Permute, Feature::Experts, "feed_forward.permute"),
    (Operator::ExpertGateUp, Feature::Experts, "feed_forward.experts.w_gate_up"),
    (Operator::ExpertSwiGlu, Feature::ExpertsSwiGlu, "feed_forward.experts.mul"),
    (Operator::ExpertGelu, Feature::ExpertsGelu, "feed_forward.experts.gelu"),
    (Operator::ExpertDown, Feature::Experts, "feed_forward.experts.w_down"),
    (Operator::SharedGateUp, Feature::SharedExpert, "feed_forward.shared.w_gate_up"),
    (Operator::SharedSwiGlu, Feature::SharedExpert, "feed_forward.shared.mul"),
    (Operator::SharedDown, Feature::SharedExpertGate, "feed_forward.shared.w_down"),
    (Operator::SharedGate, Feature::SharedExpertGate, "feed_forward.shared.gate"),
];

impl Operator {
    /// All operators.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|(operator, ..)| *operator)
    }

    /// The operator's path below the layer, under which it records its launches.
    pub fn path(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// The feature that a layer must have to contain the operator.
    pub fn needs(self) -> Feature {
        TABLE[self as usize].1
    }

    /// The operator whose path is `path`.
    pub fn named(path: &str) -> Option<Self> {
        Self::all().find(|operator| operator.path() == path)
    }

    /// Whether the launches at `path` below the layer belong to the operator.
    pub fn covers(self, path: &str) -> bool {
        path.strip_prefix(self.path()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_paths_differ() {
        for (index, (operator, _, path)) in TABLE.into_iter().enumerate() {
            assert_eq!(operator as usize, index, "{path}");
            assert_eq!(Operator::named(path), Some(operator));
            let covering: Vec<_> = Operator::all().filter(|operator| operator.covers(path)).collect();
            assert_eq!(covering, [operator], "operators cover each other's launches");
        }
        assert!(Operator::Output.covers("attention.wo.dropout") && !Operator::Output.covers("attention.wo2"));
    }
}
