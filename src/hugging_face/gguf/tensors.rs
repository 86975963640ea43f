//! The tensors of a model: their names, shapes and values.

use super::Architecture;
use crate::model::config::{LayerConfig, ModelConfig, RopeScaling};
use crate::model::parameters::{Gpt, HeadOrder, Piece, ReorderedHeads, Role, Spec};
use crate::model::selection_bias;
use crate::ops::rope::Rope;
use std::ops::Range;
use std::rc::Rc;

/// A tensor of a file.
pub(crate) struct GgufTensor {
    pub name: String,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Whether its rows are multiplied with activations, so that they may be stored in fewer bits; others are f32.
    pub is_matrix: bool,
    /// Where its values are, one after the other.
    pub sources: Vec<Source>,
    /// What is added to each value: 1 for the weight of a norm that multiplies by 1 + w.
    pub offset: f32,
}

impl GgufTensor {
    /// Whether it is the tensor of this name of a Hugging Face file.
    pub fn is_stored_as(&self, name: &str) -> bool {
        matches!(&self.sources[..], [Source::Rows { piece, of_each: None, .. }] if piece.name == name)
    }

    /// The rows of another matrix in the order in which the tensor has its own: those of an adapter's second factor.
    pub fn in_rows_of(&self, values: Vec<f32>) -> Vec<f32> {
        match &self.sources[..] {
            [Source::Rows { spec, piece, .. }] => {
                spec.in_row_order(&Piece { is_transposed: false, ..(**piece).clone() }, values)
            }
            _ => values,
        }
    }
}

/// Where values of a tensor are.
pub(crate) enum Source {
    /// These.
    Values(Vec<f32>),
    /// All values of the tensor of this name in a Hugging Face file, as it holds them.
    Whole(String),
    /// Rows of a tensor of a Hugging Face file.
    Rows {
        spec: Rc<Spec>,
        /// The tensor, with the order of heads by which its rows turn into those of the file.
        piece: Box<Piece>,
        /// Of the rows of each of so many experts, which are taken.
        of_each: Option<(usize, Range<usize>)>,
    },
}

impl Source {
    /// The name of the tensor in a Hugging Face file.
    pub fn stored(&self) -> Option<&str> {
        match self {
            Self::Values(_) => None,
            Self::Whole(name) => Some(name),
            Self::Rows { piece, .. } => Some(&piece.name),
        }
    }

    /// Its values, given those of the stored tensor.
    pub fn of_stored(&self, stored: Vec<f32>) -> Vec<f32> {
        match self {
            Self::Values(values) => values.clone(),
            Self::Whole(_) => stored,
            Self::Rows { spec, piece, of_each } => {
                let rows = spec.in_row_order(piece, stored);
                let Some((experts, range)) = of_each else { return rows };
                let count = rows.len() / experts;
                let width = count / outputs_of(spec, piece, *experts);
                let of_expert = |rows: &[f32]| rows[range.start * width..range.end * width].to_vec();
                rows.chunks_exact(count).flat_map(of_expert).collect()
            }
        }
    }
}

/// Rows of each expert in a piece; of biases, their columns.
fn outputs_of(spec: &Spec, piece: &Piece, experts: usize) -> usize {
    match spec.role {
        Role::ExpertBiases { .. } => spec.cols,
        _ => piece.rows / experts,
    }
}

/// The names of parameters outside of layers and in them: our paths of the weight and of the bias, and the names of
/// their parts.
const NAMES: &[(&str, &str, &[&str])] = &[
    ("embedding", "", &["token_embd"]),
    ("positions", "", &["position_embd"]),
    ("embedding_norm", "embedding_norm_bias", &["token_embd_norm"]),
    ("norm", "norm_bias", &["output_norm"]),
    ("head", "head_bias", &["output"]),
    ("attention_norm", "attention_norm_bias", &["attn_norm"]),
    ("attention.wqkv", "attention.bqkv", &["attn_q", "attn_k", "attn_v"]),
    ("attention.q_norm", "attention.q_norm_bias", &["attn_q_norm"]),
    ("attention.k_norm", "attention.k_norm_bias", &["attn_k_norm"]),
    ("attention.sinks", "", &["attn_sinks"]),
    ("attention.wo", "attention.bo", &["attn_output"]),
    ("post_attention_norm", "", &["post_attention_norm"]),
    ("ffn_norm", "ffn_norm_bias", &["ffn_norm"]),
    ("post_ffn_norm", "", &["post_ffw_norm"]),
    ("feed_forward.w_gate_up", "feed_forward.b_gate_up", &["ffn_gate", "ffn_up"]),
    ("feed_forward.w_down", "feed_forward.b_down", &["ffn_down"]),
    ("feed_forward.router", "feed_forward.router_bias", &["ffn_gate_inp"]),
    ("feed_forward.experts.w_gate_up", "feed_forward.experts.b_gate_up", &["ffn_gate_exps", "ffn_up_exps"]),
    ("feed_forward.experts.w_down", "feed_forward.experts.b_down", &["ffn_down_exps"]),
    ("feed_forward.shared.w_gate_up", "", &["ffn_gate_shexp", "ffn_up_shexp"]),
    ("feed_forward.shared.w_down", "", &["ffn_down_shexp"]),
    ("feed_forward.shared.gate", "", &["ffn_gate_inp_shexp"]),
];

