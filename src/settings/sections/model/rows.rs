//! The keys of a model.

use super::pet::{self, Pet};
use super::rope_scaling::{self, Scaling};
use super::types::{ModelType, defaults};
use super::{GPT2, LLAMA, PATH, latent};
use crate::element::Element;
use crate::model::config::{Activation, Gelu, LatentAttention, ModelConfig};
use crate::settings::engine::*;
use crate::settings::sections::parallel::Offset;

rows! {
    /// `model.model_config`: the shape of the model. The keys of `moe_config` may be written here too.
    pub struct Model in PATH {
        /// The type of the model, which goes with `model.arch.type`.
        kind "type": ModelType = Shape.default(ModelType::default()).example("GPT2Config"),
        /// Megatron's name of `head_dim`. In most types of MindFormers it has no effect, so it may only repeat the
        /// width; in ChatGLM2Config it is the width.
        kv_channels: Option<usize> = Shape.optional().example("16"),
        /// Llama's rule rounds up to a multiple of this; 256 by default.
        multiple_of: Option<usize> = Shape.optional().within(SIZE).of(LLAMA).example("32"),
        /// Llama's rule widens by this factor.
        ffn_dim_multiplier: Option<f64> = Shape.optional().of(LLAMA).example("2.5"),
        /// F / D of GPT-2 where no size is given; 4 by default.
        expand_ratio: Option<usize> = Shape.optional().within(SIZE).of(GPT2).example("2"),
        /// The same as Hugging Face writes it, in a section with `rope_type`: `linear`, `yarn` or `llama3`; here also
        /// `ntk` and `dynamic_ntk`.
        rope_scaling: Scaling = Numbers.optional().of(LLAMA).read_by(rope_scaling::read_dict)
            .example("{rope_type: linear, factor: 4.0}"),
        /// Multi-head latent attention, which the types `DeepseekV2Config` and `DeepseekV3Config` have and no others.
        multi_latent_attention: Option<bool> = Shape.optional().of(DEEPSEEK).example("True"),
        /// Share of a head's dimensions that rotate; 1 by default.
        rotary_percent: Option<f64> = Numbers.optional().within(SHARE_ABOVE_ZERO).of(LLAMA).example("0.5"),
        /// Whether q and k are normalised per head before rotation.
        use_qk_norm: Option<bool> = Shape.optional().of(LLAMA).example("True"),
        /// A token attends to this many tokens, itself and those before it; by default to all of its sequence.
        sliding_window: Option<u64> = Numbers.optional().within(COUNT).example("5"),
        /// Type of the weights that the optimizer updates. They are float32, and layers read copies in `compute_dtype`,
        /// unless `optimizer.stochastic_rounding` stores them in bfloat16 alone; any other value causes a notice.
        param_init_type: Option<Element> = Host.optional(),
        /// Targets with this id do not enter the loss.
        ignore_token_id: i64 = Numbers.default(-100).example("3"),
        /// Blocks for multi-token prediction. The model predicts the next token; block i, counted from 1, the i-th
        /// after it.
        mtp_depth: Option<usize> = Shape.optional().of(LLAMA).example("1"),
        /// Factor of their mean loss in the objective; 0.3 by default, as in DeepSeek-V3.
        mtp_loss_factor: Option<f64> = Numbers.optional().within(FROM_ZERO).example("0.1\nmtp_depth: 1"),
        /// Patterns of parameters that do not train: regular expressions, found anywhere in a name.
        freeze: Vec<String> = Numbers.optional().example("['embed_tokens']"),
        /// Patterns of those among the frozen that train after all.
        freeze_exclude: Vec<String> = Numbers.optional().example("['layers\\.0']\nfreeze: ['layers']"),
        /// Low-rank adapters, which train in place of the model: a section.
        pet_config: Option<Pet> = Shape.optional().read_by(pet::read).example("{pet_type: lora, target_modules: .*wq}"),
        /// Layers that pipeline stages have more than an even share, or fewer: for all, for each stage, or for each
        /// interleave and stage. Counts of layers in `recompute_config` follow it.
        offset: Option<Offset> = Host.optional().example("[0]"),
        /// As in `parallel_config`.
        pp_interleave_num: Option<u64> = Host.optional().within(COUNT).example("2"),
    }
    with
    /// The model that is trained, but for its experts, adapters and recomputation.
    config: ModelConfig = defaults {
        /// Number of different tokens (V).
        vocab_size: usize = Shape.required().within(SIZE),
        /// Width of the residual stream (D).
        hidden_size: usize = Shape.required().within(SIZE),
        /// Number of blocks (L).
        num_layers: usize = Shape.required().within(LAYERS),
        /// Query heads (H).
        num_heads: usize = Shape.required().within(SIZE).example("2"),
        /// Key and value heads; by default as many as query heads.
        num_kv_heads "n_kv_heads": usize = Shape.derived().within(SIZE).of(LLAMA).example("2"),
        /// Width of a head; `hidden_size / num_heads` by default.
        head_dim: usize = Shape.derived().within(SIZE).of(LLAMA).example("8"),
        /// Inner width of the feed-forward layer (F). By default GPT-2's is `expand_ratio` times D, and Llama's
        /// follows its rule: two thirds of 4 D, times `ffn_dim_multiplier`, rounded up to a multiple of
        /// `multiple_of`.
        intermediate_size: usize = Shape.derived().within(SIZE).example("172"),
        /// Activation of the feed-forward layer: SwiGLU (`silu`) in Llama, GELU in GPT-2, whose published form is the
        /// tanh approximation: `gelu_new`, and `gelu` with a notice. `gelu_exact` is the exact form and `fast_gelu`
        /// the one by the logistic function.
        activation "hidden_act": Activation = Shape.derived().read_by(activation).example("gelu_exact"),
        /// Tokens in a window (T).
        seq_length: usize = Shape.required().within(SIZE),
        /// Positions the model is made for, at least T, which is the default.
        max_positions "max_position_embedding": usize = Shape.derived().within(SIZE).example("64"),
        /// Added to the mean square or the variance in the norms.
        norm_eps "rms_norm_eps": f64 = Numbers.default(1e-5).within(ABOVE_ZERO),
        /// Base of the rotary frequencies; 10000 by default.
        rope_theta "theta": f64 = Numbers.derived().within(ABOVE_ZERO).of(LLAMA).example("1e6"),
        /// Whether rotary pairs are neighbours (2i, 2i+1) instead of halves (i, i + d/2).
        rotary_interleaved: bool = Numbers.derived().of(LLAMA).example("True"),
        /// Whether the head shares the embedding's weights: False in Llama, True in GPT-2 by default.
        tie_word_embeddings: bool = Shape.derived().example("True"),
        /// Whether the q, k and v projections have a bias: True in GPT-2, ChatGLM and Qwen by default.
        qkv_bias "qkv_has_bias": bool = Shape.derived().example("True"),
        /// Whether the output projection of attention has a bias: True in GPT-2 and TeleChat by default.
        output_bias "attn_proj_has_bias": bool = Shape.derived().example("True"),
        /// Whether the first projections of the feed-forward layer have a bias: True in GPT-2 by default.
        gate_up_bias "add_mlp_fc1_bias_linear": bool = Shape.derived().example("True"),
        /// Whether its last projection has one: True in GPT-2 and TeleChat by default.
        down_bias "add_mlp_fc2_bias_linear": bool = Shape.derived().example("True"),
        /// Share of the attention weights that training drops.
        attention_dropout: f64 = Numbers.default(0.0).within(SHARE_BELOW_ONE),
        /// Share of what each half of a block adds to the residual stream that training drops.
        hidden_dropout: f64 = Numbers.default(0.0).within(SHARE_BELOW_ONE),
        /// Share of the embedding's output that training drops.
        embedding_dropout "emb_dropout_prob": f64 = Numbers.default(0.0).within(SHARE_BELOW_ONE),
        /// Standard deviation of the initial weights; 0.01 in Llama, 0.02 in GPT-2 by default.
        init_std "init_method_std": f64 = Numbers.derived().within(ABOVE_ZERO).example("0.03"),
        /// Storage type of activations and of the weights that layers compute with: `float32`, `float16` or
        /// `bfloat16`. Sums, master weights, moments, logits and routers are float32 in any case.
        compute "compute_dtype": Element = Numbers.default(Element::F32),
    }
    with
    /// The widths of latent attention, of which only models with it make use.
    latent: LatentAttention = latent::defaults {
        /// Width of the latent vector of the queries. Without it, as with `null`, queries come from the hidden state
        /// directly; DeepSeek-V3 has 1536.
        q_rank "q_lora_rank": Option<usize> = Shape.optional().within(SIZE).of(DEEPSEEK).example("24"),
        /// Width of the latent vector of keys and values; 512 by default.
        kv_rank "kv_lora_rank": usize = Shape.derived().within(SIZE).of(DEEPSEEK).example("24"),
        /// Width of the part of a query and a key that does not rotate; 128 by default.
        nope_dim "qk_nope_head_dim": usize = Shape.derived().within(SIZE).of(DEEPSEEK).example("16"),
        /// Width of the part that rotates, which all keys share; 64 by default. A head is both parts wide.
        rope_dim "qk_rope_head_dim": usize = Shape.derived().within(SIZE).of(DEEPSEEK).example("8"),
        /// Width of a value; 128 by default.
        value_dim "v_head_dim": usize = Shape.derived().within(SIZE).of(DEEPSEEK).example("16"),
    }
}

