//! The resolved configuration of a model.

mod factors;
mod latent;
mod layer;
mod linear;
mod low_rank;
mod mixture;
mod operator;

pub use factors::Factors;
pub use latent::{LatentAttention, LatentRotation};
pub(crate) use layer::kv_source;
pub use layer::{LayerConfig, Mixer, Rotary};
pub use linear::LinearAttention;
pub use low_rank::{FactorInit, LowRank, Magnitudes};
pub use mixture::{
    BalanceLosses, Capacity, HotExperts, MixtureConfig, MultiToken, SharedExpert, TokenDispatch,
};

pub use operator::{Feature, Operator};

pub use crate::ops::gelu::Gelu;
pub use crate::ops::heads::WIDEST_HEAD;
pub use crate::ops::permute::DropOrder;
pub use crate::ops::qk_norm::Values;
pub use crate::ops::rope_scaling::{Divisors, Llama3, LongRope, QueryScaling, RopeScaling, Yarn};
pub use crate::ops::route::{ExpertGroups, GateNorm, GroupScore, RouterConfig, Score};
pub use crate::ops::swiglu::Gate;

use crate::element::Element;
use crate::ops::heads::HeadLayout;
use crate::ranks::RankLayout;

/// A decoder: sizes and options of its layers, loss and initialisation.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The published family whose names and tensor layouts checkpoints use.
    pub family: Family,
    /// Size of the vocabulary (V).
    pub vocab_size: usize,
    /// Width of the residual stream (D).
    pub hidden_size: usize,
    /// Number of blocks (L).
    pub num_layers: usize,
    /// Query heads (H).
    pub num_heads: usize,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// Tokens in a window (T).
    pub seq_length: usize,
    /// Largest number of positions, at least `seq_length`: rows of a learned table of positions.
    pub max_positions: usize,
    /// Encoding of positions.
    pub positions: Positions,
    /// What the keys of the model say of all layers, and what layers are, except for those of `other_layers`.
    pub layer: LayerConfig,
    /// The layers that are otherwise: each kind with the numbers of its layers, ascending. Most models have none.
    pub other_layers: Vec<(LayerConfig, Vec<usize>)>,
    /// Factors of its activations.
    pub factors: Factors,
    /// The norm of attention, feed-forward network and head.
    pub norm: Norm,
    /// Whether a LayerNorm has a bias.
    pub norm_bias: bool,
    /// Whether norms have a weight; without one they only normalise, as in OLMo.
    pub norm_weight: bool,
    /// Where the norms of a layer stand. That of the head, if there is one, stands before it.
    pub norm_placement: NormPlacement,
    /// Whether attention and feed-forward network stand beside each other, both reading the residual stream before the
    /// layer; `None`: the feed-forward network reads it after attention.
    pub parallel_residual: Option<ParallelResidual>,
    /// Added to the mean square or the variance in norms.
    pub norm_eps: f64,
    /// Whether every norm multiplies by 1 + w instead of w, as in Gemma. A weight then decays to the plain norm, and
    /// keeps its precision in 16 bits.
    pub zero_centered_norms: bool,
    /// Whether the head shares the embedding's weights.
    pub tie_word_embeddings: bool,
    /// Multi-head latent attention: q, k and v come from shared latent vectors. `head_dim` of each layer is then the
    /// width of a query and a key, `rotary_dim` that of their rotating part, and every query head has its own key and
    /// value head.
    pub latent: Option<LatentAttention>,
    /// Added to the mean square in the norms of latent vectors; `None`: `norm_eps`.
    pub latent_norm_eps: Option<f64>,
    /// Width of a value where it is another than that of a key, without latent attention; `None`: `head_dim` of its
    /// layer. Values are plain then, and the output of attention has no gate.
    pub value_head_dim: Option<usize>,
    /// Whether the q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub output_bias: bool,
    /// Whether the first projections of a feed-forward network have a bias: gate and up of a dense network, or up if
    /// there is no gate.
    pub gate_up_bias: bool,
    /// Whether the last projection of a feed-forward network has a bias; in experts with a gate it has none.
    pub down_bias: bool,
    /// Whether each element of attention's output is multiplied by the sigmoid of a gate, projected beside its query
    /// (Qiu et al., "Gated Attention for Large Language Models", 2025, as in Qwen3-Next).
    pub attention_gate: bool,
    /// Whether the head has a bias, as in GPT-J.
    pub head_bias: bool,
    /// Whether q and k are normalised.
    pub qk_norm: bool,
    /// How they are.
    pub qk_norm_kind: QkNorm,
    /// Whether the embedded tokens are normalised before the first layer.
    pub embedding_norm: bool,
    /// Whether the result of each layer is multiplied by a number of its own, which does not train, as in Gemma 4.
    pub has_layer_scalars: bool,
    /// Width of the embeddings that each layer has of its own (P), a multiple of 4, as in Gemma 3n and 4; `None`: there
    /// are none.
    pub per_layer_width: Option<usize>,
    /// Added to the squared length of each row of the head; the row is divided by the root of the sum (Baichuan 2, Yang
    /// et al. 2023, section 2.3). `None`: rows are not divided.
    pub head_epsilon: Option<f64>,
    /// Width of the embedding and of the head's table where it is another than D (E): projections lead to D after the
    /// embedding and back before the head, as in OPT of 350M.
    pub embedding_width: Option<usize>,
    /// What queries, keys and values are clipped to before the rotation, between minus and plus this, as in OLMo 1;
    /// `None`: they are not. Not with latent attention, nor with norms of rotated heads.
    pub clip_qkv: Option<f64>,
    /// Soft cap c of the attention scores: c · tanh(score / c) (Gemma 2, 2024, section 2).
    pub score_cap: Option<f64>,
    /// Soft cap of the logits.
    pub logit_cap: Option<f64>,
    /// Dropout probability of the attention weights.
    pub attention_dropout: f64,
    /// Dropout probability of the outputs of attention and feed-forward network.
    pub hidden_dropout: f64,
    /// Dropout probability of the embedded tokens.
    pub embedding_dropout: f64,
    /// Standard deviation of initial matrices; some of them have [`residual_init_std`](Self::residual_init_std).
    pub init_std: f64,
    /// Storage type of activations and of the weights that layers compute with. Sums, master weights and routers are
    /// f32.
    pub compute: Element,
    /// Target id that the loss ignores; `u32::MAX`, which is not a token, for a negative id.
    pub ignore_id: u32,
    /// The mixture of experts that replaces the feed-forward network in most layers; `None` for a dense model.
    pub mixture: Option<MixtureConfig>,
    /// Multi-token prediction.
    pub multi_token: Option<MultiToken>,
    /// Low-rank adapters; only they train.
    pub low_rank: Option<LowRank>,
    /// Activations that training computes again in the backward pass.
    pub recomputed: Recomputed,
}

