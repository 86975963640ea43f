//! Other forms of a model's keys: opposites, switches for several keys, and keys that only some classes have.

use super::rope;
use crate::element::Element;
use crate::settings::engine::*;
use crate::settings::sections::model::{CHATGLM2, LLAMA, ModelType, PATH, is_elsewhere, pet_path};

rows! {
    /// `model.model_config`: other forms of its keys.
    pub struct ModelForms in "model.model_config" forms {
        /// `False` gives each query head a key and value head of its own.
        multi_query_attention: Option<bool> = Shape.optional().of(CHATGLM2).example("False"),
        /// Factor by which `theta` is multiplied.
        rope_ratio: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(CHATGLM2).example("500"),
        /// Method by which rotary frequencies are stretched, in place of `rope_scaling`: `PI`, `NTK`, `linear`,
        /// `DYNAMIC_NTK`, `YARN` or `LLAMA3`, with `scaling_factor` or `pretrain_seqlen`.
        extend_method: Option<String> = Numbers.optional().of(LLAMA).example("NTK\nscaling_factor: 2.0"),
        /// Megatron's name of `extend_method`; `rope` stretches nothing, and GPT-2's positions are `learned_absolute`.
        position_embedding_type: Option<String> = Numbers.optional().read_by(rope::positions)
            .example("NTK\nscaling_factor: 2.0"),
        /// Parameters of `extend_method`: a number for `PI` and `NTK`, a section for `linear`, `YARN` and `LLAMA3`.
        scaling_factor: Option<Node> = Numbers.optional().of(LLAMA)
            .example("2.0\nextend_method: PI"),
        /// Sequence length from which `DYNAMIC_NTK` starts; 2048 by default.
        pretrain_seqlen: Option<u64> = Numbers.optional().within(COUNT).of(LLAMA)
            .example("16\nextend_method: DYNAMIC_NTK"),
        /// The opposite of `tie_word_embeddings`.
        untie_embeddings_and_output_weights: Option<bool> = Shape.optional().example("False"),
        /// Default of `qkv_has_bias` and `attn_proj_has_bias`; True in InternLM.
        has_bias: Option<bool> = Shape.optional().example("True"),
        /// Default of `qkv_has_bias`, `attn_proj_has_bias`, `add_mlp_fc1_bias_linear` and `add_mlp_fc2_bias_linear`.
        add_bias_linear: Option<bool> = Shape.optional().example("True"),
        /// `False` switches `sliding_window` off, in all layers.
        use_sliding_window: Option<bool> = Numbers.optional().example("False\nsliding_window: 5"),
        /// Megatron's form of `sliding_window`: [left, 0], where left counts the tokens before itself that a token
        /// attends to; -1: no limit.
        window_size: Vec<f64> = Numbers.optional().read_by(window).example("[6, 0]"),
        /// Token that ends documents, for data sets that name none.
        eod_token_id: Option<i64> = Numbers.optional().within(TOKEN_ID).example("2"),
        /// Type of the initial embedding: float32 here, as of all weights; any other value causes a notice.
        embedding_init_type: Option<Element> = Host.optional(),
        /// Type in which softmax is computed: float32 here; any other value causes a notice.
        softmax_compute_type: Option<Element> = Host.optional(),
        /// Type in which norms are computed: float32 here; any other value causes a notice.
        layernorm_compute_type: Option<Element> = Host.optional(),
        /// Type in which rotations are computed: float32 here; any other value causes a notice.
        rotary_dtype: Option<Element> = Host.optional(),
    }
}

/// Whether the projections to q, k and v, back from attention, into the feed-forward layer and out of it have a bias.
const BIASES: [&str; 4] =
    ["qkv_has_bias", "attn_proj_has_bias", "add_mlp_fc1_bias_linear", "add_mlp_fc2_bias_linear"];

/// Writes each form as the key that is read, and returns the forms, from which other sections take values.
pub(super) fn translate(source: &mut Source, kind: Option<ModelType>) -> ModelForms {
    name_targets(source);
    let Some(kind) = kind.filter(|_| !is_elsewhere(source)) else {
        return ModelForms::default();
    };
    let reader = Reader::unchecked(source, PATH).of_types(&kind.reads());
    let foreign = reader.foreign::<ModelForms>().filter(|(key, _)| reader.asks(key));
    foreign.for_each(|(key, types)| reader.refuse(key, &types));
    let forms = ModelForms::read(&reader);
    note_types(&reader, &forms);
    tie(source, &forms);
    add_biases(source, &forms, kind);
    bound_window(source, &forms);
    if kind.word() == CHATGLM2 {
        fit_glm(source, &forms);
    }
    if kind.is(LLAMA) {
        rope::translate(source, &forms);
    }
    forms
}

/// Takes the layers that have adapters from the architecture where nothing else names them. Without `pet_config` there
/// are no adapters.
fn name_targets(source: &mut Source) {
    const ARCH: &str = "model.arch.type";
    let Some(word) = source.word(ARCH).filter(|word| word.ends_with("WithLora")) else { return };
    let targets = pet_path("target_modules");
    // Another value that is off is a fault of the row, or a pattern that matches nothing.
    let names_none = match source.node(&targets) {
        None | Some(Node::Null) => true,
        Some(Node::List(names)) => names.is_empty(),
        Some(_) => false,
    };
    if source.node(&path("pet_config")).is_none_or(Node::is_off) {
        source.note(format!("{ARCH}: without `pet_config` there are no adapters, and all weights train"));
    } else if names_none {
        let fused = word.contains("GLM") || word.contains("Bloom");
        source.document.put(&targets, if fused { ".*query_key_value" } else { ".*wq|.*wv" }.into(), ARCH);
    }
}

