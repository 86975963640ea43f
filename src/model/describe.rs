//! From the shape of a model to its parameters: sizes, first values, and the names files know them by.

use super::config::{ModelConfig, Norm, Positions};
use super::names::Names;
use super::parameters::{Block, FeedForward, Gpt, Init, Piece, Spec, UpdateRule};

mod feed_forward;
mod multi_token;

impl Gpt<Spec> {
    /// The parameters of a model of that shape.
    ///
    /// Matrices start normal with `init_std`; those that write into the residual stream (wo, w_down) with
    /// `init_std / sqrt(2 L)`, so that the stream's variance does not grow with depth (Radford et al., GPT-2, 2019). Routers
    /// have a deviation of their own.
    pub fn describe(config: &ModelConfig) -> Self {
        let names = Names::of(config.family);
        let (vocab, width) = (config.vocab_size, config.hidden_size);
        let table = |path: &str, name: &str, rows: usize| {
            let pieces = vec![piece(format!("{name}.weight"), 0, rows)];
            Spec { split_rows: Some(4), ..matrix(path.into(), rows, width, config.init_std, pieces) }
        };
        let positions = match config.positions {
            Positions::Rotary => None,
            Positions::Learned => Some(table("positions", names.positions, config.max_positions)),
        };
        Self {
            embedding: table("embedding", names.embedding, vocab),
            positions,
            blocks: (0..config.num_layers).map(|layer| Block::describe(config, layer)).collect(),
            norm: norm("norm".into(), names.norm, width),
            norm_bias: norm_bias(config, "norm_bias".into(), names.norm),
            head: (!config.tie_word_embeddings).then(|| table("head", names.head, vocab)),
            multi_token: multi_token::describe(config),
        }
    }
}

impl Block<Spec> {
    fn describe(config: &ModelConfig, layer: usize) -> Self {
        let ModelConfig { hidden_size: width, head_dim, init_std: std, .. } = *config;
        let names = Names::of(config.family);
        let path = |name: &str| path_of(config, layer, name);
        let name = |name: &str| format!("{}.{layer}.{name}", names.layers);
        let (q_rows, kv_rows) = (config.num_heads * head_dim, config.num_kv_heads * head_dim);
        let qkv = Ranges::of(names.qkv.iter().map(|n| name(n)), &[q_rows, kv_rows, kv_rows], 1);
        let wo = Ranges::of([name(names.wo)], &[width], 1);
        let weight = |of: &str, ranges: &Ranges, cols: usize, std: f64| {
            matrix(path(of), ranges.rows, cols, std, ranges.weights(names.is_transposed))
        };
        let bias = |of: &str, ranges: &Ranges, exists: bool| exists.then(|| bias(path(of), ranges));
        let head_norm =
            |of: &str, called: &str| config.qk_norm.then(|| norm(path(of), &name(called), head_dim));
        Self {
            attention_norm: norm(path("attention_norm"), &name(names.attention_norm), width),
            attention_norm_bias: norm_bias(config, path("attention_norm_bias"), &name(names.attention_norm)),
            wqkv: weight("attention.wqkv", &qkv, width, std),
            bqkv: bias("attention.bqkv", &qkv, config.qkv_bias),
            q_norm: head_norm("attention.q_norm", names.q_norm),
            k_norm: head_norm("attention.k_norm", names.k_norm),
            wo: weight("attention.wo", &wo, q_rows, residual_std(config)),
            bo: bias("attention.bo", &wo, config.linear_bias),
            ffn_norm: norm(path("ffn_norm"), &name(names.ffn_norm), width),
            ffn_norm_bias: norm_bias(config, path("ffn_norm_bias"), &name(names.ffn_norm)),
            feed_forward: FeedForward::describe(config, layer),
        }
    }
}

