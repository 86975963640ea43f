//! The operators of a layer that training can compute again in the backward pass, and their names in MindFormers.

/// An operator whose output training may drop after the forward pass and compute again when the backward pass reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)] // their paths say it, in the table below
pub enum Operator {
    AttentionNorm,
    Qkv,
    QkNorm,
    LatentQueryNorm,
    LatentNorm,
    LatentHeads,
    FlashAttention,
    Output,
    FeedForwardNorm,
    GateUp,
    SwiGlu,
    Gelu,
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
    /// Norms of the heads of q and k.
    QkNorm,
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

struct Entry {
    operator: Operator,
    path: &'static str,
    needs: Feature,
    /// Separated by spaces.
    names: &'static str,
}

const fn row(operator: Operator, needs: Feature, path: &'static str, names: &'static str) -> Entry {
    Entry { operator, path, needs, names }
}

/// Each operator, in the order of the enum, with its path below the layer and the paths of MindFormers' operators that
/// its kernel fuses: first those of the models for research, then those of `mcore`. The default patterns of
/// `select_recompute` name the activation of dense layers; the activation of experts, which a mixture has instead, goes
/// by these names too.
const TABLE: [Entry; 22] = [
    row(Operator::AttentionNorm, Feature::Any, "attention_norm", "attention_norm.norm input_layernorm.norm"),
    row(
        Operator::Qkv,
        Feature::Any,
        "attention.wqkv",
        "attention.wq.matmul attention.wk.matmul attention.wv.matmul attention.w_qkv.matmul \
         self_attention.linear_qkv.matmul self_attention.linear_q_proj.matmul \
         self_attention.linear_q_down_proj.matmul self_attention.linear_kv_down_proj.matmul",
    ),
    row(
        Operator::QkNorm,
        Feature::QkNorm,
        "attention.qk_norm",
        "self_attention.q_layernorm.norm self_attention.k_layernorm.norm",
    ),
    row(
        Operator::LatentQueryNorm,
        Feature::LatentQueries,
        "attention.q_norm",
        "self_attention.q_layernorm.norm",
    ),
    row(
        Operator::LatentNorm,
        Feature::Latent,
        "attention.kv_norm",
        "self_attention.kv_layernorm.norm self_attention.k_layernorm.norm",
    ),
    row(
        Operator::LatentHeads,
        Feature::Latent,
        "attention.heads",
        "self_attention.linear_q_up_proj.matmul self_attention.linear_qb.matmul \
         self_attention.linear_kv_up_proj.matmul self_attention.linear_kvb.matmul \
         self_attention.apply_rotary_emb self_attention.apply_rotary_emb2 self_attention.pe_concat",
    ),
    row(
        Operator::FlashAttention,
        Feature::Any,
        "attention.flash_attention",
        "self_attention.core_attention.flash_attention",
    ),
    row(
        Operator::Output,
        Feature::Any,
        "attention.wo",
        "attention.wo.matmul self_attention.linear_proj.matmul",
    ),
    row(Operator::FeedForwardNorm, Feature::Any, "ffn_norm", "ffn_norm.norm pre_mlp_layernorm.norm"),
    row(
        Operator::GateUp,
        Feature::Dense,
        "feed_forward.w_gate_up",
        "feed_forward.w1.matmul feed_forward.w3.matmul feed_forward.w_gate_hidden.matmul mlp.linear_fc1.matmul",
    ),
    row(
        Operator::SwiGlu,
        Feature::DenseSwiGlu,
        "feed_forward.mul",
        "feed_forward.w1.activation.silu feed_forward.activate.silu mlp.mul mlp.activation_func.mul \
         mlp.activation_func.silu",
    ),
    row(
        Operator::Gelu,
        Feature::DenseGelu,
        "feed_forward.gelu",
        "feed_forward.w1.activation.gelu mlp.activation_func.gelu",
    ),
    row(Operator::Router, Feature::Experts, "feed_forward.router", ""),
    row(Operator::Permute, Feature::Experts, "feed_forward.permute", ""),
    row(
        Operator::ExpertGateUp,
        Feature::Experts,
        "feed_forward.experts.w_gate_up",
        "feed_forward.routed_experts.ffn.w1.matmul feed_forward.routed_experts.ffn.w3.matmul \
         mlp.experts.linear_fc1.matmul output.ffn.mapping.matmul",
    ),
    row(
        Operator::ExpertSwiGlu,
        Feature::ExpertsSwiGlu,
        "feed_forward.experts.mul",
        "feed_forward.mul feed_forward.w1.activation.silu feed_forward.routed_experts.ffn.mul \
         feed_forward.routed_experts.ffn.w1.activation.silu mlp.experts.activation_func.silu",
    ),
    row(
        Operator::ExpertGelu,
        Feature::ExpertsGelu,
        "feed_forward.experts.gelu",
        "feed_forward.gelu feed_forward.w1.activation.gelu output.ffn.mapping.activation",
    ),
    row(
        Operator::ExpertDown,
        Feature::Experts,
        "feed_forward.experts.w_down",
        "feed_forward.routed_experts.ffn.w2.matmul mlp.experts.linear_fc2.matmul output.ffn.projection.matmul",
    ),
    row(
        Operator::SharedGateUp,
        Feature::SharedExpert,
        "feed_forward.shared.w_gate_up",
        "feed_forward.shared_experts.w1.matmul feed_forward.shared_experts.w3.matmul \
         mlp.shared_experts.linear_fc1.matmul",
    ),
    row(
        Operator::SharedSwiGlu,
        Feature::SharedExpert,
        "feed_forward.shared.mul",
        "feed_forward.mul feed_forward.w1.activation.silu feed_forward.shared_experts.mul \
         feed_forward.shared_experts.w1.activation.silu mlp.shared_experts.mul \
         mlp.shared_experts.activation_func.silu",
    ),
    row(
        Operator::SharedDown,
        Feature::SharedExpertGate,
        "feed_forward.shared.w_down",
        "feed_forward.shared_experts.w2.matmul mlp.shared_experts.linear_fc2.matmul",
    ),
    row(Operator::SharedGate, Feature::SharedExpertGate, "feed_forward.shared.gate", ""),
];

/// Names of operators that have no output of their own that could be dropped: the reason, and the names, separated by
/// spaces.
pub(crate) const WITHOUT_OUTPUT: [(&str, &str); 3] = [
    (
        "writes into the output of `attention.wqkv` or `attention.qk_norm`, with which it is recomputed",
        "attention.rope attention.apply_rotary_emb self_attention.apply_rotary_pos_emb",
    ),
    (
        "is a view",
        "attention.wq.reshape attention.wk.reshape attention.wv.reshape attention.w_qkv.reshape \
         attention.wo.reshape attention.reshape feed_forward.w1.reshape feed_forward.w2.reshape \
         feed_forward.w3.reshape feed_forward.w_gate_hidden.reshape feed_forward.reshape",
    ),
    (
        "adds to the result of the layer, which is always kept",
        "feed_forward.w_down feed_forward.w2.matmul mlp.linear_fc2.matmul feed_forward.combine",
    ),
];

impl Operator {
    /// All operators.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.operator)
    }

    /// Its path below the layer, under which it records its launches.
    pub fn path(self) -> &'static str {
        self.row().path
    }

    /// Its names: its path, and those of the MindFormers operators that it fuses.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.path()).chain(self.row().names.split_whitespace())
    }

    /// The feature that a layer must have to contain it.
    pub fn needs(self) -> Feature {
        self.row().needs
    }

    /// The operator whose path is `path`.
    pub fn named(path: &str) -> Option<Self> {
        Self::all().find(|operator| operator.path() == path)
    }

    /// Whether the launches at `path` below the layer belong to it.
    pub fn covers(self, path: &str) -> bool {
        path.strip_prefix(self.path()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }

    fn row(self) -> &'static Entry {
        &TABLE[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_paths_differ() {
        for (index, row) in TABLE.iter().enumerate() {
            assert_eq!(row.operator as usize, index, "{}", row.path);
            assert_eq!(Operator::named(row.path), Some(row.operator));
            let covering: Vec<_> = Operator::all().filter(|operator| operator.covers(row.path)).collect();
            assert_eq!(covering, [row.operator], "operators cover each other's launches");
        }
        assert!(Operator::Output.covers("attention.wo.dropout") && !Operator::Output.covers("attention.wo2"));
    }
}
