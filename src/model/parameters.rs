//! The parameters of a model, enumerated once.
//!
//! [`Gpt::declare`] calls back with the [`Spec`] of every parameter, in the order in which the model uses them, and
//! fills the typed struct of the forward pass with the values that the callback returns. Arena layout, parameter
//! groups, initialisation, counting and checkpoints iterate over the same specs ([`Gpt::describe`]); none of them has a
//! list of its own.
//!
//! Arenas, and the random streams of initial weights, use the same order.

mod convolution;
mod feed_forward;
mod latent;
mod linear;
mod lora;
mod multi_token;
mod per_layer;
mod scope;
mod share;
mod spec;
#[cfg(test)]
pub(crate) mod tests;

pub use convolution::GatedConvolution;
pub use feed_forward::{
    DenseBesideExperts, DenseFeedForward, Experts, FeedForward, Mixture, Shared, XieluNumbers,
};
pub use latent::{Latent, LatentQueries};
pub use linear::LinearMixer;
pub(crate) use lora::{BASE_LAYER, MAGNITUDES, PEFT_PREFIX, adapted_module};
pub use lora::{ExpertLora, Lora, module_of};
pub use multi_token::MultiTokenBlock;
pub use per_layer::{LayerInput, PerLayer};
pub use share::{Applies, Repeated, Section, Share, Split, Strip};
pub use spec::{
    FactorStack, HeadOrder, Init, Piece, Place, ReorderedHeads, Role, RowGroups, Spec, Stack, UpdateRule,
};

use super::config::{Mixer, ModelConfig, NormPlacement, QkNorm, Values};
use super::names::{LAYER_SCALAR, PROJECT_IN, PROJECT_OUT};
use scope::{Scope, StackedRows, Streams};

/// A GPT shaped like Llama or GPT-2, with a `P` for each parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpt<P> {
    /// (V, D); of another width (V, E), as is the head then
    pub embedding: P,
    /// (positions, D), if positions are learned.
    pub positions: Option<P>,
    /// (D, E): leads from the embedding to the residual stream, if they differ in width.
    pub project_in: Option<Linear<P>>,
    /// The norm of the embedded tokens, if there is one.
    pub embedding_norm: Option<NormWeights<P>>,
    /// The embeddings of each layer, if there are some.
    pub per_layer: Option<PerLayer<P>>,
    /// The layers.
    pub blocks: Vec<Block<P>>,
    /// The norm before the head, or before the last layer if its queries are learned; `None` where norms stand after
    /// sums.
    pub norm: Option<NormWeights<P>>,
    /// (E, D): leads from the residual stream to the width of the head's table.
    pub project_out: Option<Linear<P>>,
    /// (V, D); `None` if tied to the embedding.
    pub head: Option<P>,
    /// (V), added to the logits, if the head has a bias.
    pub head_bias: Option<P>,
    /// The blocks of multi-token prediction: number i predicts i + 1 tokens further than the model.
    pub multi_token: Vec<MultiTokenBlock<P>>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Block<P> {
    /// The norm before attention, or after the sum with it, if there is one.
    pub attention_norm: Option<NormWeights<P>>,
    /// Attention.
    pub attention: TokenMixer<P>,
    /// (D): the norm of attention's output, if there is one.
    pub post_attention_norm: Option<P>,
    /// The norm before the feed-forward network, or after the sum with it, if there is one.
    pub ffn_norm: Option<NormWeights<P>>,
    /// A dense network, a mixture of experts, or both.
    pub feed_forward: FeedForward<P>,
    /// (D): the norm of the feed-forward network's output, if there is one.
    pub post_ffn_norm: Option<P>,
    /// What adds the layer's own embeddings, if it has some.
    pub input: Option<LayerInput<P>>,
    /// (1): the factor of the layer's result, if it has one. It does not train.
    pub scalar: Option<P>,
}

/// Attention by softmax, linear attention, or a convolution.
#[derive(Clone, Debug, PartialEq)]
pub enum TokenMixer<P> {
    /// The softmax of scores weighs all tokens that a token sees.
    Softmax(SelfAttention<P>),
    /// A state holds what earlier tokens wrote.
    Linear(LinearMixer<P>),
    /// A sum over the last tokens, between gates.
    Convolution(GatedConvolution<P>),
}