/// The names of the tensors that hold several of these as one.
const FUSED: [(&str, &str); 2] = [("attn_q", "attn_qkv"), ("ffn_gate", "ffn_up")];

/// The tensors of `model` in a file of `architecture`.
///
/// # Errors
/// A parameter that has no name there.
pub(crate) fn tensors(architecture: &Architecture, model: &ModelConfig) -> Result<Vec<GgufTensor>, String> {
    let model = &ModelConfig { low_rank: None, ..model.clone() };
    let mut tensors = Vec::new();
    for spec in Gpt::describe(model).into_iter().map(Rc::new) {
        tensors.extend(of_spec(architecture, model, &spec)?);
        if spec.role == Role::Embedding
            && model.tie_word_embeddings
            && architecture.row.is_tied == Some(false)
        {
            let embedding = of_spec(architecture, model, &spec)?;
            tensors.extend(
                embedding.into_iter().map(|head| GgufTensor { name: "output.weight".into(), ..head }),
            );
        }
    }
    let biased = model.mixture.as_ref().filter(|mixture| mixture.has_bias);
    for layer in biased.into_iter().flat_map(|_| model.mixture_layers()) {
        tensors.push(GgufTensor {
            name: format!("blk.{layer}.exp_probs_b.bias"),
            shape: vec![model.mixture.as_ref().map_or(0, |mixture| mixture.experts())],
            is_matrix: false,
            sources: vec![Source::Whole(selection_bias(model, layer))],
            offset: 0.0,
        });
    }
    tensors.extend(divisors_of_rotation(model).into_iter().map(|(name, divisors)| GgufTensor {
        name: name.to_string(),
        shape: vec![divisors.len()],
        is_matrix: false,
        sources: vec![Source::Values(divisors)],
        offset: 0.0,
    }));
    Ok(tensors)
}

/// The divisors of the frequencies of the rotation, where llama.cpp reads them from a tensor.
fn divisors_of_rotation(model: &ModelConfig) -> Vec<(&'static str, Vec<f32>)> {
    let layer = &model.layer;
    let rope = Rope { rotary_dim: layer.rotary_dim as u32, theta: layer.rope_theta, is_interleaved: false };
    match layer.rope_scaling {
        scaling @ RopeScaling::Llama3(_) => {
            let plain = RopeScaling::None.frequencies(&rope);
            let divisors =
                plain.iter().zip(scaling.frequencies(&rope)).map(|(plain, scaled)| (plain / scaled) as f32);
            vec![("rope_freqs.weight", divisors.collect())]
        }
        RopeScaling::LongRope(long) => {
            let names = ["rope_factors_short.weight", "rope_factors_long.weight"];
            let lists = long.divisors.map(|list| list.list().iter().map(|divisor| *divisor as f32).collect());
            names.into_iter().zip(lists).collect()
        }
        _ => Vec::new(),
    }
}

