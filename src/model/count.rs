//! How large a model is and how much work a token takes.

use super::config::ModelConfig;
use super::parameters::Gpt;

/// Parameters of the model, pads not counted.
pub fn parameters(config: &ModelConfig) -> usize {
    Gpt::describe(config).list().into_iter().map(|spec| spec.count()).sum()
}

/// Floating-point operations to train on one token of a full window: forward and backward.
///
/// A matrix of n numbers takes 2 n operations per token forward (one multiplication and one addition each) and 4 n
/// backward (the gradients of input and weight): 6 n. Every matrix counts but the embedding and the table of learned
/// positions, whose rows are copied; a tied head counts as the head. Attention adds, per layer and token, 2·H·C for each
/// of the scores and of the weighted sum per key seen, (T + 1) / 2 keys on average under the causal mask (fewer in a
/// sliding window), and twice that backward. Recomputed work (flash
/// attention's, checkpointed blocks') does not count: it is model FLOPs that MFU compares (Chowdhery et al., PaLM, 2022,
/// appendix B, there without the causal mask).
pub fn training_flops_per_token(config: &ModelConfig) -> f64 {
    let gpt = Gpt::describe(config);
    let matrices = gpt.list().into_iter().filter(|spec| spec.decays).map(|spec| spec.count()).sum::<usize>();
    let embedding = if config.tie_word_embeddings { 0 } else { gpt.embedding.count() };
    let tables = embedding + gpt.positions.as_ref().map_or(0, |table| table.count());
    // Token i of T sees min(i, w) keys.
    let (tokens, window) =
        (config.seq_length as f64, config.sliding_window.unwrap_or(config.seq_length) as f64);
    let keys = window - window * (window - 1.0) / (2.0 * tokens);
    let attention = 2.0 * 2.0 * (config.num_heads * config.head_dim) as f64 * keys * config.num_layers as f64;
    6.0 * (matrices - tables) as f64 + 3.0 * attention
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::Sizes;

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

    #[test]
    fn a_window_costs_the_keys_inside_it() {
        let flops = |sliding_window| training_flops_per_token(&ModelConfig { sliding_window, ..config() });
        let keys = |window: f64| (1..=128).map(|i| window.min(i as f64)).sum::<f64>() / 128.0;
        let saved = 3.0 * 4.0 * 128.0 * (keys(128.0) - keys(10.0)) * 4.0;
        assert!((flops(None) - flops(Some(10)) - saved).abs() < 1e-3);
        assert_eq!(flops(Some(128)), flops(None));
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
        // Biases and norms are no matrices, positions are looked up: only the layers' matrices and the head count.
        let attention = 3.0 * 4.0 * 128.0 * 64.5 * 4.0;
        let products = 6.0 * (4 * matrices + 256 * 128) as f64;
        assert_eq!(training_flops_per_token(&gpt2), products + attention);
    }

    #[test]
    fn padding_rows_do_not_count() {
        let odd = ModelConfig { intermediate_size: 7, ..config() };
        let even = ModelConfig { intermediate_size: 8, ..config() };
        assert_eq!(parameters(&even) - parameters(&odd), 4 * 3 * 128);
    }
}