/// Attention of H query heads and G key-value heads of C dimensions, whose values have V, usually as many.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfAttention<P> {
    /// q, k and v as one product, ((H + G)·C + G·V, D), or their latent parts. If there are `queries`, only k and v: (2
    /// G·C, D). Of a layer that reads the keys and values of another, only q: (H·C, D). Before q come the gates of the
    /// output, (H·C, D) more, in models that have them.
    pub wqkv: Linear<P>,
    /// Queries that do not come from the layer's input.
    pub queries: Option<LearnedQueries<P>>,
    /// The parameters that turn latent parts into heads.
    pub latent: Option<Latent<P>>,
    /// QK-norm, in models that have it.
    pub qk_norm: Option<HeadNorms<P>>,
    /// (H): a logit of each head in the softmax of attention, if there are sinks.
    pub sinks: Option<P>,
    /// (D, H·V)
    pub wo: Linear<P>,
}

/// The norms of query and key heads.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadNorms<P> {
    /// (C), for all query heads; (H·C) if these are normalised together, or each has a weight of its own.
    pub q: P,
    /// (C), for all key heads, or (G·C); `None` in a layer that reads the keys of another.
    pub k: Option<P>,
    /// (C) each, for all query heads and all key heads, in a LayerNorm that they share.
    pub biases: Option<[P; 2]>,
}

/// Queries that are projected from the rows of a table, by position.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnedQueries<P> {
    /// (positions, D)
    pub table: P,
    /// (H·C, D)
    pub wq: Linear<P>,
}

/// x Wᵀ + b, plus the adapters' output.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear<P> {
    /// (out, in)
    pub weight: P,
    /// (out)
    pub bias: Option<P>,
    /// Adapters of the maps that W stacks, or of some of them.
    pub lora: Option<Lora<P>>,
}

/// RMSNorm or LayerNorm; only a LayerNorm may have a bias.
#[derive(Clone, Debug, PartialEq)]
pub struct NormWeights<P> {
    /// (D)
    pub weight: P,
    /// (D)
    pub bias: Option<P>,
}

impl Gpt<Spec> {
    /// The parameters of the model of `config`, in order.
    pub fn describe(config: &ModelConfig) -> Vec<Spec> {
        let mut specs = Vec::new();
        Gpt::declare(config, &mut |spec| specs.push(spec));
        specs
    }
}

/// The enumeration. The fields of a struct expression are evaluated in the order in which they are written, so this is
/// also the order of parameters in arenas and checkpoints, and determines the number of each one's random stream.
///
/// Matrices start normal with `init_std`; those that write into the residual stream (wo, w_down) with `init_std /
/// sqrt(2 L)`, so that its variance does not grow with depth (Radford et al., GPT-2, 2019). Routers have a standard
/// deviation of their own.
impl<P> Gpt<P> {
    /// The mixtures of experts, each with the number of its layer; blocks of multi-token prediction are numbered after
    /// the last layer.
    pub(crate) fn mixtures(&mut self) -> impl Iterator<Item = (usize, &mut Mixture<P>)> {
        let ahead = self.multi_token.iter_mut().map(|ahead| &mut ahead.block);
        let blocks = self.blocks.iter_mut().chain(ahead).enumerate();
        blocks.filter_map(|(layer, block)| match &mut block.feed_forward {
            FeedForward::Mixture(mixture) => Some((layer, mixture)),
            FeedForward::Both(both) => Some((layer, &mut both.mixture)),
            FeedForward::Dense(_) => None,
        })
    }

