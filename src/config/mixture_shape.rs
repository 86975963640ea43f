//! The shape of a mixture: what follows from the rest of the model, and what must fit it.

use super::mixture::MixtureSection;
use super::run::RunConfig;
use super::shape::MAX_SIZE;
use crate::error::{Error, Result};
use crate::model::config::{
    Capacity, DropOrder, Family, HotExperts, MixtureConfig, MultiToken, SharedExpert, TokenDispatch,
};

/// The original's spread of a router's first weights.
const ROUTER_INIT_STD: f64 = 0.01;

/// Decides every number of the mixture, whose dense layers are `dense_size` wide inside.
pub(super) fn resolve(config: &RunConfig, dense_size: usize) -> Result<Option<MixtureConfig>> {
    let Some(mixture) = &config.mixture else { return Ok(None) };
    let num_layers = config.model.num_layers;
    if mixture.first_k_dense_replace >= num_layers {
        let found = mixture.first_k_dense_replace;
        let message = format!("{found} dense layers of {num_layers} leave none for the experts; lower it");
        return Err(wrong(config, "first_k_dense_replace", message));
    }
    let intermediate_size = mixture.moe_intermediate_size.unwrap_or(dense_size);
    check_size(config, "moe_intermediate_size", Some(intermediate_size))?;
    Ok(Some(MixtureConfig {
        route: mixture.route,
        has_bias: mixture.balance_via_topk_bias,
        bias_update_rate: mixture.topk_bias_update_rate,
        intermediate_size,
        first_dense_layers: mixture.first_k_dense_replace,
        shared: shared(config, mixture, intermediate_size)?,
        losses: mixture.losses,
        dispatch: dispatch(config, mixture),
        fuses_permutation: mixture.use_fused_ops_permute,
        router_init_std: ROUTER_INIT_STD,
    }))
}

/// Decides what predicts further ahead.
pub(super) fn multi_token(config: &RunConfig) -> Result<Option<MultiToken>> {
    let (model, path) = (&config.model, "model.model_config.mtp_depth");
    if model.mtp_depth == 0 {
        return Ok(None);
    }
    if model.family != Family::Llama {
        let message = "only Llama's layers can predict further ahead; write `type: LlamaConfig`, or 0 here";
        return Err(config.error(path, message));
    }
    if !model.hidden_size.is_multiple_of(4) {
        // Two halves of a matrix, each of which starts at a whole group of 4 columns.
        let message = format!("needs a hidden_size that is a multiple of 4, not {}", model.hidden_size);
        return Err(config.error(path, message));
    }
    if model.mtp_depth >= model.seq_length {
        let length = model.seq_length;
        let message =
            format!("expected a whole number below seq_length {length}, found `{}`", model.mtp_depth);
        return Err(config.error(path, message));
    }
    Ok(Some(MultiToken { depth: model.mtp_depth, loss_factor: model.mtp_loss_factor }))
}

/// An error about a key of the mixture, in the section that has it.
pub(super) fn wrong(config: &RunConfig, key: &str, message: impl std::fmt::Display) -> Error {
    let places = ["moe_config", "model.model_config"].map(|section| format!("{section}.{key}"));
    let place = places.iter().find(|place| config.has(place)).unwrap_or(&places[0]);
    config.error(place, message)
}

fn shared(config: &RunConfig, mixture: &MixtureSection, inner: usize) -> Result<Option<SharedExpert>> {
    let given = mixture.moe_shared_expert_intermediate_size.filter(|size| *size > 0);
    check_size(config, "moe_shared_expert_intermediate_size", given)?;
    let product = match mixture.shared_expert_num {
        0 => None,
        count => Some(count.saturating_mul(inner)),
    };
    check_size(config, "shared_expert_num", product)?;
    let is_gated = mixture.use_shared_expert_gating;
    Ok(given.or(product).map(|intermediate_size| SharedExpert { intermediate_size, is_gated }))
}

fn check_size(config: &RunConfig, key: &str, size: Option<usize>) -> Result<()> {
    match size.filter(|size| *size == 0 || *size > MAX_SIZE) {
        None => Ok(()),
        Some(0) => {
            Err(wrong(config, key, format!("expected a whole number from 1 to {MAX_SIZE}, found `0`")))
        }
        Some(size) => {
            let message = format!("makes the layer {size} wide; expected 1 to {MAX_SIZE}");
            Err(wrong(config, key, message))
        }
    }
}

fn dispatch(config: &RunConfig, mixture: &MixtureSection) -> TokenDispatch {
    if mixture.is_dropless() {
        return TokenDispatch::Dropless { safe_tokens: mixture.enable_gmm_safe_tokens };
    }
    let callbacks = &config.callbacks;
    let checkpoint = callbacks.checkpoint.as_ref().map(|checkpoint| checkpoint.every_steps);
    let checkpoint_step = callbacks.experts.cold_hot_checkpoint_step.or(checkpoint);
    TokenDispatch::Capacity(Capacity {
        factor: mixture.capacity_factor(),
        order: if mixture.enable_sdrop { DropOrder::Token } else { DropOrder::Choice },
        renormalises: mixture.is_topk_router_v1 && mixture.route.norm_top_k,
        hot: mixture.hot.map(|hot| HotExperts { checkpoint_step, ..hot }),
    })
}
