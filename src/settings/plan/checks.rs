//! Checks that need the whole plan: its model, parameters and ranks.

use super::RunPlan;
use crate::model::config::{BalanceLosses, Magnitudes, ModelConfig, QkNorm};
use crate::model::count;
use crate::model::groups::{List, Selection};
use crate::model::parameters::{Gpt, Spec};
use crate::ranks::RankLayout;
use crate::settings::engine::{MAX_PARAMETERS, MAX_TENSORS, Source};
use crate::settings::sections::metric::Metrics;
use crate::settings::sections::model::{Pet, pet_path};
use crate::settings::sections::monitor::{self, Monitor};
use crate::settings::sections::run::Resume;
use crate::settings::{ReferenceType, Settings, Sharded};

const DEGREE: &str = "parallel_config.model_parallel";

/// Tokens of a row with two answers, each of which has one to learn.
const LEAST_OF_PAIR: usize = 4;

/// Widths are divided in groups of this many columns, which one invocation of a kernel works on.
const GROUP: usize = 4;

/// Reports settings of `plan` that do not fit together.
pub(super) fn check(plan: &RunPlan, source: &Source) {
    check_token_weights(plan, source);
    note_cold_slots(plan, source);
    check_groups(plan, source);
    check_matrices(plan, source);
    check_stages(plan, source);
    check_magnitudes(plan, source);
    check_monitor(plan, source);
    check_preference(plan, source);
}

/// Reports what learning from pairs of answers cannot go with.
fn check_preference(plan: &RunPlan, source: &Source) {
    if plan.settings.preference.is_none() {
        return;
    }
    let RankLayout { model, pipeline, .. } = plan.layout;
    let fault = |path: &str, message: &str| source.fault(path, message);
    if model > 1 {
        fault(DEGREE, "not built with `preference`, whose ranks share the data alone; write 1");
    }
    if pipeline > 1 {
        fault(
            "parallel_config.pipeline_stage",
            "not built with `preference`, whose ranks share the data alone; write 1",
        );
    }
    if plan.model.multi_token.is_some() {
        fault("preference", "is not built for a model that predicts several tokens; write `mtp_depth: 0`");
    }
    if plan.settings.metric != Metrics::default() {
        fault("metric", "counts tokens, and the loss of `preference` is one of pairs; remove it");
    }
    let moves_routers =
        plan.settings.moe.as_ref().is_some_and(|moe| moe.topk_bias_update_rate.unwrap_or(0.0) > 0.0);
    let leaves_off =
        plan.settings.preference.as_ref().is_some_and(|of| of.reference == Some(ReferenceType::AdaptersOff));
    if moves_routers && leaves_off {
        let message = "leaves adapters off, and `topk_bias_update_rate` moves the routers below them; write `precompute`";
        fault("preference.reference", message);
    }
    if plan.model.seq_length < LEAST_OF_PAIR {
        fault("model.model_config.seq_length", "has no room for two answers of two tokens; raise it");
    }
}

/// Reports adapters of a new run whose model would be random: they would learn nothing that another model could use.
pub(super) fn check_base(settings: &Settings, pet: &Pet, source: &Source) {
    let is_new = matches!(settings.run.resume_training, Resume::No | Resume::Auto);
    let is_random = is_new && settings.run.weights().is_none() && source.is_sound("load_checkpoint");
    if is_random && pet.random_base && pet.base_dtype.is_some() {
        let message = "quantises weights of files, and those of this run are random; name a model with \
                       `load_checkpoint`, or remove it";
        source.unsupported("model.model_config.pet_config.base_dtype", message);
    }
    if is_random && !pet.random_base {
        let message = "trains adapters, and no base model is named; write `load_checkpoint`, or `random_base: True` \
                       under `pet_config` to adapt random weights";
        source.unsupported("model.model_config.pet_config", message);
    }
}

/// Notes if the share of a cold expert comes to less than one slot.
fn note_cold_slots(RunPlan { settings, model, .. }: &RunPlan, source: &Source) {
    let Some(share) = settings.moe.as_ref().and_then(|moe| moe.cold_token_percent) else { return };
    let tokens = settings.runner.batch_size.saturating_mul(model.seq_length);
    let (Some(mixture), Ok(tokens)) = (&model.mixture, u32::try_from(tokens)) else { return };
    if let Some(slots) = mixture.hot_slots(tokens).filter(|slots| f64::from(*slots) * share < 1.0) {
        source.note(format!(
            "moe_config.cold_token_percent: {share} of {slots} slots is less than one; a cold expert has 1 (in \
             MindFormers none), and what else chooses it is dropped"
        ));
    }
}