    /// Declares every parameter of the model of `config`, in order; `make` makes the value for each.
    pub fn declare(config: &ModelConfig, make: &mut dyn FnMut(Spec) -> P) -> Self {
        let mut streams = Streams::default();
        let mut model = Scope::model(config, make, &mut streams);
        let (names, vocab_size) = (model.names, config.vocab_size);
        let (layers, depth) = (config.num_layers, config.multi_token.map_or(0, |ahead| ahead.depth));
        let embedding = if config.tie_word_embeddings || depth > 0 { Place::Ends } else { Place::Start };
        // The norm before learned queries is read where they are.
        let end = match config.learns_queries() {
            true => Place::Layer(layers.saturating_sub(1)),
            false => Place::End,
        };
        let embedding = model.at(embedding).table(Role::Embedding, "embedding", names.embedding, vocab_size);
        let positions = |model: &mut Scope<'_, P>, path, name| {
            model.table(Role::Positions, path, name, config.max_positions + config.skipped_positions())
        };
        let learned = config.learns_positions();
        let learned = learned.then(|| positions(model.at(Place::Start), "positions", names.positions));
        let mut queries = config.learns_queries().then(|| positions(model.at(end), "queries", names.queries));
        Self {
            embedding,
            positions: learned,
            project_in: config.embedding_width.map(|width| {
                let rows = StackedRows::new([PROJECT_IN], &[config.hidden_size]);
                let paths = ["project_in", "project_in_bias"];
                model.at(Place::Start).linear(paths, &rows, width, config.init_std, false)
            }),
            embedding_norm: config.embedding_norm.then(|| {
                model.at(Place::Start).norm(["embedding_norm", "embedding_norm_bias"], names.embedding_norm)
            }),
            per_layer: config
                .per_layer_width
                .map(|width| PerLayer::declare(model.at(Place::Start), layers, width)),
            blocks: (0..layers)
                .map(|layer| {
                    let table = queries.take_if(|_| config.layer(layer).has_query_table);
                    Block::declare(&mut model.layer(layer), table)
                })
                .collect(),
            norm: (config.norm_placement != NormPlacement::AfterSum)
                .then(|| model.at(end).norm(["norm", "norm_bias"], names.norm)),
            project_out: config.embedding_width.map(|width| {
                let rows = StackedRows::new([PROJECT_OUT], &[width]);
                let paths = ["project_out", "project_out_bias"];
                model.at(Place::End).linear(paths, &rows, config.hidden_size, config.init_std, false)
            }),
            head: (!config.tie_word_embeddings)
                .then(|| model.at(Place::End).table(Role::Head, "head", names.head, vocab_size)),
            head_bias: config.head_bias.then(|| model.at(Place::End).head_bias("head_bias", names.head)),
            multi_token: (layers..layers + depth)
                .map(|layer| MultiTokenBlock::declare(&mut model.layer(layer)))
                .collect(),
        }
    }
}

impl<P> Block<P> {
    /// A layer, whose queries are projected from `queries` if there is such a table.
    fn declare(layer: &mut Scope<'_, P>, queries: Option<P>) -> Self {
        let (names, width) = (layer.names, layer.config.hidden_size);
        let is_after = layer.config.norm_placement.is_after();
        let norm =
            |layer: &mut Scope<'_, P>, is_there: bool, paths, name| is_there.then(|| layer.norm(paths, name));
        let (has_attention_norm, has_ffn_norm) =
            (layer.config.has_layer_norms(), layer.config.has_ffn_norm());
        let after =
            |layer: &mut Scope<'_, P>, path, name| is_after.then(|| layer.norm_weight(path, name, width));
        Self {
            attention_norm: norm(
                layer,
                has_attention_norm,
                ["attention_norm", "attention_norm_bias"],
                names.attention_norm,
            ),
            attention: match &layer.layer_config().mixer {
                Mixer::Softmax => TokenMixer::Softmax(SelfAttention::declare(layer, queries)),
                Mixer::Linear(sizes) => TokenMixer::Linear(LinearMixer::declare(layer, sizes)),
                Mixer::Convolution { width } => {
                    TokenMixer::Convolution(GatedConvolution::declare(layer, *width))
                }
            },
            post_attention_norm: after(layer, "post_attention_norm", names.post_attention_norm),
            ffn_norm: norm(layer, has_ffn_norm, ["ffn_norm", "ffn_norm_bias"], names.ffn_norm),
            feed_forward: FeedForward::declare(layer),
            post_ffn_norm: after(layer, "post_ffn_norm", names.post_ffn_norm),
            input: layer.config.per_layer_width.map(|width| LayerInput::declare(layer, width)),
            scalar: layer.config.has_layer_scalars.then(|| layer.constant("scalar", LAYER_SCALAR)),
        }
    }
}