/// The tensors of a parameter.
fn of_spec(
    architecture: &Architecture,
    model: &ModelConfig,
    spec: &Rc<Spec>,
) -> Result<Vec<GgufTensor>, String> {
    let (layer, path) = match spec.path.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, path)) => (layer.parse::<usize>().ok(), path),
        None => (None, &*spec.path),
    };
    let known = NAMES.iter().find(|(weight, bias, _)| path == *weight || path == *bias && !bias.is_empty());
    let Some((weight, _, names)) = known else {
        return Err(format!(
            "has `{}`, for which llama.cpp's `{}` has no name",
            spec.path, architecture.row.architecture
        ));
    };
    let kind = if path == *weight { "weight" } else { "bias" };
    let named = |name: &str| {
        let name = architecture.row.names.get(name).map_or(name, String::as_str);
        let prefix = layer.map_or_else(String::new, |layer| format!("blk.{layer}."));
        format!("{prefix}{name}.{kind}")
    };
    let offset = if model.zero_centered_norms && path.ends_with("norm") { 1.0 } else { 0.0 };
    let tensor = |name: &str, shape: Vec<usize>, sources: Vec<Source>| GgufTensor {
        name: named(name),
        shape,
        is_matrix: matches!(
            spec.role,
            Role::Embedding | Role::Head | Role::Matrix | Role::ExpertStack { .. }
        ),
        sources,
        offset,
    };
    let (pieces, experts) = (&spec.pieces, spec.role.stacked_experts());
    let whole =
        |piece: &Piece| Source::Rows { spec: spec.clone(), piece: Box::new(piece.clone()), of_each: None };
    let gated = model.activation.gate().is_some();
    let names: Vec<&str> = if names.len() == 2 && !gated { names[1..].to_vec() } else { names.to_vec() };
    let parts = names.len();
    if let Some(experts) = experts {
        let rows: usize = match spec.role {
            Role::ExpertBiases { .. } => spec.cols,
            _ => pieces.iter().map(|piece| piece.rows).sum::<usize>() / experts,
        } / parts;
        let shape = match spec.role {
            Role::ExpertBiases { .. } => vec![experts, rows],
            _ => vec![experts, rows, spec.cols],
        };
        let of_part = |(part, name): (usize, &&str)| {
            let sources = match pieces.len() {
                1 => {
                    let of_each = Some((experts, part * rows..(part + 1) * rows));
                    vec![Source::Rows { spec: spec.clone(), piece: Box::new(pieces[0].clone()), of_each }]
                }
                _ => pieces.iter().skip(part).step_by(parts).map(whole).collect(),
            };
            tensor(name, shape.clone(), sources)
        };
        return Ok(names.iter().enumerate().map(of_part).collect());
    }
    let shape = |rows: usize| if spec.role.is_row() { vec![rows] } else { vec![rows, spec.cols] };
    // A shared expert whose gate and up are one tensor.
    if pieces.len() == 1 && parts == 2 && path.starts_with("feed_forward.shared") {
        let rows = pieces[0].rows / 2;
        let half = |(part, name): (usize, &&str)| {
            let of_each = Some((1, part * rows..(part + 1) * rows));
            tensor(
                name,
                shape(rows),
                vec![Source::Rows { spec: spec.clone(), piece: Box::new(pieces[0].clone()), of_each }],
            )
        };
        return Ok(names.iter().enumerate().map(half).collect());
    }
    let names = match FUSED.iter().find(|(first, _)| pieces.len() == 1 && parts > 1 && names[0] == *first) {
        Some((_, fused)) => vec![*fused],
        None => names,
    };
    // Norms without weights are not in files.
    if pieces.is_empty() {
        return Ok(Vec::new());
    }
    if names.len() != pieces.len() {
        return Err(format!("has `{}` in {} parts, which llama.cpp does not", spec.path, pieces.len()));
    }
    let of_piece = |(name, piece): (&&str, &Piece)| {
        let heads = heads_of(architecture, model, layer, name);
        let piece = Piece { heads, ..piece.clone() };
        tensor(name, shape(piece.rows), vec![whole(&piece)])
    };
    Ok(names.iter().zip(pieces).map(of_piece).collect())
}

/// The heads in the rows of q or k, if the file holds their dimensions in another order than a Hugging Face file.
fn heads_of(
    architecture: &Architecture,
    model: &ModelConfig,
    layer: Option<usize>,
    name: &str,
) -> Option<ReorderedHeads> {
    let LayerConfig { head_dim, rotary_dim, .. } = *model.layer(layer?);
    let is_reordered = architecture.row.rotates_pairs && !model.family.holds_pairs();
    (is_reordered && matches!(name, "attn_q" | "attn_k")).then_some(ReorderedHeads {
        order: HeadOrder::Halves,
        head_dim,
        rotary_dim,
    })
}