/// Reports balance losses together with a loss per token: balance losses are means over micro-batches, and the number
/// of targets of a step is not known before its last micro-batch.
fn check_token_weights(RunPlan { settings, model, .. }: &RunPlan, source: &Source) {
    let losses = model.mixture.as_ref().map(|mixture| mixture.losses).unwrap_or_default();
    if settings.wrapper.calculate_per_token_loss && losses != BalanceLosses::default() {
        let message =
            "not built for a model with balance losses or a z-loss; write `False`, or set their factors to 0";
        source.fault("runner_wrapper.calculate_per_token_loss", message);
    }
}

/// Whether the model is small enough for its parameters to be listed, as all further checks do. Reports a fault if not.
pub(super) fn is_of_possible_size(model: &ModelConfig, source: &Source) -> bool {
    let count::Extent { parameters, tensors } = count::extent(model);
    let message = if parameters > MAX_PARAMETERS {
        format!("the model would have {parameters:.1e} parameters, and {MAX_PARAMETERS:.1e} are the most")
    } else if tensors > MAX_TENSORS {
        format!("the model would have {tensors:.1e} tensors, and {MAX_TENSORS:.1e} are the most")
    } else {
        return true;
    };
    source.fault("model.model_config", format!("{message}; lower its sizes"));
    false
}

/// Reports patterns that fit no parameter, or contradict each other.
fn check_groups(plan: &RunPlan, source: &Source) {
    let keys = ["no_decay_params", "grouped_lr_schedule", "optimizer.type"];
    if !keys.iter().all(|path| source.is_sound(path)) {
        return;
    }
    if let Err(misfit) = plan.grouping().apply(Gpt::describe(&plan.model)) {
        let path = match misfit.list {
            List::Freeze => "model.model_config.freeze".to_string(),
            List::FreezeExclude => "model.model_config.freeze_exclude".to_string(),
            List::Holds => pet_path("freeze_include"),
            List::Releases => pet_path("freeze_exclude"),
            List::Saves => pet_path("modules_to_save"),
            List::NoDecay => "no_decay_params".to_string(),
            List::Group(number) => format!("grouped_lr_schedule.grouped.{number}.params"),
        };
        source.fault(&path, misfit.message);
    }
}