/// The rows of a matrix, or the columns of its bias: what files call which range of them.
struct Ranges {
    /// Name, first row, rows.
    parts: Vec<(String, usize, usize)>,
    /// All rows, those that pad a part to a multiple of the alignment included.
    rows: usize,
}

impl Ranges {
    /// Parts of these sizes one after the other: under a name each, or all under the one name there is.
    fn of(names: impl IntoIterator<Item = String>, sizes: &[usize], alignment: usize) -> Self {
        let names: Vec<String> = names.into_iter().collect();
        let whole = [sizes.iter().sum()];
        let sizes = if names.len() == 1 { &whole } else { sizes };
        assert!(names.len() == sizes.len(), "{} names for {} ranges of rows", names.len(), sizes.len());
        let mut rows = 0;
        let part = |(name, &size): (String, &usize)| {
            let first = rows;
            rows += size.next_multiple_of(alignment);
            (name, first, size)
        };
        Self { parts: names.into_iter().zip(sizes).map(part).collect(), rows }
    }

    /// The pieces of a matrix.
    fn weights(&self, is_transposed: bool) -> Vec<Piece> {
        self.pieces("weight").map(|piece| Piece { is_transposed, ..piece }).collect()
    }

    fn pieces<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = Piece> + 'a {
        self.parts.iter().map(move |(name, first, rows)| piece(format!("{name}.{kind}"), *first, *rows))
    }
}

/// The path of a parameter of layer number `layer`; those after the last layer predict further ahead.
fn path_of(config: &ModelConfig, layer: usize, name: &str) -> String {
    match layer.checked_sub(config.num_layers) {
        None => format!("layers.{layer}.{name}"),
        Some(ahead) => format!("multi_token.{ahead}.{name}"),
    }
}

/// Standard deviation of what writes into the residual stream.
fn residual_std(config: &ModelConfig) -> f64 {
    config.init_std / (2.0 * config.num_layers as f64).sqrt()
}

fn piece(name: String, first_row: usize, rows: usize) -> Piece {
    Piece { name, first_row, rows, is_vector: false, is_transposed: false }
}

fn matrix(path: String, rows: usize, cols: usize, std: f64, pieces: Vec<Piece>) -> Spec {
    let init = Init::Normal(std);
    spec(path, rows, cols, init, pieces)
}

/// A parameter as most are: it trains, decays, is one of the base group, and AdamW updates it.
fn spec(path: String, rows: usize, cols: usize, init: Init, pieces: Vec<Piece>) -> Spec {
    let (decays, trains, split_rows) = (true, true, None);
    Spec { path, rows, cols, init, decays, trains, split_rows, pieces, group: 0, rule: UpdateRule::AdamW }
}

fn norm(path: String, name: &str, cols: usize) -> Spec {
    let pieces = vec![Piece { is_vector: true, ..piece(format!("{name}.weight"), 0, 1) }];
    Spec { decays: false, ..spec(path, 1, cols, Init::Ones, pieces) }
}

fn norm_bias(config: &ModelConfig, path: String, name: &str) -> Option<Spec> {
    let ranges = Ranges::of([name.to_string()], &[config.hidden_size], 1);
    (config.norm == Norm::LayerNorm).then(|| bias(path, &ranges))
}

/// A bias is one row; its pieces are ranges of columns, counted in `first_row` and `rows` all the same.
fn bias(path: String, ranges: &Ranges) -> Spec {
    let pieces = ranges.pieces("bias").map(|piece| Piece { is_vector: true, ..piece }).collect();
    let (cols, init) = (ranges.rows, Init::Zeros);
    Spec { decays: false, ..spec(path, 1, cols, init, pieces) }
}

