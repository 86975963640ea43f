//! What of a model decides the numbers of a step, for the comparison when a run resumes.

use crate::model::config::{
    BalanceLosses, Capacity, HotExperts, MixtureConfig, ModelConfig, MultiToken, SharedExpert, TokenDispatch,
};
use crate::ops::route::{ExpertGroups, RouterConfig};
use serde_json::Value;

/// A `ColdHotExpertMonitor` may say the step too; who has none finds it here.
const HOT_STEP: &str =
    "callbacks.CheckpointMonitor.save_checkpoint_steps (a step at which hot experts are chosen)";

/// Names and values. What a plain model does not have is not said, so that checkpoints from before it was known still
/// match. Every field is named here, so that a new one cannot be forgotten.
pub(super) fn entries(model: &ModelConfig) -> Vec<(String, Value)> {
    let ModelConfig {
        family,
        vocab_size,
        hidden_size,
        num_layers,
        num_heads,
        num_kv_heads,
        head_dim,
        intermediate_size,
        activation,
        seq_length,
        max_positions,
        positions,
        rope_theta,
        rope_scaling,
        rotary_dim,
        rotary_interleaved,
        norm,
        norm_eps,
        tie_word_embeddings,
        qkv_bias,
        linear_bias,
        qk_norm,
        sliding_window,
        attention_dropout,
        hidden_dropout,
        embedding_dropout,
        init_std: _, // decides the first weights alone, and those are in the checkpoint
        ignore_id,
        mixture,
        multi_token,
    } = model.clone();
    let mut entries: Vec<(&str, Value)> = vec![
        ("ignore_token_id", ignore_id.into()),
        ("type", format!("{family:?}").into()),
        ("vocab_size", vocab_size.into()),
        ("hidden_size", hidden_size.into()),
        ("num_layers", num_layers.into()),
        ("num_heads", num_heads.into()),
        ("n_kv_heads", num_kv_heads.into()),
        ("head_dim", head_dim.into()),
        ("intermediate_size", intermediate_size.into()),
        ("seq_length", seq_length.into()),
        ("hidden_act", format!("{activation:?}").into()),
        ("normalization", format!("{norm:?}").into()),
        ("positions", format!("{positions:?}").into()),
        ("max_positions", max_positions.into()),
        ("theta", rope_theta.into()),
        ("rope_scaling", format!("{rope_scaling:?}").into()),
        ("rotary_dim", rotary_dim.into()),
        ("rotary_interleaved", rotary_interleaved.into()),
        ("rms_norm_eps", norm_eps.into()),
        ("tie_word_embeddings", tie_word_embeddings.into()),
        ("qkv_has_bias", qkv_bias.into()),
        ("has_bias", linear_bias.into()),
        ("use_qk_norm", qk_norm.into()),
        ("sliding_window", sliding_window.into()),
        ("attention_dropout", attention_dropout.into()),
        ("hidden_dropout", hidden_dropout.into()),
        ("emb_dropout_prob", embedding_dropout.into()),
    ];
    if let Some(mixture) = &mixture {
        entries.extend(of_mixture(mixture));
    }
    if let Some(MultiToken { depth, loss_factor }) = multi_token {
        entries.extend([("mtp_depth", depth.into()), ("mtp_loss_factor", loss_factor.into())]);
    }
    entries.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

fn of_mixture(mixture: &MixtureConfig) -> Vec<(&'static str, Value)> {
    let MixtureConfig {
        route: RouterConfig { experts, chosen, score, groups, norm_top_k, scaling },
        has_bias,
        bias_update_rate,
        intermediate_size,
        first_dense_layers,
        shared,
        losses: BalanceLosses { expert, sequence, z },
        dispatch,
        fuses_permutation: _, // the numbers are the same either way
        router_init_std: _,   // as `init_std` above
    } = mixture;
    let mut entries: Vec<(&str, Value)> = vec![
        ("moe_config.expert_num", (*experts).into()),
        ("moe_config.num_experts_chosen", (*chosen).into()),
        ("moe_config.score", format!("{score:?}").into()),
        ("moe_config.norm_topk_prob", (*norm_top_k).into()),
        ("moe_config.routed_scaling_factor", (*scaling).into()),
        ("moe_config.balance_via_topk_bias", (*has_bias).into()),
        ("moe_config.topk_bias_update_rate", (*bias_update_rate).into()),
        ("moe_config.moe_intermediate_size", (*intermediate_size).into()),
        ("moe_config.first_k_dense_replace", (*first_dense_layers).into()),
        ("moe_config.expert_loss", (*expert).into()),
        ("moe_config.sequence_loss", (*sequence).into()),
        ("moe_config.z_loss_factor", (*z).into()),
    ];
    if let Some(ExpertGroups { count, chosen, score }) = *groups {
        entries.extend([
            ("moe_config.n_group", count.into()),
            ("moe_config.topk_group", chosen.into()),
            ("moe_config.group_score", format!("{score:?}").into()),
        ]);
    }
    if let Some(SharedExpert { intermediate_size, is_gated }) = *shared {
        entries.extend([
            ("moe_config.shared_intermediate_size", intermediate_size.into()),
            ("moe_config.use_shared_expert_gating", is_gated.into()),
        ]);
    }
    match *dispatch {
        TokenDispatch::Dropless { safe_tokens } => {
            entries.extend([("moe_config.enable_gmm_safe_tokens", safe_tokens.into())])
        }
        TokenDispatch::Capacity(Capacity { factor, order, renormalises, hot }) => {
            entries.extend([
                ("moe_config.capacity_factor", factor.into()),
                ("moe_config.order", format!("{order:?}").into()),
                ("moe_config.renormalises", renormalises.into()),
            ]);
            if let Some(HotExperts { count, cold_token_share, update_step, checkpoint_step }) = hot {
                entries.extend([
                    ("moe_config.hot_expert_num", count.into()),
                    ("moe_config.cold_token_percent", cold_token_share.into()),
                    ("moe_config.update_step", update_step.into()),
                    (HOT_STEP, checkpoint_step.into()),
                ]);
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{DropOrder, Sizes};
    use crate::ops::route::{GroupScore, Score};
    use std::collections::BTreeMap;

    fn llama() -> ModelConfig {
        ModelConfig::llama(Sizes {
            vocab_size: 8,
            hidden_size: 8,
            num_layers: 2,
            num_heads: 2,
            intermediate_size: 8,
            seq_length: 8,
        })
    }

    fn mixture() -> MixtureConfig {
        MixtureConfig {
            route: RouterConfig {
                experts: 4,
                chosen: 2,
                score: Score::Softmax,
                groups: None,
                norm_top_k: true,
                scaling: 1.0,
            },
            has_bias: false,
            bias_update_rate: 0.0,
            intermediate_size: 8,
            first_dense_layers: 0,
            shared: None,
            losses: BalanceLosses::default(),
            dispatch: TokenDispatch::Dropless { safe_tokens: false },
            fuses_permutation: false,
            router_init_std: 0.01,
        }
    }

    #[test]
    fn a_dense_model_says_what_it_always_said() {
        let entries: BTreeMap<_, _> = entries(&llama()).into_iter().collect();
        assert_eq!(entries.len(), 27);
        assert!(entries.keys().all(|name| !name.starts_with("moe") && !name.starts_with("mtp")));
    }

    #[test]
    fn a_change_of_the_mixture_shows() {
        let of = |mixture: MixtureConfig| entries(&ModelConfig { mixture: Some(mixture), ..llama() });
        let plain = of(mixture());
        assert!(plain.len() > 27);
        let capacity = Capacity { factor: 1.5, order: DropOrder::Choice, renormalises: false, hot: None };
        let hot = HotExperts { count: 1, cold_token_share: 0.5, update_step: 3, checkpoint_step: Some(2) };
        let groups = ExpertGroups { count: 2, chosen: 1, score: GroupScore::Best };
        let changed = [
            MixtureConfig { route: RouterConfig { groups: Some(groups), ..mixture().route }, ..mixture() },
            MixtureConfig { losses: BalanceLosses { z: 0.1, ..BalanceLosses::default() }, ..mixture() },
            MixtureConfig {
                shared: Some(SharedExpert { intermediate_size: 8, is_gated: true }),
                ..mixture()
            },
            MixtureConfig { dispatch: TokenDispatch::Dropless { safe_tokens: true }, ..mixture() },
            MixtureConfig { dispatch: TokenDispatch::Capacity(capacity), ..mixture() },
            MixtureConfig {
                dispatch: TokenDispatch::Capacity(Capacity { hot: Some(hot), ..capacity }),
                ..mixture()
            },
        ];
        let mut seen = vec![plain];
        for mixture in changed {
            let entries = of(mixture);
            assert!(!seen.contains(&entries), "{entries:?}");
            seen.push(entries);
        }
        assert!(seen.iter().flatten().any(|(name, value)| name == HOT_STEP && *value == 2));
        let ahead = ModelConfig { multi_token: Some(MultiToken { depth: 1, loss_factor: 0.3 }), ..llama() };
        assert_eq!(entries(&ahead).len(), 29);
    }
}