/// Reports sizes that the ranks of `model_parallel` cannot divide evenly.
fn check_matrices(plan: &RunPlan, source: &Source) {
    let RankLayout { model: ranks, shares_tokens, shares_vocabulary, .. } = plan.layout;
    if ranks == 1 {
        return;
    }
    let fault = |what: String| source.fault(DEGREE, format!("{ranks} ranks cannot share {what}"));
    let model = &plan.model;
    let heads = model.num_heads;
    let cannot_share = |kv_heads: &usize| !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(*kv_heads);
    if !heads.is_multiple_of(ranks) {
        fault(format!("{heads} attention heads evenly; write a degree that divides them"));
    } else if let Some(kv_heads) = model.layer_kinds().map(|(layer, _)| layer.num_kv_heads).find(cannot_share)
    {
        fault(format!(
            "{kv_heads} key-value heads evenly, nor repeat each as often; write a degree that divides them"
        ));
    }
    if model.qk_norm && model.qk_norm_kind == QkNorm::AllHeads {
        fault("heads that are normalised together (`qk_norm_kind: all_heads`); write 1".to_string());
    }
    if model.qk_norm && model.qk_norm_kind.is_layer_norm() {
        fault("LayerNorms of heads (`qk_norm_kind`); write 1".to_string());
    }
    if model.has_linear_attention() {
        fault("linear attention (`layer_types: linear_attention`); write 1".to_string());
    }
    if model.has_convolutions() {
        fault("gated convolutions (`layer_types: conv`); write 1".to_string());
    }
    if model.attention_gate {
        fault("attention whose output has a gate (`attention_output_gate`); write 1".to_string());
    }
    if model.per_layer_width.is_some() {
        fault("embeddings of each layer (`hidden_size_per_layer_input`); write 1".to_string());
    }
    if model.embedding_width.is_some() {
        fault("an embedding of another width (`word_embed_proj_dim`); write 1".to_string());
    }
    if model.has_dense_beside_experts() {
        fault("a dense network beside experts (`enable_moe_block`); write 1".to_string());
    }
    let mixture = model.mixture.as_ref();
    let has_dense = (0..model.num_layers).any(|layer| model.has_dense(layer));
    let dense = model.layer_kinds().filter(|_| has_dense);
    let dense = dense.map(|(layer, _)| Some(("intermediate_size", layer.intermediate_size)));
    let experts = [
        mixture.map(|mixture| ("moe_intermediate_size", mixture.intermediate_size)),
        mixture.and_then(|mixture| Some(("width of the shared expert", mixture.shared?.intermediate_size))),
    ];
    for (name, width) in dense.chain(experts).flatten() {
        if !width.is_multiple_of(GROUP * ranks) {
            fault(format!(
                "the {name} {width} in groups of {GROUP}; write a degree times {GROUP} that divides it"
            ));
        }
    }
    let tokens = plan.settings.runner.batch_size * model.seq_length;
    if shares_tokens && !tokens.is_multiple_of(ranks) {
        let message = format!(
            "the {tokens} tokens of a micro-batch cannot be divided by {ranks} ranks; change seq_length or \
             batch_size, or write `False`"
        );
        source.fault("parallel_config.use_seq_parallel", message);
    }
    let keeps_slices = plan.settings.recompute.recompute_slice_activation && !shares_tokens;
    if keeps_slices && !tokens.is_multiple_of(ranks) {
        let message = format!("{ranks} ranks cannot keep even slices of {tokens} tokens; write `False`");
        source.fault("recompute_config.recompute_slice_activation", message);
    }
    if shares_vocabulary && !model.vocab_size.is_multiple_of(ranks) {
        let message = format!(
            "the vocabulary of {} cannot be divided by {ranks} ranks; write `vocab_emb_dp: True`",
            model.vocab_size
        );
        source.fault("parallel_config.vocab_emb_dp", message);
    }
}

/// Reports ranks that hold parts of the matrices whose rows have norms.
fn check_magnitudes(plan: &RunPlan, source: &Source) {
    let has_magnitudes =
        plan.model.low_rank.as_ref().is_some_and(|low_rank| low_rank.magnitudes != Magnitudes::None);
    if !has_magnitudes {
        return;
    }
    if plan.layout.model > 1 {
        let message = "ranks that share matrices cannot have magnitudes (`use_dora`); write 1";
        source.fault(DEGREE, message);
    }
    if plan.sharding.what != Sharded::None && plan.sharding.gathers_again {
        let message =
            "ranks that hold a part of the weights cannot have magnitudes (`use_dora`); write `False`";
        source.fault("recompute_config.parallel_optimizer_comm_recompute", message);
    }
}

/// Reports a model that stages of a pipeline cannot share: all layers read the embedded tokens.
fn check_stages(plan: &RunPlan, source: &Source) {
    if plan.layout.pipeline > 1 && plan.model.per_layer_width.is_some() {
        let message = "stages cannot share embeddings of each layer (`hidden_size_per_layer_input`); write 1";
        source.fault("parallel_config.pipeline_stage", message);
    }
}

/// Reports patterns of `monitor_config` that select nothing.
fn check_monitor(plan: &RunPlan, source: &Source) {
    let Monitor { target, invert, .. } = &plan.settings.monitor;
    if target.is_empty() && !invert {
        return;
    }
    let path = format!("{}.target", monitor::PATH);
    match Selection::new(target, *invert) {
        Err(message) => source.fault(&path, message),
        Ok(selection) if !trained(plan).iter().any(|spec| selection.takes(spec)) => {
            let message = "selects no parameter that trains; names are such as \
                           model.layers.0.self_attn.q_proj.weight or layers.0.attention.wqkv";
            source.fault(&path, message);
        }
        Ok(_) => (),
    }
}

/// The parameters that train; none after a fault of the patterns that freeze some.
fn trained(plan: &RunPlan) -> Vec<Spec> {
    let specs = plan.grouping().apply(Gpt::describe(&plan.model)).unwrap_or_default();
    specs.into_iter().filter(|spec| spec.trains).collect()
}