/// A dense layer, one of three experts with a gated shared one, and a block of such that predicts further ahead. Both
/// kinds of expert have an odd width.
#[cfg(test)]
pub(super) fn mixture_example() -> ModelConfig {
    use super::config::{BalanceLosses, MixtureConfig, MultiToken, SharedExpert, Sizes, TokenDispatch};
    use crate::ops::route::{RouterConfig, Score};
    let (hidden_size, num_layers, num_heads) = (8, 2, 2);
    let sizes =
        Sizes { vocab_size: 16, hidden_size, num_layers, num_heads, intermediate_size: 12, seq_length: 4 };
    let mixture = MixtureConfig {
        route: RouterConfig {
            experts: 3,
            chosen: 2,
            score: Score::Softmax,
            groups: None,
            norm_top_k: true,
            scaling: 1.0,
        },
        has_bias: false,
        bias_update_rate: 0.0,
        intermediate_size: 5,
        first_dense_layers: 1,
        shared: Some(SharedExpert { intermediate_size: 7, is_gated: true }),
        losses: BalanceLosses::default(),
        dispatch: TokenDispatch::Dropless { safe_tokens: false },
        fuses_permutation: true,
        router_init_std: 0.01,
    };
    let multi_token = Some(MultiToken { depth: 1, loss_factor: 0.3 });
    ModelConfig { mixture: Some(mixture), multi_token, ..ModelConfig::llama(sizes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Sizes;

    /// The smallest GPT-2 as published: 124 million parameters, its tensors' names and shapes those of the file.
    #[test]
    fn gpt2_is_the_published_one() {
        let config = ModelConfig::gpt2(Sizes {
            vocab_size: 50257,
            hidden_size: 768,
            num_layers: 12,
            num_heads: 12,
            intermediate_size: 3072,
            seq_length: 1024,
        });
        let gpt = Gpt::describe(&config);
        let list = gpt.list();
        assert_eq!(list.iter().map(|spec| spec.count()).sum::<usize>(), 124_439_808);
        let of_file: Vec<(String, Vec<usize>)> = list
            .iter()
            .flat_map(|spec| spec.pieces.iter().map(|piece| (piece.name.clone(), spec.piece_shape(piece))))
            .collect();
        let tensors = |prefix: &str| -> Vec<(&str, &[usize])> {
            let inside = of_file.iter().filter(|(name, _)| name.starts_with(prefix));
            inside.map(|(name, shape)| (&name[prefix.len()..], shape.as_slice())).collect()
        };
        let layer: [(&str, &[usize]); 12] = [
            ("ln_1.weight", &[768]),
            ("ln_1.bias", &[768]),
            ("attn.c_attn.weight", &[768, 2304]),
            ("attn.c_attn.bias", &[2304]),
            ("attn.c_proj.weight", &[768, 768]),
            ("attn.c_proj.bias", &[768]),
            ("ln_2.weight", &[768]),
            ("ln_2.bias", &[768]),
            ("mlp.c_fc.weight", &[768, 3072]),
            ("mlp.c_fc.bias", &[3072]),
            ("mlp.c_proj.weight", &[3072, 768]),
            ("mlp.c_proj.bias", &[768]),
        ];
        assert_eq!(tensors("transformer.h.11."), layer);
        assert_eq!(tensors("transformer.wte."), [("weight", &[50257usize, 768][..])]);
        assert_eq!(tensors("transformer.wpe."), [("weight", &[1024usize, 768][..])]);
        assert_eq!(tensors("transformer.ln_f."), [("weight", &[768usize][..]), ("bias", &[768])]);
        assert!(tensors("lm_head").is_empty());
        assert_eq!(of_file.len(), 12 * 12 + 4);
        // Every matrix decays, and nothing else; both projections into the stream start smaller.
        assert!(list.iter().all(|spec| spec.decays == (spec.rows > 1)));
        let block = &gpt.blocks[0];
        let dense = block.feed_forward.dense().unwrap();
        for spec in [&block.wo, &dense.w_down] {
            assert_eq!(spec.init, Init::Normal(0.02 / 24f64.sqrt()));
        }
        assert_eq!(dense.w_gate_up.init, Init::Normal(0.02));
    }
}