/// Activations that training does not keep but computes again in the backward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recomputed {
    /// Whole layers, by number, ascending. Numbers from `num_layers` on are blocks of multi-token prediction.
    pub layers: Vec<usize>,
    /// Operators of other layers, each with the numbers of its layers, ascending.
    pub operators: Vec<(Operator, Vec<usize>)>,
    /// Whether ranks that share matrices keep what they exchanged, instead of exchanging it again.
    pub keeps_exchanged: bool,
    /// Whether each of these ranks keeps only its own rows of a layer's input, and gathers the others to compute the
    /// layer again.
    pub keeps_slices: bool,
}

impl Recomputed {
    /// Whether the launches at `path` below layer number `layer` are computed again.
    pub fn covers(&self, layer: usize, path: &str) -> bool {
        let has = |layers: &[usize]| layers.binary_search(&layer).is_ok();
        has(&self.layers)
            || self.operators.iter().any(|(operator, layers)| operator.covers(path) && has(layers))
    }

    /// Whether nothing is computed again.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.operators.is_empty()
    }
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Size of the vocabulary (V).
    pub vocab_size: usize,
    /// Width of the residual stream (D).
    pub hidden_size: usize,
    /// Number of blocks (L).
    pub num_layers: usize,
    /// Query heads and key-value heads (H).
    pub num_heads: usize,
    /// Inner width of the feed-forward network (F).
    pub intermediate_size: usize,
    /// Tokens in a window (T).
    pub seq_length: usize,
}

