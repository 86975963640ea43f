//! Whether the ranks of `model_parallel` can divide the matrices of a model.

use super::engine::Source;
use super::plan::RunPlan;
use crate::ranks::RankLayout;

const DEGREE: &str = "parallel_config.model_parallel";

/// Widths are divided in groups of so many: what one invocation of a kernel works on.
const GROUP: usize = 4;

/// Reports what does not divide evenly.
pub(super) fn check(plan: &RunPlan, source: &Source) {
    let RankLayout { model: ranks, shares_tokens, shares_vocabulary, .. } = plan.layout;
    if ranks == 1 {
        return;
    }
    let fault = |what: String| source.fault(DEGREE, format!("{ranks} ranks cannot share {what}"));
    let model = &plan.model;
    let (heads, kv_heads) = (model.num_heads, model.num_kv_heads);
    if !heads.is_multiple_of(ranks) {
        fault(format!("{heads} attention heads evenly; write a degree that divides them"));
    } else if !kv_heads.is_multiple_of(ranks) && !ranks.is_multiple_of(kv_heads) {
        fault(format!(
            "{kv_heads} key-value heads evenly, nor repeat each as often; write a degree that divides them"
        ));
    }
    let mixture = model.mixture.as_ref();
    let has_dense = (0..model.num_layers).any(|layer| model.mixture_of(layer).is_none());
    let widths = [
        has_dense.then_some(("intermediate_size", model.intermediate_size)),
        mixture.map(|mixture| ("moe_intermediate_size", mixture.intermediate_size)),
        mixture.and_then(|mixture| Some(("width of the shared expert", mixture.shared?.intermediate_size))),
    ];
    for (name, width) in widths.into_iter().flatten() {
        if !width.is_multiple_of(GROUP * ranks) {
            fault(format!(
                "the {name} {width} in groups of {GROUP}; write a degree times {GROUP} that divides it"
            ));
        }
    }
    let tokens = plan.settings.runner.batch_size * model.seq_length;
    if shares_tokens && !tokens.is_multiple_of(ranks) {
        let message = format!(
            "the {tokens} tokens of a micro-batch cannot be divided by {ranks} ranks; change seq_length or batch_size, or write `False`"
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
