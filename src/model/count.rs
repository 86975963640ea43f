//! The number of a model's parameters and the work of a token.

use super::config::{LayerConfig, Mixer, MixtureConfig, ModelConfig, MultiToken};
use super::parameters::{Gpt, Place, Role, Spec};

/// Number of parameters, not counting padding.
pub fn parameters(config: &ModelConfig) -> usize {
    Gpt::describe(config).iter().map(Spec::count).sum()
}

/// Number of parameters that one token uses: of the experts, only those that it visits.
pub(crate) fn active_parameters(config: &ModelConfig) -> usize {
    Gpt::describe(config).iter().map(|spec| active(config, spec)).sum()
}

/// Number of parameters of adapters.
pub fn lora(config: &ModelConfig) -> usize {
    Gpt::describe(config).iter().filter(|spec| spec.role.is_factor()).map(Spec::count).sum()
}

/// The size of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Extent {
    /// Parameters, with padding rows.
    pub parameters: f64,
    /// Tensors of a checkpoint.
    pub tensors: f64,
}

/// The extent of the model of `config`, from one layer of each kind: its parameters are not listed, so this is quick
/// even for a model that is too large to build, and no product of sizes overflows.
pub(crate) fn extent(config: &ModelConfig) -> Extent {
    let depth = config.multi_token.map_or(0, |multi_token| multi_token.depth);
    let mixed = config.mixture_layers();
    let mixed = mixed.end.min(config.num_layers).saturating_sub(mixed.start);
    let counts = [config.num_layers - mixed, mixed, depth];
    let whole = extent_of(config, [0; 3]);
    // The table of queries is counted; the layer that reads it has the tensors of a dense layer.
    let config = &config.clone().with_layers(|layer| layer.has_query_table = false);
    let around = extent_of(config, [0; 3]);
    let kinds = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    counts.iter().zip(kinds).filter(|(count, _)| **count > 0).fold(whole, |sum, (&count, kind)| {
        let one = extent_of(config, kind);
        Extent {
            parameters: sum.parameters + count as f64 * (one.parameters - around.parameters),
            tensors: sum.tensors + count as f64 * (one.tensors - around.tensors),
        }
    })
}

/// The extent of the model of `config` with `dense` dense layers, `mixed` layers of experts and `depth` blocks of
/// multi-token prediction.
fn extent_of(config: &ModelConfig, [dense, mixed, depth]: [usize; 3]) -> Extent {
    let mixture =
        config.mixture.clone().map(|mixture| MixtureConfig { first_dense_layers: dense, ..mixture });
    let multi_token = config.multi_token.map(|multi_token| MultiToken { depth, ..multi_token });
    let specs =
        Gpt::describe(&ModelConfig { num_layers: dense + mixed, mixture, multi_token, ..config.clone() });
    Extent {
        parameters: specs.iter().map(|spec| spec.rows as f64 * spec.cols as f64).sum(),
        tensors: specs.iter().map(|spec| spec.pieces.len() as f64).sum(),
    }
}

/// Floating-point operations to train on one token of a full window: forward and backward.
///
/// A matrix of n numbers takes 2 n operations per token forward (one multiplication and one addition each) and 4 n
/// backward (the gradients of input and weight): 6 n. Every matrix counts except the embedding and the table of learned
/// positions, whose rows are copied; a tied head counts as the head. Attention adds, per layer and token, 2·H·C for
/// each of the scores and of the weighted sum per key seen (for the latter with the width of a value, if it differs),
/// (T + 1) / 2 keys on average under the causal mask (fewer in a sliding window), and twice that backward; linear
/// attention 6·K·V for each value head: three products with a state. Recomputed
/// work (that of flash attention, or of checkpointed blocks) does not count, since MFU compares model FLOPs (Chowdhery
/// et al., PaLM, 2022, appendix B, there without the causal mask).
///
/// For a mixture the router, the shared expert and k of E experts count, whether or not a choice is dropped. A block of
/// multi-token prediction counts as one more layer, a product of 2·D to D, and one more use of the head. With adapters,
/// whose factors count like other matrices, a matrix of the model has no gradient and counts 4 n.
pub fn training_flops_per_token(config: &ModelConfig) -> f64 {
    let of_model = if config.low_rank.is_some() { 4.0 } else { 6.0 };
    let flops = |spec: &Spec| {
        let each = if spec.role.is_factor() { 6.0 } else { of_model };
        each * multiplied(config, spec) as f64
    };
    let matrices: f64 = Gpt::describe(config).iter().map(flops).sum();
    let heads = of_model / 2.0 * head_flops_per_token(config);
    let attention =
        |(layer, count): (&LayerConfig, usize)| 3.0 * attention_flops_per_token(config, layer) * count as f64;
    matrices + heads + config.layer_kinds().map(attention).sum::<f64>()
}

