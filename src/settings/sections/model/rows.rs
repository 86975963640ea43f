//! The keys of a model.

use super::layers::{CONV_WIDTH, LayerType, ROTATES, SinkLayers};
use super::pet::{self, Pet};
use super::rope_scaling::{self, Scaling};
use super::types::{ModelType, defaults};
use super::{GPT2, LLAMA, OPT, PATH, latent};
use crate::element::Element;
use crate::model::config::{
    Activation, Gate, Gelu, LatentAttention, LatentRotation, ModelConfig, Norm, NormPlacement,
    ParallelResidual, QkNorm,
};
use crate::settings::engine::*;
use crate::settings::sections::parallel::Offset;

rows! {
    /// `model.model_config`: the shape of the model. The keys of `moe_config` may be written here too.
    pub struct Model in PATH {
        /// Architecture of the model. `model.arch.type`, where written, must fit it.
        kind "type": ModelType = Shape.default(ModelType::default()).example("GPT2Config"),
        /// Megatron's name of `head_dim`. In most types of MindFormers it has no effect, so it may only repeat the
        /// width of a head; in ChatGLM2Config it sets that width.
        kv_channels: Option<usize> = Shape.optional().example("16"),
        /// Llama's rule for `intermediate_size` rounds up to a multiple of this; 256 by default.
        multiple_of: Option<usize> = Shape.optional().within(SIZE).of(LLAMA).example("32"),
        /// Llama's rule for `intermediate_size` multiplies by this + 0.01. In TelechatConfig a whole number from D on
        /// is F itself.
        ffn_dim_multiplier: Option<f64> = Shape.optional().of(LLAMA).example("2.5"),
        /// F / D of GPT-2 where `intermediate_size` is absent; 4 by default.
        expand_ratio: Option<usize> = Shape.optional().within(SIZE).of(GPT2).example("2"),
        /// Scaling of the rotary frequencies, as Hugging Face writes it: a section with `rope_type`: `linear`, `yarn`,
        /// `llama3` or `proportional`; here also `ntk` and `dynamic_ntk`.
        rope_scaling: Scaling = Numbers.optional().of(LLAMA).read_by(rope_scaling::read_dict)
            .example("{rope_type: linear, factor: 4.0}"),
        /// Multi-head latent attention. DeepSeek's types have no other, so only `True` is accepted.
        multi_latent_attention: Option<bool> = Shape.optional().of(DEEPSEEK).example("True"),
        /// Which elements of the rotating part of a head are a pair in latent attention: `neighbours`, (2i, 2i+1), or
        /// `halves`, (i, i + d/2), as in MiniCPM 3; `neighbours` by default.
        latent_rotation: Option<LatentRotation> = Numbers.optional().of(DEEPSEEK).example("halves"),
        /// Share of a head's dimensions that rotate, an even number of them; 1 by default, 0.5 in ChatGLM2Config.
        rotary_percent: Option<f64> = Numbers.optional().within(SHARE_ABOVE_ZERO).of(LLAMA).example("0.5"),
        /// Whether the feed-forward layer has a gate beside its first projection, as SwiGLU has, Megatron's name; True
        /// by default. Without one the activation of `hidden_act` stands between two projections.
        gated_linear_unit: Option<bool> = Shape.optional().example("False\nhidden_act: gelu_exact"),
        /// Whether RMSNorm is applied to each head of q and k before rotation, or as `qk_norm_kind` says; True in LFM2
        /// by default. DeepSeek's types accept only `True`: they normalise their latent vectors instead.
        use_qk_norm: Option<bool> = Shape.optional().of(LLAMA).example("True"),
        /// How `use_qk_norm` normalises q and k: `heads` one by one, `all_heads` of q together and all of k, as in OLMo
        /// 2, or `rotated_heads`, one by one after the rotation, as in Hunyuan; `layer_norm` one by one by LayerNorm,
        /// with a bias, as in Phi, or `layer_norm_by_head` with a weight of each head and no bias, as in StableLM 2 of
        /// 12B and Command R+; `heads` by default.
        qk_norm_kind: Option<QkNorm> = Shape.optional().of(LLAMA).example("all_heads\nuse_qk_norm: True"),
        /// The norm of attention, feed-forward layer and head: `RMSNorm`, Llama's, or `LayerNorm`, GPT-2's.
        normalization: Option<Norm> = Shape.optional().example("LayerNorm"),
        /// Whether LayerNorm has a bias; True by default.
        norm_has_bias: Option<bool> = Shape.optional().of(LLAMA).example("False\nnormalization: LayerNorm"),
        /// Whether norms have a weight; True by default, except in nanochat.
        norm_has_weight: Option<bool> = Shape.optional().of(LLAMA).example("False"),
        /// Where the norms of a layer stand: `before` attention and feed-forward layer, `after` them (x + norm(f(x)),
        /// as in OLMo 2), or `both`; in OPTConfig `before` or `after_sum` (norm(x + f(x)), and none before the head, as in
        /// OPT of 350M); `before` by default.
        norm_placement: Option<NormPlacement> = Shape.optional().of("LlamaConfig OPTConfig").example("after"),
        /// Whether norms multiply by 1 + w instead of w, as in Gemma; their weights then start at 0. Megatron's name;
        /// False by default.
        layernorm_zero_centered_gamma: Option<bool> = Numbers.optional().of(LLAMA).example("True"),
        /// Whether attention and feed-forward layer stand beside each other: `two_norms`, x + attention(norm(x)) +
        /// f(norm'(x)), as in GPT-NeoX, or `one_norm` that both read, as in Command R; none by default.
        parallel_residual: Option<ParallelResidual> = Shape.optional().of(LLAMA).example("two_norms"),
        /// Attention window in tokens: the token itself and those before it; unlimited by default.
        sliding_window: Option<u64> = Numbers.optional().within(COUNT).example("5"),
        /// Which layers have that window: `sliding_attention` or `full_attention` for each layer, as in Hugging Face's
        /// files, or for the first layers, which is then repeated; all have it by default. `linear_attention` is the
        /// gated delta rule of Qwen3-Next instead, whose heads the keys from `linear_num_value_heads` on describe, and
        /// `conv` the gated convolution of Lfm2Config.
        layer_types: Option<Vec<LayerType>> = Numbers.optional()
            .example("[sliding_attention, full_attention]\nsliding_window: 5"),
        /// Value heads of linear attention, each of which has a state; a multiple of 4.
        linear_num_value_heads: Option<usize> = Shape.optional().within(SIZE).of(LLAMA)
            .example("4\nlayer_types: [linear_attention, full_attention]\nlinear_num_key_heads: 2\nlinear_key_head_dim: 8\n\
                linear_value_head_dim: 12"),
        /// Heads of its queries and keys, which divide those of values.
        linear_num_key_heads: Option<usize> = Shape.optional().within(SIZE).of(LLAMA)
            .example("2\nlayer_types: [linear_attention, full_attention]\nlinear_num_value_heads: 4\nlinear_key_head_dim: 8\n\
                linear_value_head_dim: 12"),
        /// Width of its queries and keys, a multiple of 4 up to 512.
        linear_key_head_dim: Option<usize> = Shape.optional().within(SIZE).of(LLAMA)
            .example("8\nlayer_types: [linear_attention, full_attention]\nlinear_num_value_heads: 4\nlinear_num_key_heads: 2\n\
                linear_value_head_dim: 12"),
        /// Width of its values, a multiple of 4 up to 1024.
        linear_value_head_dim: Option<usize> = Shape.optional().within(SIZE).of(LLAMA)
            .example("12\nlayer_types: [linear_attention, full_attention]\nlinear_num_value_heads: 4\nlinear_num_key_heads: 2\n\
                linear_key_head_dim: 8"),
        /// Tokens that the convolution before it sees, from 2 to 16; 4 by default.
        linear_conv_kernel_dim: Option<usize> = Shape.optional().within(CONV_WIDTH).of(LLAMA)
            .example("3\nlayer_types: [linear_attention, full_attention]\nlinear_num_value_heads: 4\nlinear_num_key_heads: 2\nlinear_key_head_dim: 8\n\
                linear_value_head_dim: 12"),
        /// Tokens that the convolution of layers of the kind `conv` sees, from 2 to 16; 3 by default. Lfm2Config has
        /// such layers.
        conv_width "conv_L_cache": Option<usize> = Shape.optional().within(CONV_WIDTH).of(LLAMA)
            .example("4\ntype: Lfm2Config\nlayer_types: [conv, full_attention]"),
        /// Base of the rotary frequencies in layers that have the window, whose frequencies are then not scaled, as in
        /// Gemma 3; `theta` and `rope_scaling` are of all layers by default.
        sliding_theta: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(LLAMA)
            .example("100.0\nlayer_types: [sliding_attention, full_attention]\nsliding_window: 5"),
        /// Width of a head in layers without a window, as in Gemma 4; `head_dim` by default.
        global_head_dim: Option<usize> = Shape.optional().within(SIZE).of(LLAMA).example("8"),
        /// Key and value heads of these layers; `n_kv_heads` by default.
        num_global_key_value_heads: Option<usize> = Shape.optional().within(SIZE).of(LLAMA).example("1"),
        /// Whether these layers have no projection to v: their values are the keys before norm and rotation, normalised
        /// as `use_v_norm` says, which must be on; False by default.
        attention_k_eq_v: Option<bool> = Shape.optional().of(LLAMA)
            .example("True\nuse_v_norm: True\nuse_qk_norm: True"),
        /// Whether v is normalised head by head like q and k, without a weight, as in Gemma 4; only with `use_qk_norm`
        /// and False by default.
        use_v_norm: Option<bool> = Numbers.optional().of(LLAMA).example("True\nuse_qk_norm: True"),
        /// Width of a value, a multiple of 4 up to 512: that of a query and a key by default, of latent attention 128.
        v_head_dim: Option<usize> = Shape.optional().within(SIZE).of(LLAMA).example("16"),
        /// Whether the softmax of each head has a learned logit beside the scores (a sink), as in gpt-oss: in `all`
        /// layers, as in GptOssConfig by default, or in those of `layer_types` that are `sliding_attention` alone, as in
        /// MiMo-V2; no layer by default.
        attention_sinks: Option<SinkLayers> = Shape.optional().of(LLAMA).example("all"),
        /// Whether the result of each layer is multiplied by a number that its checkpoint holds and nothing trains, as
        /// in Gemma 4; False by default.
        layer_scalars: Option<bool> = Shape.optional().of(LLAMA).example("True"),
        /// Whether each element of attention's output is multiplied by the sigmoid of a gate that is projected beside
        /// its query, as in Qwen3-Next; Megatron's name, False by default.
        attention_output_gate: Option<bool> = Shape.optional().of(LLAMA).example("True"),
        /// Number of layers, the last ones, that have no keys and values: each reads those of the last layer before all
        /// of them that has a window as it has one, or has none as it has none, as in Gemma 4; none by default.
        num_kv_shared_layers: Option<usize> = Shape.optional().of(LLAMA).example("1"),
        /// Whether the feed-forward layers of these are twice as wide; False by default.
        use_double_wide_mlp: Option<bool> = Shape.optional().of(LLAMA).example("True\nnum_kv_shared_layers: 1"),
        /// Width of the embeddings that each layer has of its own, a multiple of 4, as in Gemma 4: a row of a table, by
        /// token, and a projection of the embedded token, which the layer gates and adds to its result; none by
        /// default.
        hidden_size_per_layer_input: Option<usize> = Shape.optional().within(SIZE).of(LLAMA).example("8"),
        /// Which layers rotate q and k, as in SmolLM3's file: 1, or 0 for a layer without encoding of positions, for
        /// each layer or for the first layers, which is then repeated; all rotate by default.
        no_rope_layers: Option<Vec<u64>> = Numbers.optional().within(ROTATES).of(LLAMA).example("[1, 0]"),
        /// Storage type of the weights that the optimizer updates: float32, which layers read as copies in
        /// `compute_dtype`, or bfloat16 alone with `optimizer.stochastic_rounding`. Another type causes a notice, with
        /// `stochastic_rounding` an error.
        param_init_type: Option<Element> = Host.optional(),
        /// Targets with this id do not enter the loss.
        ignore_token_id: i64 = Numbers.default(-100).example("3"),
        /// Number of blocks for multi-token prediction, below `seq_length`; none by default. The model predicts the
        /// next token; block i, counted from 1, the i-th after it.
        mtp_depth: Option<usize> = Shape.optional().of(LLAMA).example("1"),
        /// Factor of the mean loss of the `mtp_depth` blocks in the objective; 0.3 by default, as in DeepSeek-V3.
        mtp_loss_factor: Option<f64> = Numbers.optional().within(FROM_ZERO).example("0.1\nmtp_depth: 1"),
        /// Parameters that do not train: regular expressions, found anywhere in a name.
        freeze: Vec<String> = Numbers.optional().example("['embed_tokens']"),
        /// Parameters that train although `freeze` matches them: regular expressions, found anywhere in a name.
        freeze_exclude: Vec<String> = Numbers.optional().example("['layers\\.0']\nfreeze: ['layers']"),
        /// Low-rank adapters (LoRA), a section: they train, and the model's own parameters are frozen.
        pet_config: Option<Pet> = Shape.optional().read_by(pet::read).example("{pet_type: lora, target_modules: .*wq}"),
        /// Layers of each pipeline stage above (positive) or below (negative) an even share: one number for all stages,
        /// one for each stage, or one for each stage of each interleave. Counts of layers in `recompute_config` follow
        /// it.
        offset: Option<Offset> = Host.optional().example("[0]"),
        /// Chunks of layers in each pipeline stage, as `parallel_config.pp_interleave_num` says; only one of them may
        /// be written, unless they agree.
        pp_interleave_num: Option<u64> = Host.optional().within(COUNT).example("2"),
    }
    with
    /// The model that is trained, but for its experts, adapters and recomputation.
    config: ModelConfig = defaults {
        /// Size of the vocabulary (V).
        vocab_size: usize = Shape.required().within(SIZE),
        /// Width of the residual stream (D).
        hidden_size: usize = Shape.required().within(SIZE),
        /// Number of blocks (L).
        num_layers: usize = Shape.required().within(LAYERS),
        /// Query heads (H).
        num_heads: usize = Shape.required().within(SIZE).example("2"),
        /// Key and value heads, a divisor of H; H by default, 2 in ChatGLM2Config.
        layer.num_kv_heads "n_kv_heads": usize = Shape.derived().within(SIZE).of(LLAMA).example("2"),
        /// Width of a head (C), a multiple of 4 up to 512; `hidden_size / num_heads` by default. With latent attention
        /// it is `qk_nope_head_dim + qk_rope_head_dim`.
        layer.head_dim "head_dim": usize = Shape.derived().within(SIZE).of(LLAMA).example("8"),
        /// Inner width of the feed-forward layer (F); required in ChatGLM2Config. By default GPT-2's is `expand_ratio`
        /// times D, and Llama's two thirds of 4 D, times `ffn_dim_multiplier` + 0.01 where that is written, rounded up
        /// to a multiple of `multiple_of`.
        layer.intermediate_size "intermediate_size": usize = Shape.derived().within(SIZE).example("172"),
        /// Activation of the feed-forward layer, in Llama's types of its gate: `silu` makes SwiGLU, GELU GeGLU,
        /// `swigluoai` the clamped form of gpt-oss, min(g, 7) sigmoid(1.702 min(g, 7)) (u + 1) with u between -7 and 7.
        /// GPT-2's is GELU: `gelu_new` and, with a notice, `gelu` are its published form, the tanh approximation;
        /// `gelu_exact` is x Φ(x), and `fast_gelu`, PanGu-α's default, x sigmoid(1.702 x). Without a gate, also `relu`,
        /// `relu2`, its square, and, in dense layers of LlamaConfig, `xielu`, whose two numbers are learned, as in
        /// Apertus.
        activation "hidden_act": Activation = Shape.derived().read_by(activation).example("gelu_exact"),
        /// Tokens in a window (T).
        seq_length: usize = Shape.required().within(SIZE),
        /// Positions of the model; T by default. A number below T is raised to T in Llama and refused in GPT-2.
        max_positions "max_position_embedding": usize = Shape.derived().within(SIZE).example("64"),
        /// Added to the mean square (RMSNorm) or the variance (LayerNorm).
        norm_eps "rms_norm_eps": f64 = Numbers.default(1e-5).within(ABOVE_ZERO)
            .filled("`0.00001`, of `DeepseekV2Config` and `DeepseekV3Config` `0.000001`"),
        /// The same in the norms of latent vectors; `rms_norm_eps` by default.
        latent_norm_eps: Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(DEEPSEEK).example("1e-5"),
        /// Base θ of the rotary frequencies θ^(-2i/d); 10000 by default, 1000000 in LFM2.
        layer.rope_theta "theta": f64 = Numbers.derived().within(ABOVE_ZERO).of(LLAMA).example("1e6"),
        /// Whether rotary pairs are neighbours (2i, 2i+1) instead of halves (i, i + d/2); True by default in ChatGLM,
        /// DeepSeek, ERNIE 4.5 and Helium. Latent attention reads `latent_rotation` instead.
        layer.rotary_interleaved "rotary_interleaved": bool = Numbers.derived().of(LLAMA).example("True"),
        /// Factor of the embedded tokens, in `compute_dtype`; 1 by default.
        factors.embedding "embedding_multiplier": Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(LLAMA)
            .example("12.0"),
        /// Factor of what attention and feed-forward layer add to the residual stream; 1 by default.
        factors.residual "residual_multiplier": Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(LLAMA)
            .example("0.22"),
        /// Factor of the attention scores; 1 / √`head_dim` by default, which latent attention under `yarn` multiplies
        /// by a power of its factor.
        factors.scores "attention_multiplier": Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(LLAMA)
            .example("0.015625"),
        /// Factor of the values of attention, as in MiMo-V2; 1 by default.
        factors.values "attention_value_scale": Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(LLAMA)
            .example("0.707"),
        /// What the logits are divided by; 1 by default.
        factors.logits_divisor "logits_scaling": Option<f64> = Numbers.optional().within(ABOVE_ZERO).of(LLAMA)
            .example("8.0"),
        /// Width of the embedding and of the head's table, as in OPT of 350M, whose projections from it and to it have no
        /// bias; `hidden_size` by default.
        embedding_width "word_embed_proj_dim": Option<usize> = Shape.optional().within(SIZE).of(OPT).example("12"),
        /// What queries, keys and values are clipped to before they rotate, between minus and plus this, as in OLMo 1 and
        /// MPT; not by default.
        clip_qkv: Option<f64> = Numbers.optional().within(CAP).of(LLAMA).example("8.0"),
        /// Soft cap c of the attention scores, c · tanh(score / c), as in Gemma 2; none by default, as the next.
        score_cap "attn_logit_softcapping": Option<f64> = Numbers.optional().within(CAP).of(LLAMA).example("50.0"),
        /// Soft cap of the logits.
        logit_cap "final_logit_softcapping": Option<f64> = Numbers.optional().within(CAP).of(LLAMA).example("30.0"),
        /// Whether the head shares the embedding's weights: True in GPT-2, Falcon, MPT and LFM2, False in Llama by
        /// default.
        tie_word_embeddings: bool = Shape.derived().example("True"),
        /// Whether the q, k and v projections have a bias: True in GPT-2, ChatGLM, Qwen and InternLM by default.
        qkv_bias "qkv_has_bias": bool = Shape.derived().example("True"),
        /// Whether the output projection of attention has a bias: True in GPT-2, TeleChat and InternLM by default.
        output_bias "attn_proj_has_bias": bool = Shape.derived().example("True"),
        /// Whether the first projections of the feed-forward layer have a bias: True in GPT-2 by default.
        gate_up_bias "add_mlp_fc1_bias_linear": bool = Shape.derived().example("True"),
        /// Whether the last projection of the feed-forward layer has a bias: True in GPT-2 and TeleChat by default.
        down_bias "add_mlp_fc2_bias_linear": bool = Shape.derived().example("True"),
        /// Whether the head has a bias, as in GPT-J and Phi-2: True there by default.
        head_bias "lm_head_has_bias": bool = Shape.derived().of(LLAMA).example("True"),
        /// Dropout probability of the attention weights.
        attention_dropout: f64 = Numbers.default(0.0).within(SHARE_BELOW_ONE),
        /// Dropout probability of the outputs of attention and feed-forward layer, before they are added to the
        /// residual stream.
        hidden_dropout: f64 = Numbers.default(0.0).within(SHARE_BELOW_ONE),
        /// Dropout probability of the embedding's output; in ChatGLM2Config that of `hidden_dropout` by default.
        embedding_dropout "emb_dropout_prob": f64 = Numbers.default(0.0).within(SHARE_BELOW_ONE),
        /// Standard deviation of the initial matrices, divided by √(2 L) in those that write into the residual stream;
        /// 0.02 by default in GPT-2 and DeepSeek, 0.01 in other Llamas.
        init_std "init_method_std": f64 = Numbers.derived().within(ABOVE_ZERO).example("0.03"),
        /// Storage type of activations and of the weights that layers compute with: `float32`, `float16` or `bfloat16`.
        /// Sums, moments, logits and routers are float32 in any case, and so are master weights, which
        /// `optimizer.stochastic_rounding` does without.
        compute "compute_dtype": Element = Numbers.default(Element::F32),
    }
    with
    /// Widths of latent attention, without effect in models that have none.
    latent: LatentAttention = latent::defaults {
        /// Width of the latent vector of the queries, a multiple of 4. Absent or `null`: queries come from the hidden
        /// state directly; DeepSeek-V3 has 1536.
        q_rank "q_lora_rank": Option<usize> = Shape.optional().within(SIZE).of(DEEPSEEK).example("24"),
        /// Width of the latent vector of keys and values, a multiple of 4; 512 by default.
        kv_rank "kv_lora_rank": usize = Shape.derived().within(SIZE).of(DEEPSEEK).example("24"),
        /// Width of the part of a query and a key that does not rotate, a multiple of 4; 128 by default.
        nope_dim "qk_nope_head_dim": usize = Shape.derived().within(SIZE).of(DEEPSEEK).example("16"),
        /// Width of the part of a query and a key that rotates, a multiple of 4; all keys share it; 64 by default. A
        /// head is both parts wide, at most 512.
        rope_dim "qk_rope_head_dim": usize = Shape.derived().within(SIZE).of(DEEPSEEK).example("8"),
    }
}