/// The path of a key of the model.
pub(super) fn path(key: &str) -> String {
    join(PATH, key)
}

/// Notes that float32 takes the place of another type that is written.
fn note_types(reader: &Reader<'_>, forms: &ModelForms) {
    let types = [
        ("embedding_init_type", forms.embedding_init_type),
        ("softmax_compute_type", forms.softmax_compute_type),
        ("layernorm_compute_type", forms.layernorm_compute_type),
        ("rotary_dtype", forms.rotary_dtype),
    ];
    for (key, _) in
        types.into_iter().filter(|(_, wanted)| wanted.is_some_and(|wanted| wanted != Element::F32))
    {
        reader.note(key, "float32 here, which is more precise");
    }
}

fn tie(source: &mut Source, forms: &ModelForms) {
    const FORM: &str = "untie_embeddings_and_output_weights";
    let Some(untied) = forms.untie_embeddings_and_output_weights else { return };
    if source.value(&path("tie_word_embeddings")) == Some(untied) {
        source.fault(&path(FORM), "contradicts `tie_word_embeddings`; keep one of them");
    }
    source.put_default(&path("tie_word_embeddings"), !untied, &path(FORM));
}

/// Each bias that is not written follows from the class, or else from the wider switches.
fn add_biases(source: &mut Source, forms: &ModelForms, kind: ModelType) {
    let ([qkv, output, _, down], all) = (BIASES, forms.add_bias_linear);
    let of_all = "add_bias_linear";
    match kind.word() {
        "QwenConfig" => source.put_default(&path(qkv), true, &path("type")),
        // In MindFormers the switch of all biases counts here even where this one is off.
        CHATGLM2 if all == Some(true) => source.document.put(&path(qkv), true.into(), &path(of_all)),
        CHATGLM2 => source.put_default(&path(qkv), true, &path("type")),
        "TelechatConfig" => {
            let form = if all.is_some() { of_all } else { "type" };
            [output, down]
                .into_iter()
                .for_each(|key| source.put_default(&path(key), all.unwrap_or(true), &path(form)));
        }
        _ => {}
    }
    let of_attention = match forms.has_bias {
        Some(has_bias) => Some((has_bias, "has_bias")),
        None => (kind.word() == "InternLMConfig").then_some((true, "type")),
    };
    for key in BIASES {
        let wider = of_attention.filter(|_| [qkv, output].contains(&key)).or(all.map(|all| (all, of_all)));
        if let Some((has_bias, form)) = wider {
            source.put_default(&path(key), has_bias, &path(form));
        }
    }
}

/// Reduces the forms of the window to one: Hugging Face's, in tokens.
fn bound_window(source: &mut Source, forms: &ModelForms) {
    let key = path("sliding_window");
    if !forms.window_size.is_empty() && source.node(&key).is_some() {
        source.fault(&path("window_size"), "given beside `sliding_window`; keep one form");
    }
    if let [left, _] = forms.window_size[..]
        && left >= 0.0
    {
        source.put_default(&path("sliding_window"), (left as u64).saturating_add(1), &path("window_size"));
    }
    if forms.use_sliding_window == Some(false) {
        source.document.take(&key);
        source.document.take(&path("layer_types"));
    }
}

/// Writes the defaults of ChatGLM, and translates the keys that it alone has.
fn fit_glm(source: &mut Source, forms: &ModelForms) {
    let number = |key: &str| source.node(&path(key)).cloned();
    let (channels, heads, theta) = (number("kv_channels"), number("num_heads"), number("theta"));
    if let Some(channels) = channels {
        source.put_default(&path("head_dim"), channels, &path("kv_channels"));
    }
    if let (Some(false), Some(heads)) = (forms.multi_query_attention, heads) {
        source.put_default(&path("n_kv_heads"), heads, &path("multi_query_attention"));
    }
    let theta = theta.map_or(Some(10_000.0), |node| f64::from_node(&node));
    if let (Some(ratio), Some(theta)) = (forms.rope_ratio, theta) {
        source.document.put(&path("theta"), (theta * ratio).into(), &path("rope_ratio"));
    }
}

/// `window_size`: how many tokens a token attends to before and after itself; -1 is no limit.
fn window(reader: &Reader<'_>, key: &'static str) -> Option<Vec<f64>> {
    let node = reader.node(key)?;
    let sides = Vec::<f64>::from_node(node);
    match sides.as_deref() {
        // A token never attends to later ones, whatever the right side would allow.
        Some([-1.0, 0.0 | -1.0]) => sides,
        Some([left, 0.0]) if *left >= 0.0 && left.fract() == 0.0 => sides,
        _ => {
            let found = sides.as_ref().map_or(node.to_string(), |sides| format!("{sides:?}"));
            let expected = "expected [left, 0], left a whole number from 0 or -1 for no limit";
            reader.fault(key, format!("{expected}, found {found}"));
            None
        }
    }
}