impl ModelConfig {
    /// A Llama of these sizes: RMSNorm, rotary positions, SwiGLU, an untied head, no biases (Touvron et al., 2023).
    /// Other options can be changed in the result.
    pub fn llama(sizes: Sizes) -> Self {
        let Sizes { vocab_size, hidden_size, num_layers, num_heads, intermediate_size, seq_length } = sizes;
        let head_dim = hidden_size.checked_div(num_heads).unwrap_or(0);
        Self {
            family: Family::Llama,
            vocab_size,
            hidden_size,
            num_layers,
            num_heads,
            activation: Activation::Gated(Gate::Silu),
            seq_length,
            max_positions: seq_length,
            positions: Positions::Rotary,
            layer: LayerConfig {
                num_kv_heads: num_heads,
                head_dim,
                values: Values::Plain,
                kv_source: None,
                intermediate_size,
                sliding_window: None,
                wide_window: None,
                rotates: true,
                rope_theta: 10_000.0,
                rope_scaling: RopeScaling::None,
                rotary_dim: head_dim,
                rotary_interleaved: false,
                query_scaling: None,
                has_query_table: false,
                has_sinks: false,
                mixer: Mixer::Softmax,
            },
            other_layers: Vec::new(),
            factors: Factors::default(),
            norm: Norm::RmsNorm,
            norm_bias: true,
            norm_weight: true,
            norm_placement: NormPlacement::Before,
            parallel_residual: None,
            norm_eps: 1e-5,
            zero_centered_norms: false,
            tie_word_embeddings: false,
            latent: None,
            latent_norm_eps: None,
            value_head_dim: None,
            qkv_bias: false,
            output_bias: false,
            gate_up_bias: false,
            down_bias: false,
            attention_gate: false,
            head_bias: false,
            qk_norm: false,
            qk_norm_kind: QkNorm::Heads,
            embedding_norm: false,
            has_layer_scalars: false,
            per_layer_width: None,
            head_epsilon: None,
            embedding_width: None,
            clip_qkv: None,
            score_cap: None,
            logit_cap: None,
            attention_dropout: 0.0,
            hidden_dropout: 0.0,
            embedding_dropout: 0.0,
            init_std: 0.02,
            compute: Element::F32,
            ignore_id: u32::MAX,
            mixture: None,
            multi_token: None,
            low_rank: None,
            recomputed: Recomputed::default(),
        }
    }

    /// A GPT-2 of these sizes: LayerNorm, learned positions, GELU, biases, a head tied to the embedding (Radford et
    /// al., 2019).
    pub fn gpt2(sizes: Sizes) -> Self {
        Self {
            family: Family::Gpt2,
            activation: Activation::Gelu(Gelu::Tanh),
            positions: Positions::Learned,
            norm: Norm::LayerNorm,
            tie_word_embeddings: true,
            qkv_bias: true,
            output_bias: true,
            gate_up_bias: true,
            down_bias: true,
            ..Self::llama(sizes)
        }
    }

    /// The model that each tensor-parallel rank of `layout` computes: with its part of the heads and of the inner
    /// widths. If there are fewer key and value heads than ranks, they are repeated. Sizes that do not divide evenly
    /// are rounded down.
    pub(crate) fn on_matrix_ranks(&self, layout: &RankLayout) -> Self {
        let ranks = layout.model;
        let mut part = Self {
            vocab_size: self.vocab_size / if layout.shares_vocabulary { ranks } else { 1 },
            num_heads: self.num_heads / ranks,
            ..self.clone()
        }
        .with_layers(|layer| {
            layer.num_kv_heads = (layer.num_kv_heads / ranks).max(1);
            layer.intermediate_size /= ranks;
        });
        if let Some(mixture) = &mut part.mixture {
            mixture.intermediate_size /= ranks;
            if let Some(shared) = &mut mixture.shared {
                shared.intermediate_size /= ranks;
            }
        }
        part
    }

    /// The mixture of experts of layer number `layer`, counted from 0, unless that layer is dense. Numbers from
    /// `num_layers` on are blocks of multi-token prediction.
    pub(crate) fn mixture_of(&self, layer: usize) -> Option<&MixtureConfig> {
        self.mixture.as_ref().filter(|_| self.mixture_layers().contains(&layer))
    }

    /// The packed layout of queries, keys and values in `layer`.
    pub(crate) fn head_layout(&self, layer: &LayerConfig) -> HeadLayout {
        HeadLayout {
            heads: self.num_heads as u32,
            kv_heads: layer.num_kv_heads as u32,
            head_dim: layer.head_dim as u32,
            value_dim: self.value_dim(layer) as u32,
        }
    }

    /// Columns of the product that attention in `layer` starts with.
    pub(crate) fn projected_cols(&self, layer: &LayerConfig) -> usize {
        match layer.mixer {
            Mixer::Softmax => {}
            Mixer::Linear(linear) => return linear.parts().iter().sum::<u32>() as usize,
            Mixer::Convolution { .. } => return 3 * self.hidden_size,
        }
        let layout = self.head_layout(layer);
        let gates = if self.attention_gate { layout.q_cols() } else { 0 };
        self.latent.map_or((layout.cols() + gates) as usize, |latent| latent.down_cols(self.num_heads))
    }