const DEEPSEEK: &str = "DeepseekV3Config DeepseekV2Config";

/// Numbers whose reciprocals f32 has, too.
const CAP: Range = Range::new("a number from 1e-6 to 1e6", |cap| (1e-6..=1e6).contains(&cap), 0.0);

impl Words for Element {
    const WORDS: &'static [(&'static str, Self)] =
        &[("float32", Self::F32), ("float16", Self::F16), ("bfloat16", Self::Bf16)];
}

impl Words for QkNorm {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("heads", Self::Heads),
        ("all_heads", Self::AllHeads),
        ("rotated_heads", Self::RotatedHeads),
        ("layer_norm", Self::LayerNorm),
        ("layer_norm_by_head", Self::LayerNormByHead),
    ];
}

impl Words for LatentRotation {
    const WORDS: &'static [(&'static str, Self)] =
        &[("neighbours", Self::Neighbours), ("halves", Self::Halves)];
}

impl Words for Norm {
    const WORDS: &'static [(&'static str, Self)] =
        &[("RMSNorm", Self::RmsNorm), ("LayerNorm", Self::LayerNorm)];
}

impl Words for ParallelResidual {
    const WORDS: &'static [(&'static str, Self)] =
        &[("two_norms", Self::TwoNorms), ("one_norm", Self::OneNorm)];
}