const DEEPSEEK: &str = "DeepseekV3Config DeepseekV2Config";

impl Words for Element {
    const WORDS: &'static [(&'static str, Self)] =
        &[("float32", Self::F32), ("float16", Self::F16), ("bfloat16", Self::Bf16)];
}

impl Words for Activation {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("silu", Self::SwiGlu),
        ("swiglu", Self::SwiGlu),
        ("fusedswiglu", Self::SwiGlu),
        ("gelu_new", Self::Gelu(Gelu::Tanh)),
        ("gelu_tanh", Self::Gelu(Gelu::Tanh)),
        ("gelu_pytorch_tanh", Self::Gelu(Gelu::Tanh)),
        ("gelu", Self::Gelu(Gelu::Tanh)),
        ("gelu_exact", Self::Gelu(Gelu::Exact)),
        ("quick_gelu", Self::Gelu(Gelu::Fast)),
        ("fast_gelu", Self::Gelu(Gelu::Fast)),
    ];
}

/// `hidden_act`, which must suit the type.
fn activation(reader: &Reader<'_>, key: &'static str) -> Option<Activation> {
    let is_llama = reader.kind_is(LLAMA);
    let node = reader.node(key)?;
    match Activation::from_node(node) {
        Some(activation) if (activation == Activation::SwiGlu) == is_llama => {
            if node.word() == Some("gelu") {
                let text = "`gelu` is the tanh form, as in MindFormers; `gelu_exact` is the one by the error function";
                reader.note(key, text);
            }
            Some(activation)
        }
        _ => {
            let remedy = if is_llama { "silu" } else { "gelu_new" };
            reader.fault(key, format!("not built yet (found {node}); write `{key}: {remedy}`"));
            None
        }
    }
}