    /// Width of a value in `layer`.
    pub fn value_dim(&self, layer: &LayerConfig) -> usize {
        self.latent.map(|latent| latent.value_dim).or(self.value_head_dim).unwrap_or(layer.head_dim)
    }

    /// Factor of the attention scores in `layer`: 1 / √head_dim where [`Factors`] have none. With latent attention
    /// under YaRN it is multiplied by m(mscale_all_dim)², as the published code of DeepSeek-V2 has it.
    pub fn softmax_scale(&self, layer: &LayerConfig) -> f32 {
        if let Some(factor) = self.factors.scores {
            return factor as f32;
        }
        let stretch = match layer.rope_scaling {
            RopeScaling::Yarn(yarn) if self.latent.is_some() => yarn.m(yarn.mscale_all_dim).powi(2),
            _ => 1.0,
        };
        stretch as f32 / (layer.head_dim as f32).sqrt()
    }

    /// Whether training drops anything.
    pub(crate) fn has_dropout(&self) -> bool {
        let of_adapters = self.low_rank.as_ref().map_or(0.0, |low_rank| low_rank.dropout);
        let shares = [self.attention_dropout, self.hidden_dropout, self.embedding_dropout, of_adapters];
        shares.iter().any(|share| *share > 0.0)
    }

    /// Standard deviation of the initial matrices that write into the residual stream: `init_std / sqrt(2 L)`.
    pub fn residual_init_std(&self) -> f64 {
        self.init_std / (2.0 * self.num_layers as f64).sqrt()
    }

    /// Whether norms of a layer stand elsewhere than after a sublayer, where those of its output do.
    pub(crate) fn has_layer_norms(&self) -> bool {
        self.norm_placement != NormPlacement::After
    }

    /// Whether a norm of its own stands before the feed-forward network, or after the sum with it.
    pub(crate) fn has_ffn_norm(&self) -> bool {
        self.has_layer_norms() && self.parallel_residual != Some(ParallelResidual::OneNorm)
    }

    /// Rows at the start of the table of learned positions that belong to none.
    pub(crate) fn skipped_positions(&self) -> usize {
        if self.family == Family::Opt { 2 } else { 0 }
    }

    /// Whether positions come from a learned table. Its gradient needs the tokens sorted by position.
    pub(crate) fn learns_positions(&self) -> bool {
        self.positions == Positions::Learned
    }
}

/// The published family that a checkpoint can be loaded as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Family {
    /// Llama and Qwen (Touvron et al., 2023).
    #[default]
    Llama,
    /// GPT-2 (Radford et al., 2019).
    Gpt2,
    /// Bloom (Scao et al., 2022).
    Bloom,
    /// Baichuan (Yang et al., 2023): Llama's names, but one matrix for q, k and v.
    Baichuan,
    /// StarCoder and WizardCoder (Li et al., 2023), which the library calls GPTBigCode: GPT-2's names, not transposed.
    BigCode,
    /// PanGu-α (Zeng et al., 2021).
    Pangu,
    /// OPT (Zhang et al., 2022): the table of positions begins with two rows that are of none.
    Opt,
    /// GLM (Zeng et al., 2024): gate and up are one tensor, and heads are in the order of interleaved pairs. Needs F to
    /// be a multiple of 4.
    Glm,
    /// Phi-3 and Phi-4 (Abdin et al., 2024): q, k and v are one tensor, gate and up another. Needs F to be a multiple
    /// of 4.
    Phi3,
    /// ERNIE 4.5 (Baidu, 2025): Llama's names, and heads in the order of interleaved pairs; in mixtures a module that
    /// holds the bias of the choice.
    Ernie45,
    /// Helium (Kyutai, 2025): names and order of heads as for ERNIE.
    Helium,
    /// Mixtures of Granite (IBM, 2024): all experts are one tensor, gate and up of each together. Needs the widths of
    /// experts and of the shared expert to be multiples of 4.
    GraniteMoe,
    /// GPT-NeoX (Black et al., 2022): q, k and v are one tensor, head by head.
    GptNeoX,
    /// Falcon (Almazrouei et al., 2023): q, k and v are one tensor, group by group of heads.
    Falcon,
    /// GPT-J (Wang and Komatsuzaki, 2021): heads in the order of interleaved pairs.
    GptJ,
    /// Phi-1 and Phi-2 (Gunasekar et al., 2023).
    Phi,
    /// MPT (MosaicML, 2023): q, k and v are one tensor.
    Mpt,
    /// nanochat (Karpathy, 2025): heads rotate backwards.
    NanoChat,
    /// Command R (Cohere, 2024): Llama's names, and heads in the order of interleaved pairs.
    Cohere,
    /// gpt-oss (OpenAI, 2025): attention has sinks, router and experts have biases, and each projection of all experts
    /// is one tensor. Needs widths of experts that are multiples of 4.
    GptOss,
    /// Qwen3-Next (Alibaba, 2025): Llama's names, and linear attention whose tensors hold key heads one by one.
    Qwen3Next,
    /// LFM2 (Liquid AI, 2025): gated short convolutions in most layers.
    Lfm2,
}

