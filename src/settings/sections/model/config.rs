//! The model that the section describes.

use super::fill::rotary_dim;
use super::latent::latent_attention;
use super::{GPT2, Model};
use crate::model::config::{
    Activation, Gelu, MixtureConfig, ModelConfig, MultiToken, Norm, Positions, Recomputed,
};

impl Model {
    /// The model of a section that was filled and has no fault, with this `mixture` and these activations `recomputed`.
    pub(crate) fn config(&self, mixture: Option<MixtureConfig>, recomputed: Recomputed) -> ModelConfig {
        let head_dim = self.head_dim.unwrap_or(self.hidden_size / self.num_heads);
        let max_positions = self.max_position_embedding.unwrap_or(self.seq_length);
        let is_gpt2 = self.kind.is(GPT2);
        let (norm, positions, activation) = if is_gpt2 {
            (Norm::LayerNorm, Positions::Learned, Activation::Gelu(Gelu::Tanh))
        } else {
            (Norm::RmsNorm, Positions::Rotary, Activation::SwiGlu)
        };
        let entry = self.kind.entry();
        let window = self.sliding_window.map(|window| window as usize);
        let masks = |window: &usize| *window < self.seq_length;
        let mut config = ModelConfig {
            family: entry.family,
            vocab_size: self.vocab_size,
            hidden_size: self.hidden_size,
            num_layers: self.num_layers,
            num_heads: self.num_heads,
            num_kv_heads: self.n_kv_heads.unwrap_or(self.num_heads),
            head_dim,
            intermediate_size: self.intermediate_size.unwrap_or(0),
            activation: self.hidden_act.unwrap_or(activation),
            seq_length: self.seq_length,
            max_positions,
            positions,
            rope_theta: self.theta.unwrap_or(10_000.0),
            rope_scaling: self.rope_scaling.config(max_positions),
            rotary_dim: rotary_dim(head_dim, self.rotary_percent.unwrap_or(1.0)),
            rotary_interleaved: self.rotary_interleaved == Some(true),
            norm,
            norm_eps: self.rms_norm_eps,
            tie_word_embeddings: self.tie_word_embeddings == Some(true),
            latent: None,
            qkv_bias: self.qkv_has_bias == Some(true),
            output_bias: self.attn_proj_has_bias.unwrap_or(is_gpt2),
            gate_up_bias: self.add_mlp_fc1_bias_linear.unwrap_or(is_gpt2),
            down_bias: self.add_mlp_fc2_bias_linear.unwrap_or(is_gpt2),
            qk_norm: self.use_qk_norm == Some(true),
            embedding_norm: false,
            query_layer: false,
            head_epsilon: None,
            sliding_window: window.filter(masks),
            wide_window: window.filter(|window| !masks(window)),
            attention_dropout: self.attention_dropout,
            hidden_dropout: self.hidden_dropout,
            embedding_dropout: self.emb_dropout_prob,
            init_std: self.init_method_std.unwrap_or(0.02),
            compute: self.compute_dtype,
            ignore_id: u32::try_from(self.ignore_token_id).unwrap_or(u32::MAX),
            mixture,
            multi_token: self
                .mtp_depth
                .map(|depth| MultiToken { depth, loss_factor: self.mtp_loss_factor.unwrap_or(0.0) }),
            low_rank: None, // the modules that have adapters follow from the names of the rest
            recomputed,
        };
        (entry.finish)(self, &mut config);
        if let Some(latent) = latent_attention(self) {
            config = ModelConfig { qk_norm: false, ..latent.within(config) };
        }
        config
    }
}