impl<P> SelfAttention<P> {
    fn declare(layer: &mut Scope<'_, P>, queries: Option<P>) -> Self {
        let (config, own, names) = (layer.config, layer.layer_config(), layer.names);
        let (width, head_dim) = (config.hidden_size, own.head_dim);
        let (latent, gate) = (config.latent, usize::from(config.attention_gate));
        let (std, residual_std) = (config.init_std, config.residual_init_std());
        let (heads, kv_heads, value_dim) = (config.num_heads, own.num_kv_heads, config.value_dim(own));
        let q_rows = heads * head_dim;
        let sizes = [(1 + gate) * q_rows, kv_heads * head_dim, kv_heads * value_dim];
        let mut qkv_names = names.qkv.iter().copied();
        let units = [heads, kv_heads, kv_heads];
        let own_q =
            queries.map(|table| (table, StackedRows::new(qkv_names.next(), &[q_rows]).divided(&[heads])));
        // Without q if that is projected from a table, without v if that is of the keys, q alone if both are another
        // layer's.
        let first = usize::from(own_q.is_some());
        let end = match (own.kv_source, own.values) {
            (Some(_), _) => 1,
            (None, Values::OfKeys) => 2,
            (None, Values::Plain | Values::Normalised) => 3,
        };
        let qkv = match &latent {
            Some(latent) => latent::down_rows(latent, config.num_heads),
            None => StackedRows::new(qkv_names.take(end - first), &sizes[first..end])
                .divided(&units[first..end])
                .with_heads(layer.reordered_heads(), 2)
                .in_groups(match (names.has_fused_heads, config.attention_gate) {
                    (true, _) => vec![RowGroups::of_heads(config, own)],
                    // Files hold each query beside its gate.
                    (false, true) => {
                        vec![RowGroups { groups: heads, rows: [head_dim, head_dim, 0, 0], is_reversed: true }]
                    }
                    (false, false) => Vec::new(),
                }),
        };
        let values = heads * value_dim;
        let out = StackedRows::new([names.wo], &[width]).of_columns(values, heads);
        let (wqkv, wo) = (["attention.wqkv", "attention.bqkv"], ["attention.wo", "attention.bo"]);
        let head_norm =
            |layer: &mut Scope<'_, P>, path: &str, name: &str, count: usize| match config.qk_norm_kind {
                QkNorm::AllHeads => layer.head_norm(path, name, count),
                QkNorm::LayerNormByHead => layer.norms_by_head(path, name, count),
                QkNorm::Heads | QkNorm::RotatedHeads | QkNorm::LayerNorm => layer.head_norm(path, name, 1),
            };
        let has_biases = config.qk_norm_kind == QkNorm::LayerNorm;
        Self {
            wqkv: layer.linear(wqkv, &qkv, width, std, config.qkv_bias),
            queries: own_q.map(|(table, rows)| LearnedQueries {
                table,
                wq: layer.linear(["attention.wq", "attention.bq"], &rows, width, std, config.qkv_bias),
            }),
            latent: latent.map(|latent| Latent::declare(layer, &latent)),
            qk_norm: config.qk_norm.then(|| HeadNorms {
                q: head_norm(layer, "attention.q_norm", names.q_norm, heads),
                k: own
                    .kv_source
                    .is_none()
                    .then(|| head_norm(layer, "attention.k_norm", names.k_norm, kv_heads)),
                biases: has_biases.then(|| {
                    [("attention.q_norm_bias", names.q_norm), ("attention.k_norm_bias", names.k_norm)]
                        .map(|(path, name)| layer.head_norm_bias(path, name))
                }),
            }),
            sinks: own.has_sinks.then(|| layer.sinks("attention.sinks", names.sinks, heads)),
            wo: layer.linear(wo, &out, values, residual_std, config.output_bias),
        }
    }
}