/// Operations of the forward pass of the head on one token, once for the next token and once for each further token
/// that is predicted.
pub(crate) fn head_flops_per_token(config: &ModelConfig) -> f64 {
    let depth = config.multi_token.map_or(0, |multi_token| multi_token.depth);
    let width = config.embedding_width.unwrap_or(config.hidden_size);
    2.0 * ((1 + depth) * config.vocab_size * width) as f64
}

/// Floating-point operations of the forward pass of each layer on one token of a full window, which recomputing the
/// layer adds to [`training_flops_per_token`]. The last entries are the blocks of multi-token prediction, without the
/// product that makes their input.
pub(crate) fn layer_flops_per_token(config: &ModelConfig) -> Vec<f64> {
    let depth = config.multi_token.map_or(0, |multi_token| multi_token.depth);
    let attention = |layer| attention_flops_per_token(config, config.layer(layer));
    let mut flops: Vec<f64> = (0..config.num_layers + depth).map(attention).collect();
    for spec in Gpt::describe(config) {
        if let (Place::Layer(layer), false) = (spec.place, spec.path.ends_with(".w_fuse")) {
            flops[layer] += 2.0 * multiplied(config, &spec) as f64;
        }
    }
    flops
}

/// Operations of the attention scores and weighted sums of `layer` forward, per token.
fn attention_flops_per_token(config: &ModelConfig, layer: &LayerConfig) -> f64 {
    match layer.mixer {
        Mixer::Softmax => {
            flops_per_token_of_heads(config, layer.head_dim + config.value_dim(layer), layer.sliding_window)
        }
        Mixer::Linear(linear) => linear.rule_flops_per_token(),
        Mixer::Convolution { .. } => 0.0, // its weights count as those of matrices do
    }
}

/// As [`attention_flops_per_token`], of heads whose key and value are together `width` wide and whose token sees
/// `window` tokens at most.
pub(crate) fn flops_per_token_of_heads(config: &ModelConfig, width: usize, window: Option<usize>) -> f64 {
    // Token i of T sees min(i, w) keys.
    let (tokens, window) = (config.seq_length as f64, window.unwrap_or(config.seq_length) as f64);
    let keys = window - window * (window - 1.0) / (2.0 * tokens);
    2.0 * (config.num_heads * width) as f64 * keys
}

/// Elements of a parameter by which one token is multiplied in a layer.
fn multiplied(config: &ModelConfig, spec: &Spec) -> usize {
    match spec.role {
        Role::Matrix
        | Role::ExpertStack { .. }
        | Role::Router
        | Role::Convolution
        | Role::Lora
        | Role::Magnitudes
        | Role::ExpertLora { .. } => active(config, spec),
        Role::Embedding
        | Role::LayerEmbedding
        | Role::Positions
        | Role::Head
        | Role::Vector
        | Role::Constant
        | Role::ExpertBiases { .. } => 0,
    }
}

