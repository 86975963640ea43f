//! Other forms of a mixture's keys: what a class implies, Megatron's words, and the balance loss of the first router.

use crate::settings::engine::*;
use crate::settings::sections::model::{DEEPSEEK_V2, DEEPSEEK_V3, GPT2, ModelType, is_elsewhere};
use crate::settings::sections::moe::{PATH, RoutingPolicy};

rows! {
    /// `moe_config`: other forms of its keys.
    pub struct MixtureForms in "moe_config" forms {
        /// `True` demands an `expert_num` above 1.
        use_moe: Option<bool> = Host.optional(),
        /// Megatron's switch. `False` takes the softmax over the chosen experts alone, which equals a softmax over all
        /// experts whose gates are then normalised.
        moe_router_pre_softmax: Option<bool> = Numbers.optional()
            .example("False\nnum_experts_chosen: 2"),
        /// Factor of the balance loss of `TopkRouterV1`, which is added once for each of the `num_experts_chosen`
        /// rounds of the choice. Applies with `return_extra_loss: True`.
        aux_loss_factor: Option<f64> = Numbers.optional().within(FROM_ZERO)
            .example("0.5\nrouting_policy: TopkRouterV1\nreturn_extra_loss: True"),
        /// Whether MindFormers adds the losses that balance experts; here a loss is added if its factor is written.
        return_extra_loss: Option<bool> = Host.optional(),
        /// How routed tokens get to the ranks of their experts, if `expert_parallel` is above 1: by all-to-all. The
        /// other words change the traffic between machines but no result, and are computed as `alltoall` with a notice.
        moe_token_dispatcher_type: Option<Dispatcher> = Host.optional(),
        /// Type in which the router computes: float32, whatever is written.
        router_dense_type: Option<RouterType> = Host.optional(),
    }
}

words! {
    /// `moe_token_dispatcher_type`.
    pub enum Dispatcher {
        /// Each rank sends each other one its tokens.
        #[default]
        AllToAll = "alltoall",
        /// A token goes to each machine once.
        OnceToMachine = "alltoall_deredundency",
        /// A token goes to each rank once.
        OnceToRank = "alltoall_zero_redundancy",
        /// Megatron: every rank gets all tokens.
        AllGather = "allgather",
        /// Megatron: by a library of its own.
        Flex = "flex",
    }
}

words! {
    /// `router_dense_type`.
    pub enum RouterType {
        /// float32.
        #[default]
        F32 = "float32" "fp32",
        /// Less precise, and so not taken.
        Half = "float16" "bfloat16",
    }
}

/// Writes each form as the key that is read. A dense model has no mixture: there these keys have no meaning, and all
/// but `use_moe` are ignored.
pub(super) fn translate(source: &mut Source, kind: Option<ModelType>) {
    let Some(kind) = kind.filter(|_| !is_elsewhere(source)) else { return };
    let reader = Reader::unchecked(source, PATH);
    let use_moe = reader.node("use_moe").and_then(bool::from_node);
    let experts = match reader.node("expert_num").map_or(Some(1), usize::from_node) {
        Some(1) => {
            // The forms are read only to report their faults.
            MixtureForms::read(&reader);
            if use_moe == Some(true) {
                reader.fault("use_moe", "asks for experts; give `expert_num` a number above 1");
            }
            return;
        }
        experts => experts.unwrap_or_default(),
    };
    let forms = MixtureForms::read(&reader);
    if forms.use_moe == Some(false) {
        reader.fault("use_moe", format!("contradicts `expert_num`, {experts}; remove it"));
    }
    if forms.router_dense_type == Some(RouterType::Half) {
        reader.note("router_dense_type", "the router computes in float32, which is more precise");
    }
    note_dispatcher(source, &reader, forms.moe_token_dispatcher_type);
    imply_class(source, kind);
    normalise(source, &forms);
    add_loss_of_v1(source, &forms, kind);
    note_extra_loss(source, &forms);
}

fn path(key: &str) -> String {
    join(PATH, key)
}

/// Notes how routed tokens are exchanged, if ranks share the experts.
fn note_dispatcher(source: &Source, reader: &Reader<'_>, written: Option<Dispatcher>) {
    const KEY: &str = "moe_token_dispatcher_type";
    let is_on = |key: &str| source.value(key) == Some(true);
    let ranks = source.value::<usize>("parallel_config.expert_parallel").unwrap_or(1);
    match written {
        None => {}
        Some(_) if ranks == 1 || !is_on("use_parallel") || is_on("as_single") => reader.ignore(&[KEY]),
        Some(Dispatcher::AllToAll) => {}
        Some(other) => {
            reader.note(KEY, format!("`{}` is computed as `alltoall`, with the same results", other.word()));
        }
    }
}