impl QkNorm {
    /// Whether it is a LayerNorm.
    pub fn is_layer_norm(self) -> bool {
        matches!(self, Self::LayerNorm | Self::LayerNormByHead)
    }
}

impl Family {
    /// Whether the family's files hold heads in the order of interleaved pairs, which is the order in which they
    /// rotate.
    pub fn holds_pairs(self) -> bool {
        matches!(self, Self::Glm | Self::Ernie45 | Self::Helium | Self::Cohere | Self::GptJ)
    }
}

/// The kind of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// By the root mean square; with a weight (Zhang and Sennrich, 2019).
    RmsNorm,
    /// By mean and standard deviation; with a weight and, in most models, a bias (Ba, Kiros and Hinton, 2016).
    LayerNorm,
}

/// Where the norms of a layer stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before attention and feed-forward network: x + f(norm(x)).
    #[default]
    Before,
    /// After them, before they are added: x + norm(f(x)), as in OLMo 2.
    After,
    /// Both: x + norm(f(norm(x))), as in Gemma 2 and GLM-4-0414.
    Both,
    /// After the sum: norm(x + f(x)), as in the first transformer (Vaswani et al., 2017) and in OPT of 350M. No norm
    /// stands before the head.
    AfterSum,
}

impl NormPlacement {
    /// Whether a norm stands before each of the two.
    pub fn is_before(self) -> bool {
        matches!(self, Self::Before | Self::Both)
    }

    /// Whether a norm stands after each of the two.
    pub fn is_after(self) -> bool {
        matches!(self, Self::After | Self::Both)
    }
}

/// What attention and feed-forward network read where they stand beside each other (Wang and Komatsuzaki, GPT-J, 2021).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParallelResidual {
    /// x + attention(norm₁(x)) + f(norm₂(x)), as in GPT-NeoX.
    TwoNorms,
    /// x + attention(norm(x)) + f(norm(x)), as in GPT-J and Command R.
    OneNorm,
}

/// How q and k are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QkNorm {
    /// Head by head, before the rotation, as in Qwen3.
    #[default]
    Heads,
    /// All heads of q together and all of k, before the rotation, as in OLMo 2.
    AllHeads,
    /// Head by head, after the rotation, as in Hunyuan.
    RotatedHeads,
    /// Head by head by LayerNorm, before the rotation, with a weight and a bias that all heads share, as in Phi.
    LayerNorm,
    /// The same with a weight of each head and no bias, as in StableLM 2 of 12B and Command R+.
    LayerNormByHead,
}

/// Activation of the feed-forward network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// activation(gate) · up of two projections: SwiGLU or GeGLU.
    Gated(Gate),
    /// x · Φ(x) of one projection.
    Gelu(Gelu),
    /// xIELU of one projection, of dense layers alone, as in Apertus.
    Xielu,
}

impl Default for Activation {
    /// SwiGLU.
    fn default() -> Self {
        Self::Gated(Gate::Silu)
    }
}

impl Activation {
    /// Whether it is ReLU or a power of it, without a gate.
    pub(crate) fn is_rectified(self) -> bool {
        matches!(self, Self::Gelu(unit) if unit.is_rectified())
    }

    /// The activation of the gate, if there is one.
    pub fn gate(self) -> Option<Gate> {
        match self {
            Self::Gated(gate) => Some(gate),
            Self::Gelu(_) | Self::Xielu => None,
        }
    }
}

/// Encoding of positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// Rotary embedding of q and k.
    Rotary,
    /// A learned table of `max_positions` rows, added to the embedded tokens.
    Learned,
    /// Scores of attention fall with the distance between query and key (ALiBi, Press et al. 2022).
    Alibi,
}