impl Words for NormPlacement {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("before", Self::Before),
        ("after", Self::After),
        ("both", Self::Both),
        ("after_sum", Self::AfterSum),
    ];
}

impl Words for Activation {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("silu", Self::Gated(Gate::Silu)),
        ("swiglu", Self::Gated(Gate::Silu)),
        ("fusedswiglu", Self::Gated(Gate::Silu)),
        ("swigluoai", Self::Gated(Gate::Clamped)),
        ("gelu_new", Self::Gelu(Gelu::Tanh)),
        ("gelu_tanh", Self::Gelu(Gelu::Tanh)),
        ("gelu_pytorch_tanh", Self::Gelu(Gelu::Tanh)),
        ("gelu", Self::Gelu(Gelu::Tanh)),
        ("gelu_exact", Self::Gelu(Gelu::Exact)),
        ("quick_gelu", Self::Gelu(Gelu::Fast)),
        ("fast_gelu", Self::Gelu(Gelu::Fast)),
        ("relu", Self::Gelu(Gelu::Relu)),
        ("relu2", Self::Gelu(Gelu::ReluSquared)),
        ("xielu", Self::Xielu),
    ];

    // Of a gate's activation only the type says that it is one.
    fn word(&self) -> &'static str {
        let alone = match *self {
            Self::Gated(Gate::Gelu(kind)) => Self::Gelu(kind),
            other => other,
        };
        Self::WORDS.iter().find(|(_, value)| *value == alone).map_or("", |(word, _)| word)
    }
}

/// `hidden_act`, which must suit the type.
fn activation(reader: &Reader<'_>, key: &'static str) -> Option<Activation> {
    let written = reader.node("gated_linear_unit").and_then(bool::from_node);
    let has_gate = written.unwrap_or(defaults(Some(reader)).activation.gate().is_some());
    let node = reader.node(key)?;
    let activation = Activation::from_node(node).map(|activation| match activation {
        Activation::Gelu(kind) if has_gate && !kind.is_rectified() => Activation::Gated(Gate::Gelu(kind)),
        other => other,
    });
    match activation {
        Some(activation) if activation.gate().is_some() == has_gate => {
            if node.word() == Some("gelu") {
                let text = "`gelu` is the tanh form, as in MindFormers; `gelu_exact` is the one by the error function";
                reader.note(key, text);
            }
            Some(activation)
        }
        _ => {
            let remedy = if has_gate { "silu" } else { "gelu_new" };
            reader.fault(key, format!("not built yet (found {node}); write `{key}: {remedy}`"));
            None
        }
    }
}