/// Writes the router and the shared experts that a class implies. The router of DeepSeek-V3 has sigmoid scores, and a
/// bias that balances the experts; the router of DeepSeek-V2 leaves gates as they are. Both have shared experts.
fn imply_class(source: &mut Source, kind: ModelType) {
    const TYPE: &str = "model.model_config.type";
    let shared = match kind.word() {
        DEEPSEEK_V2 => 2_usize,
        DEEPSEEK_V3 => 1,
        _ => return,
    };
    if source.node(&path("moe_shared_expert_intermediate_size")).is_none() {
        source.put_default(&path("shared_expert_num"), shared, TYPE);
    }
    if kind.word() == DEEPSEEK_V2 {
        return source.put_default(&path("norm_topk_prob"), false, TYPE);
    }
    source.put_default(&path("use_gating_sigmoid"), true, TYPE);
    source.put_default(&path("routed_scaling_factor"), 2.5, TYPE);
    source.put_default(&path("balance_via_topk_bias"), true, TYPE);
    if source.value::<bool>(&path("balance_via_topk_bias")) == Some(true) {
        source.put_default(&path("topk_bias_update_rate"), 1e-3, TYPE);
    }
}

/// A softmax over the chosen experts alone equals one over all experts whose gates are normalised. Gates are normalised
/// unless a file says otherwise.
fn normalise(source: &Source, forms: &MixtureForms) {
    let key = path("moe_router_pre_softmax");
    let is_sigmoid = source.value::<bool>(&path("use_gating_sigmoid")) == Some(true)
        || source.word(&path("use_gating_sigmoid")) == Some("sigmoid");
    if forms.moe_router_pre_softmax != Some(false) || is_sigmoid {
        return;
    }
    if source.value::<f64>(&path("num_experts_chosen")).unwrap_or(1.0) == 1.0 {
        source.fault(&key, "a softmax over one chosen expert is always 1; write `True`");
    } else if source.value::<bool>(&path("norm_topk_prob")) == Some(false) {
        let message = "makes the gates sum to 1, which `norm_topk_prob: False` forbids; change one of them";
        source.fault(&key, message);
    }
}

/// Translates the loss of V1: MindFormers adds one term for each of the k rounds of its choice, unless another key
/// gives the `expert` loss.
fn add_loss_of_v1(source: &mut Source, forms: &MixtureForms, kind: ModelType) {
    const KEY: &str = "aux_loss_factor";
    let is_v1 = match source.word(&path("routing_policy")) {
        Some(word) => word == RoutingPolicy::V1.word(),
        None => kind.is(GPT2),
    };
    let Some(factor) = forms.aux_loss_factor.filter(|_| is_v1) else {
        return Reader::unchecked(source, PATH).ignore(&[KEY]);
    };
    if !(factor > 0.0 && factor < 1.0) {
        let message = format!("expected a number between 0 and 1 (`TopkRouterV1`), found `{factor}`");
        return source.fault(&path(KEY), message);
    }
    let balances_batches =
        source.value::<f64>(&path("moe_aux_loss_coeff")).is_some_and(|factor| factor > 0.0)
            && source
                .word(&path("moe_router_load_balancing_type"))
                .is_some_and(|word| ["aux_loss", "gbs_aux_loss"].contains(&word));
    let types = source.node(&path("aux_loss_types")).is_some();
    if forms.return_extra_loss != Some(true) || balances_batches || types {
        return Reader::unchecked(source, PATH).ignore(&[KEY]);
    }
    let rounds = source.value::<f64>(&path("num_experts_chosen")).unwrap_or(1.0);
    let lists = [("aux_loss_types", Node::from("expert")), ("aux_loss_factors", (factor * rounds).into())];
    for (key, item) in lists {
        source.document.put(&path(key), Node::List(vec![item]), &path(KEY));
    }
}

/// Notes that a balance loss joins the objective because its factor is written, though `return_extra_loss` is off.
fn note_extra_loss(source: &Source, forms: &MixtureForms) {
    let factors = ["z_loss_factor", "moe_aux_loss_coeff", "aux_loss_factors"];
    let is_written = |key: &&str| source.node(&path(key)).is_some_and(|node| !node.is_off());
    if forms.return_extra_loss == Some(false) && factors.iter().any(is_written) {
        let text = "the losses whose factors are written join the objective all the same";
        Reader::unchecked(source, PATH).note("return_extra_loss", text);
    }
}