/// Elements of a parameter that one token uses.
fn active(config: &ModelConfig, spec: &Spec) -> usize {
    match (spec.role.stacked_experts(), &config.mixture) {
        (Some(experts), Some(mixture)) => spec.count() / experts * mixture.chosen(),
        _ => spec.count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::{Family, LatentAttention, LowRank, Sizes};
    use crate::model::parameters::tests::mixture_example;
    use crate::model::select_modules;

    /// The reference shape of the benches: V 256, D 128, L 4, H 4, F 384, T 128.
    fn sizes() -> Sizes {
        Sizes {
            vocab_size: 256,
            hidden_size: 128,
            num_layers: 4,
            num_heads: 4,
            intermediate_size: 384,
            seq_length: 128,
        }
    }

    fn config() -> ModelConfig {
        ModelConfig::llama(sizes())
    }

    fn latent() -> ModelConfig {
        let ranks =
            LatentAttention { q_rank: Some(48), kv_rank: 32, nope_dim: 16, rope_dim: 8, value_dim: 12 };
        ranks.within(config())
    }

    #[test]
    fn latent_attention_by_hand() {
        // Down and up for queries, for keys and values, and out; heads 24 wide, values 12.
        let matrices = 48 * 128 + 4 * 24 * 48 + (32 + 8) * 128 + 4 * (16 + 12) * 32 + 128 * 4 * 12;
        let per_layer = matrices + 48 + 32 + 3 * 128 * 384 + 2 * 128;
        assert_eq!(parameters(&latent()), 4 * per_layer + 2 * 256 * 128 + 128);
        let scores = 3.0 * 2.0 * 4.0 * (24.0 + 12.0) * 64.5 * 4.0;
        let products = 6.0 * (4 * (matrices + 3 * 128 * 384) + 256 * 128) as f64;
        assert_eq!(training_flops_per_token(&latent()), products + scores);
    }

    #[test]
    fn a_window_costs_the_keys_inside_it() {
        let windowed = |window| config().with_layers(|layer| layer.sliding_window = window);
        let flops = |window| training_flops_per_token(&windowed(window));
        let keys = |window: f64| (1..=128).map(|i| window.min(i as f64)).sum::<f64>() / 128.0;
        let saved = 3.0 * 4.0 * 128.0 * (keys(128.0) - keys(10.0)) * 4.0;
        assert!((flops(None) - flops(Some(10)) - saved).abs() < 1e-3);
        assert_eq!(flops(Some(128)), flops(None));
    }

    /// The forward pass is a third of training. The head, and the product that makes the input of a block of
    /// multi-token prediction, belong to no layer.
    #[test]
    fn layers_are_what_is_not_around_them() {
        for config in [config(), latent(), ModelConfig::gpt2(sizes()), mixture_example()] {
            let depth = config.multi_token.map_or(0, |multi_token| multi_token.depth);
            let width = config.hidden_size;
            let around = (1 + depth) * config.vocab_size * width + depth * 2 * width * width;
            let layers = layer_flops_per_token(&config);
            assert_eq!(layers.len(), config.num_layers + depth);
            let forward = layers.iter().sum::<f64>() + 2.0 * around as f64;
            assert!((3.0 * forward - training_flops_per_token(&config)).abs() < 1e-6, "{layers:?}");
        }
        let [dense, mixed, ahead] = layer_flops_per_token(&mixture_example())[..] else {
            panic!("three layers")
        };
        assert!(dense < mixed && mixed == ahead);
    }

    #[test]
    fn counts_by_hand() {
        let per_layer = 4 * 128 * 128 + 3 * 128 * 384 + 2 * 128;
        assert_eq!(parameters(&config()), 4 * per_layer + 2 * 256 * 128 + 128);
        let matrices = 4 * (4 * 128 * 128 + 3 * 128 * 384) + 256 * 128;
        let attention = 3.0 * 4.0 * 128.0 * 64.5 * 4.0;
        assert_eq!(training_flops_per_token(&config()), 6.0 * matrices as f64 + attention);
        let tied = ModelConfig { tie_word_embeddings: true, ..config() };
        assert_eq!(parameters(&tied), parameters(&config()) - 256 * 128);
        assert_eq!(training_flops_per_token(&tied), training_flops_per_token(&config()));
    }

    #[test]
    fn gpt2_by_hand() {
        let gpt2 = ModelConfig { max_positions: 200, ..ModelConfig::gpt2(sizes()) };
        let matrices = 4 * 128 * 128 + 2 * 128 * 384;
        let biases = 3 * 128 + 128 + 384 + 128;
        let norms = 2 * 2 * 128;
        assert_eq!(parameters(&gpt2), 4 * (matrices + biases + norms) + 256 * 128 + 200 * 128 + 2 * 128);
        // Biases and norms are no matrices, and positions are looked up: only the layers' matrices and the head count.
        let attention = 3.0 * 4.0 * 128.0 * 64.5 * 4.0;
        let products = 6.0 * (4 * matrices + 256 * 128) as f64;
        assert_eq!(training_flops_per_token(&gpt2), products + attention);
    }

    #[test]
    fn padding_rows_do_not_count() {
        let of_width = |width| config().with_layers(|layer| layer.intermediate_size = width);
        let (odd, even) = (of_width(7), of_width(8));
        assert_eq!(parameters(&even) - parameters(&odd), 4 * 3 * 128);
    }

    #[test]
    fn the_extent_is_that_of_the_listed_parameters() {
        let gpt2 = ModelConfig::gpt2(sizes());
        for config in [config(), gpt2, ModelConfig { num_layers: 7, ..mixture_example() }] {
            let specs = Gpt::describe(&config);
            let parameters: usize = specs.iter().map(|spec| spec.rows * spec.cols).sum();
            let tensors: usize = specs.iter().map(|spec| spec.pieces.len()).sum();
            assert_eq!(extent(&config), Extent { parameters: parameters as f64, tensors: tensors as f64 });
        }
        // No product of these sizes fits 64 bits, and their layers would not fit this machine.
        let huge = Sizes { hidden_size: 1 << 31, num_layers: 1 << 40, num_heads: 1 << 31, ..sizes() };
        let huge = ModelConfig::llama(huge).with_layers(|layer| layer.head_dim = 256);
        assert!(extent(&huge).parameters > 1e30);
    }

    /// A layer of experts as GPT-2 would have them, a dense layer before it, and in PanGu-α one after it.
    #[test]
    fn experts_of_gpt2_by_hand() {
        let mixture = mixture_example().mixture.expect("experts");
        let mixture = MixtureConfig { shared: None, first_dense_layers: 1, ..mixture };
        let sizes = Sizes { hidden_size: 8, intermediate_size: 12, num_heads: 2, ..sizes() };
        let gpt2 = ModelConfig { mixture: Some(mixture), num_layers: 3, ..ModelConfig::gpt2(sizes) };
        let pangu = ModelConfig { family: Family::Pangu, ..gpt2.clone() }.with_query_table();
        let (dense, expert) = (2 * 8 * 12 + 12 + 8, 2 * 8 * 5 + 5 + 8);
        let around = 256 * 8 + 128 * 8 + 2 * 8 + 3 * (4 * 8 * 8 + 4 * 8 + 2 * 2 * 8);
        assert_eq!(parameters(&gpt2), around + dense + 2 * (3 * 8 + 3 * expert));
        assert_eq!(active_parameters(&gpt2), parameters(&gpt2) - 2 * expert);
        assert_eq!(parameters(&pangu), around + 128 * 8 + 2 * dense + 3 * 8 + 3 * expert);
        let scores = 3.0 * 4.0 * 8.0 * 64.5 * 3.0;
        let matrices = 3 * 4 * 8 * 8 + 2 * 8 * 12 + 2 * (3 * 8 + 2 * 2 * 8 * 5) + 256 * 8;
        assert_eq!(training_flops_per_token(&gpt2), 6.0 * matrices as f64 + scores);
        for config in [gpt2, pangu] {
            let specs = Gpt::describe(&config);
            let parameters: usize = specs.iter().map(|spec| spec.rows * spec.cols).sum();
            let tensors: usize = specs.iter().map(|spec| spec.pieces.len()).sum();
            assert_eq!(extent(&config), Extent { parameters: parameters as f64, tensors: tensors as f64 });
        }
    }

    #[test]
    fn mixture_by_hand() {
        // V 16, D 8, H 2, T 4; a dense layer 12 wide; 3 experts 5 wide, 2 of them chosen, one shared 7 wide and gated,
        // in one layer and in a block that predicts further ahead.
        let config = mixture_example();
        let (tables, norms) = (2 * 16 * 8, 8);
        let attention = 4 * 8 * 8;
        let expert = 3 * 8 * 5;
        let mixture = 3 * 8 + 3 * expert + 3 * 8 * 7 + 8;
        let around = 2 * 8 + 16 * 8 + 8;
        let layers = (attention + 16 + 3 * 8 * 12) + 2 * (attention + 16 + mixture) + around;
        assert_eq!(parameters(&config), tables + norms + layers);
        assert_eq!(active_parameters(&config), parameters(&config) - 2 * expert);

        let used = 3 * 8 + 2 * expert + 3 * 8 * 7 + 8;
        // The head is used twice; the embedding is looked up.
        let matrices = 3 * attention + 3 * 8 * 12 + 2 * used + 16 * 8 + 2 * 16 * 8;
        let scores = 3.0 * 4.0 * 8.0 * 2.5 * 3.0;
        assert_eq!(training_flops_per_token(&config), 6.0 * matrices as f64 + scores);
        let tied = ModelConfig { tie_word_embeddings: true, ..config.clone() };
        assert_eq!(training_flops_per_token(&tied), 6.0 * matrices as f64 + scores);

        // Factors of rank 3 of every expert, of which a token uses two; nothing else has a gradient.
        let selected = select_modules(&config, &[], &["experts".to_string()], &[]).expect("experts");
        let low_rank = LowRank {
            rank: 3,
            alpha: 3.0,
            modules: selected.modules,
            parameters: selected.parameters,
            ..LowRank::default()
        };
        let adapted = ModelConfig { low_rank: Some(low_rank), ..config };
        let factors = 3 * (8 + 2 * 5 + 5 + 8);
        assert_eq!(lora(&adapted), 2 * 3 * factors);
        let of_factors = 6.0 * (2 * 2 * factors) as f64;
        assert_eq!(training_flops_per_token(&adapted), 4.0 * matrices as f64 + scores + of_factors);
    }
}
