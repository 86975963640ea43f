//! The model that the settings describe.

use crate::model::config::{
    Activation, Capacity, DropOrder, ExpertGroups, Gelu, HotExperts, MixtureConfig, ModelConfig, MultiToken,
    Norm, Positions, RouterConfig, Score, SharedExpert, TokenDispatch,
};
use crate::settings::Settings;
use crate::settings::sections::callbacks::Callbacks;
use crate::settings::sections::model::{GPT2, latent_attention, rotary_dim};
use crate::settings::sections::moe::{Moe, RoutingPolicy, TopkMethod};

/// Standard deviation of a router's initial weights.
const ROUTER_INIT_STD: f64 = 0.01;

/// The model of settings that were filled and have no fault.
pub(super) fn model_config(settings: &Settings) -> ModelConfig {
    let Settings { model, moe, callbacks, recompute, .. } = settings;
    let head_dim = model.head_dim.unwrap_or(model.hidden_size / model.num_heads);
    let max_positions = model.max_position_embedding.unwrap_or(model.seq_length);
    let is_gpt2 = model.kind.is(GPT2);
    let (norm, positions, activation) = if is_gpt2 {
        (Norm::LayerNorm, Positions::Learned, Activation::Gelu(Gelu::Tanh))
    } else {
        (Norm::RmsNorm, Positions::Rotary, Activation::SwiGlu)
    };
    let entry = model.kind.entry();
    let window = model.sliding_window.map(|window| window as usize);
    let masks = |window: &usize| *window < model.seq_length;
    let mut config = ModelConfig {
        family: entry.family,
        vocab_size: model.vocab_size,
        hidden_size: model.hidden_size,
        num_layers: model.num_layers,
        num_heads: model.num_heads,
        num_kv_heads: model.n_kv_heads.unwrap_or(model.num_heads),
        head_dim,
        intermediate_size: model.intermediate_size.unwrap_or(0),
        activation: model.hidden_act.unwrap_or(activation),
        seq_length: model.seq_length,
        max_positions,
        positions,
        rope_theta: model.theta.unwrap_or(10_000.0),
        rope_scaling: model.rope_scaling.config(max_positions),
        rotary_dim: rotary_dim(head_dim, model.rotary_percent.unwrap_or(1.0)),
        rotary_interleaved: model.rotary_interleaved == Some(true),
        norm,
        norm_eps: model.rms_norm_eps,
        tie_word_embeddings: model.tie_word_embeddings == Some(true),
        latent: None,
        qkv_bias: model.qkv_has_bias == Some(true),
        output_bias: model.attn_proj_has_bias.unwrap_or(is_gpt2),
        gate_up_bias: model.add_mlp_fc1_bias_linear.unwrap_or(is_gpt2),
        down_bias: model.add_mlp_fc2_bias_linear.unwrap_or(is_gpt2),
        qk_norm: model.use_qk_norm == Some(true),
        embedding_norm: false,
        query_layer: false,
        head_epsilon: None,
        sliding_window: window.filter(masks),
        wide_window: window.filter(|window| !masks(window)),
        attention_dropout: model.attention_dropout,
        hidden_dropout: model.hidden_dropout,
        embedding_dropout: model.emb_dropout_prob,
        init_std: model.init_method_std.unwrap_or(0.02),
        compute: model.compute_dtype,
        ignore_id: u32::try_from(model.ignore_token_id).unwrap_or(u32::MAX),
        mixture: moe.as_ref().map(|moe| mixture_config(moe, callbacks)),
        multi_token: model
            .mtp_depth
            .map(|depth| MultiToken { depth, loss_factor: model.mtp_loss_factor.unwrap_or(0.0) }),
        low_rank: None, // the modules that have adapters follow from the names of the rest
        recomputed: recompute.recomputed(),
    };
    (entry.finish)(model, &mut config);
    if let Some(latent) = latent_attention(model) {
        config = ModelConfig { qk_norm: false, ..latent.within(config) };
    }
    config
}

/// The callbacks say when hot experts are chosen anew.
fn mixture_config(moe: &Moe, callbacks: &Callbacks) -> MixtureConfig {
    let shared = moe.moe_shared_expert_intermediate_size;
    let is_gated = moe.use_shared_expert_gating;
    MixtureConfig {
        route: RouterConfig {
            experts: moe.expert_num as u32,
            chosen: moe.num_experts_chosen as u32,
            score: if moe.use_gating_sigmoid { Score::Sigmoid } else { Score::Softmax },
            groups: groups(moe),
            norm_top_k: moe.norm_topk_prob == Some(true),
            scaling: moe.routed_scaling_factor as f32,
        },
        has_bias: moe.balance_via_topk_bias,
        bias_update_rate: moe.topk_bias_update_rate.unwrap_or(0.0),
        intermediate_size: moe.moe_intermediate_size.unwrap_or(0),
        first_dense_layers: moe.first_k_dense_replace,
        shared: shared.map(|intermediate_size| SharedExpert { intermediate_size, is_gated }),
        losses: moe.losses(),
        dispatch: dispatch(moe, callbacks),
        router_init_std: ROUTER_INIT_STD,
    }
}

fn groups(moe: &Moe) -> Option<ExpertGroups> {
    match (moe.topk_method?, moe.n_group?, moe.topk_group?) {
        (TopkMethod::Grouped(score), count, chosen) => {
            Some(ExpertGroups { count: count as u32, chosen: chosen as u32, score })
        }
        (TopkMethod::Greedy, ..) => None,
    }
}

fn dispatch(moe: &Moe, callbacks: &Callbacks) -> TokenDispatch {
    let Some(factor) = moe.capacity_factor else {
        return TokenDispatch::Dropless { safe_tokens: moe.enable_gmm_safe_tokens };
    };
    TokenDispatch::Capacity(Capacity {
        factor,
        order: if moe.enable_sdrop { DropOrder::Token } else { DropOrder::Choice },
        renormalises: moe.routing_policy == RoutingPolicy::V1,
        hot: moe.hot_expert_num.map(|count| HotExperts {
            count,
            cold_token_share: moe.cold_token_percent.unwrap_or(1.0),
            update_step: moe.update_step.unwrap_or(1),
            checkpoint_step: callbacks.hot_step(),
        }),
    })
}
