"""Loads a small random model of every family of causal language models in transformers, and compares losses.

    cargo build --release --bin gristmill
    python tests/transformers/shapes.py [--list] [--gradients] [--steps] [--keys] [--export] [--shards] [--text] [SHAPE ...]

Each shape is saved by `save_pretrained`, and its folder is all that a configuration says of the model (`load_checkpoint`). It is

    equal       the loss of the first step is that of transformers on the same tokens, at most 1e-5 of it apart
    refused     gristmill ends with an error that names the culprit
    DIFFERENT   it trains another model, or loads this one with a warning: the script then ends with exit code 1

With --gradients the gradient of each parameter has to be that of torch in float64, as near to it as GRADIENT or NARROW says.
With --steps the losses of ten steps of AdamW at a rate of 1e-3 have to be those of torch in float64 or float32, each at most 1e-5 apart, or no
farther from float64 than torch in float32 is. With --keys each
key of the config.json of shapes that are equal is taken out and changed, one at a time: that has to be an error, or what transformers computes
with the same file. With --export the checkpoint of the step, whose learning rate moves no weight by more than 1e-9, and its export are opened
by transformers: their losses have to be that of the model, and where they are of its class, which exports are, each tensor. With --shards the
model is saved again, in bfloat16 and in files of 50 KB, and has to have the loss that transformers computes in float32 from these. With --text
`generate` continues seven bytes by 40, with a cache and past windows of 7, which have to be the likeliest by transformers, which has none.
Those of SHAPES are expected to be equal or refused as they say; of the other families
nothing is expected but that they do not differ. Needs torch, transformers and safetensors, and runs from the root of the repository.
All shapes take ten minutes, with all of these checks half an hour, and their keys an hour.
"""

import argparse
import copy
import json
import logging
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

GRISTMILL = "target/release/gristmill"
WINDOW, BATCH, VOCABULARY = 48, 4, 256
ALLOWED = 1e-5
STEPS, RATE = 10, 1e-3  # of --steps
# Steps until float32 chooses another expert than float64, where two are all but equal.
UNTIL_TIPPED = {"deepseek_v3, yarn": 7, "granitemoe with biases and a tied head": 5}
PROMPT, TOKENS = b"fn main", 40  # of --text
BETAS, EPSILON = [0.9, 0.95], 1e-8
# How far the gradient of a parameter may be from float64, relative to its length; or how many times as far as torch's in float32.
GRADIENT, NARROW = 1e-5, 4.0
# Gradients of a few numbers each, whose terms, one for each token, all but cancel: what may be instead.
CANCELLED = {".sinks": 2e-5, ".alpha_p": 3e-5, ".alpha_n": 3e-5, ".dt_bias": 3e-5, ".A_log": 3e-5}
LARGEST = 20_000_000  # parameters of a shape that is made

# Values of keys that a class has: none is its default, and a key that is left out shows in the loss.
KEYS = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 112, "rms_norm_eps": 3e-2, "layer_norm_epsilon": 3e-2,
    "layer_norm_eps": 3e-2, "norm_eps": 3e-2, "norm_epsilon": 3e-2,
    "moe_intermediate_size": 40, "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 3,
    "shared_expert_intermediate_size": 56, "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7, "norm_topk_prob": True, "kv_lora_rank": 28, "q_lora_rank": 20, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_embd": 64, "n_layer": 3, "n_layers": 3, "num_layers": 3, "n_head": 4, "n_inner": 112,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_conv_kernel_dim": 3,
    "n_positions": 64, "ffn_dim": 112, "ffn_hidden_size": 112, "expert_ffn_hidden_size": 40, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 3, "moe_norm_min": 0.6,
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}
LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 700.0, "factor": 3.0}}
YARN = {"rope_type": "yarn", "rope_theta": 700.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 700.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
GROWING = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.6, "max_position_embeddings": 64}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 700.0, "factor": 2.0}
LATENT = {"rms_norm_eps": 1e-6, "num_key_value_heads": 4, **ROPE}
LONGROPE = {"rope_type": "longrope", "rope_theta": 700.0, "short_factor": [1.1] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 32}
MINICPM3 = {"num_key_value_heads": 4, "scale_emb": 3.0, "scale_depth": 0.9, "dim_model_base": 24, **ROPE}
SLIDING, FULL = "sliding_attention", "full_attention"
MROPE = {"rope_parameters": ROPE["rope_parameters"] | {"mrope_section": [2, 3, 3]}, "head_dim": None}
TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES = TOWER | {"image_size": 28, "patch_size": 14}
QWEN_VISION = {"depth": 1, "hidden_size": 64, "embed_dim": 64, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64}
QWEN3_5_VISION = {"depth": 1, "hidden_size": 64, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 16}
# Wrappers of a language model: its class where it can be another, and the keys of their other towers.
WRAPPERS = {
    "llava": ("llama", {"vision_config": IMAGES | {"model_type": "clip_vision_model"}}),
    "llava_next": ("llama", {"vision_config": IMAGES | {"model_type": "clip_vision_model"}}),
    "mistral3": ("mistral", {"vision_config": IMAGES | {"model_type": "pixtral", "head_dim": 8}}),
    "internvl": ("qwen2", {"vision_config": TOWER | {"image_size": [28, 28], "patch_size": [14, 14]}}),
    "qwen2_vl": ("qwen2_vl_text", {"vision_config": QWEN_VISION}),
    "qwen2_5_vl": ("qwen2_5_vl_text", {"vision_config": QWEN_VISION}),
    "qwen3_vl": ("qwen3_vl_text", {"vision_config": QWEN_VISION | {"deepstack_visual_indexes": [0]}}),
    "qwen3_5": ("qwen3_5_text", {"vision_config": QWEN3_5_VISION}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {"vision_config": QWEN3_5_VISION}),
    "lfm2_vl": ("lfm2", {"vision_config": IMAGES | {"model_type": "siglip2_vision_model", "num_patches": 16}, "projector_hidden_size": 16}),
    "gemma4": ("gemma4_text", {"vision_config": IMAGES | {"model_type": "gemma4_vision"}, "audio_config": None}),
    "gemma3": ("gemma3_text", {"vision_config": IMAGES | {"model_type": "siglip_vision_model"}, "mm_tokens_per_image": 4}),
    "idefics3": ("llama", {"vision_config": IMAGES}),
    "smolvlm": ("llama", {"vision_config": IMAGES}),
    "voxtral": ("llama", {"audio_config": TOWER}),
}
GEMMA2 = {"sliding_window": 7, "query_pre_attn_scalar": 11, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0, **ROPE}
GEMMA3 = {
    "sliding_window": 7, "query_pre_attn_scalar": 11, "layer_types": [SLIDING, SLIDING, FULL],
    "rope_parameters": {FULL: ROPE["rope_parameters"], SLIDING: {"rope_type": "default", "rope_theta": 40.0}},
}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0}
MPT = {"d_model": 64, "n_heads": 4, "max_seq_len": 64}
SHARE = {"rope_parameters": ROPE["rope_parameters"] | {"partial_rotary_factor": 0.5}}
GEMMA4 = {
    "sliding_window": 7, "layer_types": [SLIDING, SLIDING, FULL], "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCABULARY,
    "global_head_dim": 32, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    "rope_parameters": {
        FULL: {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": 0.3}, SLIDING: {"rope_type": "default", "rope_theta": 40.0},
    },
}
QWEN3_NEXT = {"layer_types": ["linear_attention", "linear_attention", FULL], **ROPE}
MIMO = {
    "sliding_window": 7,
    "rope_parameters": {
        FULL: ROPE["rope_parameters"] | {"partial_rotary_factor": 0.334},
        SLIDING: {"rope_type": "default", "rope_theta": 40.0, "partial_rotary_factor": 0.334},
    },
}
LFM2 = {"layer_types": ["conv", FULL, "conv"], "conv_L_cache": 4, **ROPE}
WIDE = {"hidden_size": 160, "intermediate_size": 300, "head_dim": 40}  # of several blocks of FP8 each way

# Shape: its model_type, keys that it has beside those above, and what it has to be.
SHAPES = {
    "llama": ("llama", ROPE, "equal"),
    "llama with all biases": ("llama", {"attention_bias": True, "mlp_bias": True, **ROPE}, "equal"),
    "llama with a tied head": ("llama", {"tie_word_embeddings": True, **ROPE}, "equal"),
    "llama, linear": ("llama", LINEAR, "equal"),
    "llama, yarn": ("llama", {"rope_parameters": YARN}, "equal"),
    "llama, yarn with mscale": ("llama", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}}, "equal"),
    "llama, yarn with an attention factor": ("llama", {"rope_parameters": YARN | {"attention_factor": 1.3}}, "refused"),
    "llama, yarn that is not truncated": ("llama", {"rope_parameters": YARN | {"truncate": False}}, "equal"),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}, "equal"),
    "llama, dynamic within its length": ("llama", {"rope_parameters": DYNAMIC}, "equal"),
    "llama, dynamic beyond its length": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}, "equal"),
    "llama, longrope": ("llama", {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 64, "factor": 2.0}, "head_dim": 16}, "equal"),
    "llama, longrope beyond its length": ("llama", {"rope_parameters": LONGROPE | {"attention_factor": 1.4}, "head_dim": 16}, "equal"),
    "llama with a rotating share": ("llama", {"rope_parameters": ROPE["rope_parameters"] | {"partial_rotary_factor": 0.5}}, "refused"),
    "llama with gelu": ("llama", {"hidden_act": "gelu", **ROPE}, "equal"),
    "mixtral with gelu": ("mixtral", {"hidden_act": "gelu_pytorch_tanh", **ROPE}, "equal"),
    "mistral": ("mistral", {"sliding_window": 7, **ROPE}, "equal"),
    "mistral without a window": ("mistral", {"sliding_window": None, **ROPE}, "equal"),
    "mistral with a long window": ("mistral", {"sliding_window": 4096, **ROPE}, "equal"),
    "ministral": ("ministral", {"sliding_window": 7, **ROPE}, "equal"),
    "ministral, alternating": ("ministral", {"sliding_window": 7, "layer_types": [SLIDING, FULL, SLIDING], **ROPE}, "equal"),
    "ministral3": ("ministral3", {"rope_parameters": GROWING}, "equal"),
    "ministral3 with a window": ("ministral3", {"rope_parameters": GROWING, "sliding_window": 7}, "equal"),
    "ministral3, llama3": ("ministral3", {"rope_parameters": LLAMA3 | {"llama_4_scaling_beta": 0.6}}, "equal"),
    "ministral3 of its own rotation": ("ministral3", {}, "equal"),
    "mixtral": ("mixtral", ROPE, "equal"),
    "gpt_oss": ("gpt_oss", {"sliding_window": 7, "rope_parameters": YARN | {"truncate": False}}, "equal"),
    "gpt_oss of its own rotation": ("gpt_oss", {"sliding_window": 7}, "equal"),
    "gpt_oss without windows and biases": (
        "gpt_oss",
        {"layer_types": [FULL] * 3, "attention_bias": False, "tie_word_embeddings": True, **ROPE},
        "equal",
    ),
    "gpt_oss, some of whose gates are clamped": ("gpt_oss", {"sliding_window": 7, "hidden_size": 160, **ROPE}, "equal"),
    "gpt_oss of another limit": ("gpt_oss", {"swiglu_limit": 5.0, **ROPE}, "refused"),
    "gpt_oss of another width": ("gpt_oss", {"intermediate_size": 98, **ROPE}, "refused"),
    "gpt_oss in mxfp4": ("gpt_oss", {"sliding_window": 7, "intermediate_size": 64, **ROPE}, "equal"),
    "mimo_v2_flash": ("mimo_v2_flash", MIMO, "equal"),
    "mimo_v2_flash of other layers, with biases": (
        "mimo_v2_flash",
        MIMO | {"layer_types": [SLIDING, FULL, SLIDING], "mlp_layer_types": ["dense", "dense", "sparse"], "attention_bias": True, "sliding_window_size": 5,
                "attention_value_scale": None, "routed_scaling_factor": None, "n_group": 1, "topk_group": 1, "tie_word_embeddings": True},
        "equal",
    ),
    "mimo_v2_flash of windows alone, dense, whose values are as wide as keys": (
        "mimo_v2_flash", MIMO | {"layer_types": [SLIDING] * 3, "mlp_layer_types": ["dense"] * 3, "v_head_dim": 24, "norm_topk_prob": False}, "equal",
    ),
    "mimo_v2_flash without windows, of one rotation by halves of heads": (
        "mimo_v2_flash", {"layer_types": [FULL] * 3, "norm_topk_prob": False, "rope_parameters": dict.fromkeys([FULL, SLIDING], SHARE["rope_parameters"])}, "equal",
    ),
    "mimo_v2_flash with long windows, whose last layer alone has experts": (
        "mimo_v2_flash", MIMO | {"sliding_window": 4096, "mlp_layer_types": ["dense", "dense", "sparse"], "v_head_dim": 32}, "equal",
    ),
    "mimo_v2_flash of shares by kind": (
        "mimo_v2_flash", MIMO | {"rope_parameters": MIMO["rope_parameters"] | {FULL: SHARE["rope_parameters"]}}, "refused",
    ),
    "mixtral with a window": ("mixtral", {"sliding_window": 7, **ROPE}, "equal"),
    "qwen2": ("qwen2", ROPE, "equal"),
    "qwen2 with a window": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0, **ROPE}, "equal"),
    "qwen2 with windows from layer 1": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, **ROPE}, "equal"),
    "qwen3": ("qwen3", ROPE, "equal"),
    "qwen3 with windows from layer 2": ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2, **ROPE}, "equal"),
    "qwen3 with biases": ("qwen3", {"attention_bias": True, **ROPE}, "equal"),
    "qwen2_moe": ("qwen2_moe", ROPE, "equal"),
    "qwen2_moe with a dense layer": ("qwen2_moe", {"mlp_only_layers": [0], **ROPE}, "equal"),
    "qwen2_moe, every second layer": ("qwen2_moe", {"decoder_sparse_step": 2, **ROPE}, "refused"),
    "qwen2_moe, not normalised": ("qwen2_moe", {"norm_topk_prob": False, **ROPE}, "equal"),
    "qwen3_moe": ("qwen3_moe", ROPE, "equal"),
    "qwen3_moe with a window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 7, **ROPE}, "equal"),
    "qwen3_moe, one expert": ("qwen3_moe", {"num_experts_per_tok": 1, **ROPE}, "refused"),
    "glm": ("glm", ROPE, "equal"),
    "glm4": ("glm4", ROPE, "equal"),
    "glm4 without biases": ("glm4", {"attention_bias": False, "tie_word_embeddings": True, **ROPE}, "equal"),
    "olmo": ("olmo", ROPE, "equal"),
    "olmo with biases": ("olmo", {"attention_bias": True, "tie_word_embeddings": True, **ROPE}, "equal"),
    "olmo that clips": ("olmo", {"clip_qkv": 0.5, **ROPE}, "equal"),
    "olmo2": ("olmo2", ROPE, "equal"),
    "olmo2 with biases": ("olmo2", {"attention_bias": True, "tie_word_embeddings": True, **ROPE}, "equal"),
    "olmo3": ("olmo3", {"num_hidden_layers": 4, "sliding_window": 7, "rope_parameters": {FULL: YARN, SLIDING: ROPE["rope_parameters"]}}, "equal"),
    "olmo3 with a list": (
        "olmo3",
        {"layer_types": [FULL, SLIDING, FULL], "sliding_window": 7, "rope_parameters": {FULL: ROPE["rope_parameters"], SLIDING: {"rope_type": "default", "rope_theta": 40.0}}},
        "equal",
    ),
    "olmo3 without windows": ("olmo3", {"layer_types": [FULL] * 3, "tie_word_embeddings": True, "attention_bias": True}, "equal"),
    "olmoe": ("olmoe", {"head_dim": None, **ROPE}, "equal"),
    "olmoe, not normalised": ("olmoe", {"norm_topk_prob": False, "attention_bias": True, **ROPE}, "equal"),
    "olmoe that clips": ("olmoe", {"clip_qkv": 0.5, "head_dim": None, **ROPE}, "equal"),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", ROPE, "equal"),
    "hunyuan_v1_dense with biases": ("hunyuan_v1_dense", {"attention_bias": True, "tie_word_embeddings": True, **ROPE}, "equal"),
    "hunyuan_v1_dense, alpha": ("hunyuan_v1_dense", {"rope_parameters": DYNAMIC | {"alpha": 50.0}, "max_position_embeddings": 32}, "equal"),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", ROPE, "equal"),
    "hunyuan_v1_moe with lists": ("hunyuan_v1_moe", {"num_experts_per_tok": [3] * 3, "attention_bias": True, "tie_word_embeddings": True, **ROPE}, "equal"),
    "hunyuan_v1_moe with another number in a layer": ("hunyuan_v1_moe", {"num_experts_per_tok": [3, 2, 3], **ROPE}, "refused"),
    "minimax_m2": ("minimax_m2", {"rope_parameters": ROPE["rope_parameters"] | {"partial_rotary_factor": 0.5}}, "equal"),
    "minimax_m2 with a number of dimensions": ("minimax_m2", {"rotary_dim": 8, "tie_word_embeddings": True, **ROPE}, "equal"),
    "exaone4": ("exaone4", {"sliding_window": 7, "sliding_window_pattern": 2, **ROPE}, "equal"),
    "exaone4 without windows": ("exaone4", {"sliding_window": None, "layer_types": [FULL] * 3, "tie_word_embeddings": True, **ROPE}, "equal"),
    "exaone4 with a long window": ("exaone4", {"sliding_window": 4096, "layer_types": [SLIDING, FULL, SLIDING], **ROPE}, "equal"),
    "glm4_moe": ("glm4_moe", ROPE, "equal"),
    "glm4_moe with QK-norm": ("glm4_moe", {"use_qk_norm": True, "attention_bias": True, **ROPE}, "equal"),
    "glm4_moe_lite": ("glm4_moe_lite", LATENT, "equal"),
    "deepseek_v2": ("deepseek_v2", LATENT | {"topk_method": "group_limited_greedy", "norm_topk_prob": False}, "equal"),
    "deepseek_v2 without groups": ("deepseek_v2", LATENT | {"topk_method": "greedy", "q_lora_rank": None, "norm_topk_prob": False}, "equal"),
    "deepseek_v3": ("deepseek_v3", LATENT, "equal"),
    "deepseek_v3, yarn": ("deepseek_v3", LATENT | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}}, "equal"),
    "deepseek_v3 with halves": ("deepseek_v3", LATENT | {"rope_interleave": False}, "equal"),
    "deepseek_v3 of another eps": ("deepseek_v3", LATENT | {"rms_norm_eps": 3e-2}, "equal"),
    "deepseek_v2 with halves": ("deepseek_v2", LATENT | {"topk_method": "greedy", "norm_topk_prob": False, "rope_interleave": False}, "refused"),
    "youtu": ("youtu", LATENT, "equal"),
    "dots1": ("dots1", {"sliding_window": None, **ROPE}, "equal"),
    "seed_oss": ("seed_oss", ROPE, "equal"),
    "seed_oss with an output bias": ("seed_oss", {"attention_out_bias": True, **ROPE}, "equal"),
    "internlm3": ("internlm3", ROPE, "equal"),
    "iquestcoder": ("iquestcoder", ROPE, "equal"),
    "solar_open": ("solar_open", ROPE, "equal"),
    "cwm": ("cwm", {"sliding_window": 7, **ROPE}, "equal"),
    "cwm with biases": ("cwm", {"sliding_window": 7, "mlp_bias": True, "rope_parameters": LLAMA3}, "equal"),
    "cwm without windows": ("cwm", {"layer_types": [FULL] * 3, **ROPE}, "equal"),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, **ROPE}, "equal"),
    "smollm3 with windows where it does not rotate": (
        "smollm3",
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 7, "attention_bias": True, **ROPE},
        "equal",
    ),
    "smollm3 with lists": (
        "smollm3",
        {"no_rope_layers": [0, 1, 1], "layer_types": [FULL, SLIDING, FULL], "use_sliding_window": True, "sliding_window": 7, **ROPE},
        "equal",
    ),
    "smollm3 that rotates in all layers": ("smollm3", {"no_rope_layers": [1, 1, 1], **ROPE}, "equal"),
    "granite": ("granite", GRANITE | ROPE, "equal"),
    "granite with biases and a tied head": (
        "granite",
        {"attention_multiplier": 0.3, "residual_multiplier": 0.5, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, **ROPE},
        "equal",
    ),
    "granite without factors": ("granite", {"attention_multiplier": 0.25, **ROPE}, "equal"),
    "granitemoe": ("granitemoe", GRANITE | ROPE, "equal"),
    "granitemoe with biases and a tied head": ("granitemoe", {"attention_bias": True, "tie_word_embeddings": True, "hidden_act": "gelu", **ROPE}, "equal"),
    "granitemoe, one expert": ("granitemoe", {"num_experts_per_tok": 1, **ROPE}, "refused"),
    "granitemoeshared": ("granitemoeshared", GRANITE | {"shared_intermediate_size": 56, **ROPE}, "equal"),
    "granitemoeshared without it": ("granitemoeshared", GRANITE | ROPE, "equal"),
    "hyperclovax": ("hyperclovax", GRANITE | {"logits_scaling": 0.25, **ROPE}, "equal"),
    "hyperclovax with biases": ("hyperclovax", {"residual_multiplier": 0.5, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, **ROPE}, "equal"),
    "hyperclovax without further norms": ("hyperclovax", {"use_post_norm": False, **ROPE}, "equal"),
    "hyperclovax with factors": (
        "hyperclovax",
        {"use_post_norm": False, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 0.25, **ROPE},
        "equal",
    ),
    "gemma": ("gemma", ROPE, "equal"),
    "gemma with biases and a head of its own": ("gemma", {"attention_bias": True, "tie_word_embeddings": False, **ROPE}, "equal"),
    "gemma by the error function": ("gemma", {"hidden_act": "gelu_python", **ROPE}, "equal"),
    "arcee": ("arcee", ROPE, "equal"),
    "arcee with biases": ("arcee", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "hidden_act": "relu", **ROPE}, "equal"),
    "apertus": ("apertus", ROPE, "equal"),
    "apertus of its own rotation, with biases": (
        "apertus", {"max_position_embeddings": 16384, "attention_bias": True, "tie_word_embeddings": True}, "equal",
    ),
    "apertus with gelu": ("apertus", {"hidden_act": "gelu", **ROPE}, "refused"),
    "nemotron": ("nemotron", SHARE, "equal"),
    "nemotron with biases": ("nemotron", {"attention_bias": True, "mlp_bias": True, "hidden_act": "gelu", **ROPE}, "equal"),
    "starcoder2": ("starcoder2", {"sliding_window": 7, **ROPE}, "equal"),
    "starcoder2 without biases": ("starcoder2", {"use_bias": False, "tie_word_embeddings": False, **ROPE}, "equal"),
    "stablelm": ("stablelm", SHARE, "equal"),
    "stablelm beside attention": ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True, **SHARE}, "equal"),
    "stablelm with norms of heads": ("stablelm", {"qk_layernorm": True, **SHARE}, "equal"),
    "cohere": ("cohere", {"logit_scale": 0.3, **ROPE}, "equal"),
    "cohere with biases and a head of its own": ("cohere", {"attention_bias": True, "tie_word_embeddings": False, **ROPE}, "equal"),
    "cohere with norms of heads": ("cohere", {"use_qk_norm": True, **ROPE}, "equal"),
    "cohere2": ("cohere2", {"sliding_window": 7, "num_hidden_layers": 5, "logit_scale": 0.3, **ROPE}, "equal"),
    "cohere2 with heads of another width": ("cohere2", {"sliding_window": 7, "head_dim": 24, **ROPE}, "equal"),
    "cohere2 with a list": ("cohere2", {"sliding_window": 7, "layer_types": [FULL, SLIDING, FULL], "attention_bias": True, **ROPE}, "equal"),
    "cohere2 without windows": ("cohere2", {"layer_types": [FULL] * 3, "tie_word_embeddings": False, **ROPE}, "equal"),
    "jais2": ("jais2", {"layer_norm_eps": 3e-2, **ROPE}, "equal"),
    "jais2 without biases": ("jais2", {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True, **ROPE}, "equal"),
    "gpt_neox": ("gpt_neox", SHARE, "equal"),
    "gpt_neox after attention": ("gpt_neox", {"use_parallel_residual": False, "attention_bias": False, "tie_word_embeddings": True, **ROPE}, "equal"),
    "gptj": ("gptj", {"rotary_dim": 8}, "equal"),
    "gptj of a plain width": ("gptj", {"rotary_dim": 16, "n_inner": None, "activation_function": "gelu", "tie_word_embeddings": True}, "equal"),
    "phi": ("phi", SHARE, "equal"),
    "phi with a tied head": ("phi", {"tie_word_embeddings": True, "num_key_value_heads": 4, "hidden_act": "gelu", **LINEAR}, "equal"),
    "phi with norms of heads": ("phi", {"qk_layernorm": True, **SHARE}, "equal"),
    "nanochat": ("nanochat", {"final_logit_softcapping": 2.0, **ROPE}, "equal"),
    "nanochat without a cap": ("nanochat", {"final_logit_softcapping": None, "attention_bias": True, "tie_word_embeddings": True, **LINEAR}, "equal"),
    "mpt": ("mpt", MPT, "equal"),
    "mpt with a factor and six heads": ("mpt", MPT | {"n_heads": 6, "num_attention_heads": 6, "d_model": 48, "hidden_size": 48, "attn_config": {"softmax_scale": 0.3}, "tie_word_embeddings": False}, "equal"),
    "mpt that clips": ("mpt", MPT | {"attn_config": {"clip_qkv": 0.5}}, "equal"),
    "mpt of other slopes": ("mpt", MPT | {"attn_config": {"alibi_bias_max": 16}}, "refused"),
    "falcon": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, **ROPE}, "equal"),
    "falcon of one norm": ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "bias": True, **LINEAR}, "equal"),
    "falcon of one key": ("falcon", {"ffn_hidden_size": None, "activation": "gelu_new", "tie_word_embeddings": False, **ROPE}, "equal"),
    "falcon after attention": ("falcon", {"multi_query": False, "parallel_attn": False, "bias": True, **ROPE}, "equal"),
    "falcon of two factors": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "ff_factor": 4, "tie_word_embeddings": False, **ROPE},
        "equal",
    ),
    "falcon with alibi": ("falcon", {"alibi": True}, "refused"),
    "minicpm3": ("minicpm3", MINICPM3 | {"tie_word_embeddings": False}, "equal"),
    "minicpm3 with queries of no rank": (
        "minicpm3",
        MINICPM3 | {"q_lora_rank": None, "mlp_bias": True, "rope_parameters": LONGROPE | {"short_factor": [1.1] * 4, "long_factor": [1.0, 1.2, 2.0, 4.0], "factor": 2.0}},
        "equal",
    ),
    "minicpm3 without factors": ("minicpm3", MINICPM3 | {"scale_emb": 1, "scale_depth": None, "dim_model_base": None, "rope_parameters": YARN}, "equal"),
    "gpt2": ("gpt2", {}, "equal"),
    "gpt2 of a plain width": ("gpt2", {"n_inner": None, "activation_function": "gelu"}, "equal"),
    "gpt2 scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "refused"),
    "gpt_bigcode": ("gpt_bigcode", {}, "equal"),
    "gpt_bigcode with heads of its own": ("gpt_bigcode", {"multi_query": False}, "refused"),
    "opt": ("opt", {}, "equal"),
    "opt with a head of its own": ("opt", {"activation_function": "gelu", "tie_word_embeddings": False}, "equal"),
    "opt with norms after sums": ("opt", {"do_layer_norm_before": False}, "equal"),
    "opt with a narrow embedding": ("opt", {"word_embed_proj_dim": 36, "tie_word_embeddings": False}, "equal"),
    "opt of 350M": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 36}, "equal"),
    "opt without a last norm": ("opt", {"_remove_final_layer_norm": True}, "refused"),
    "bloom": ("bloom", {}, "equal"),
    "phi3": ("phi3", ROPE, "equal"),
    "phi3 with a window": ("phi3", {"sliding_window": 7, **ROPE}, "equal"),
    "phi3 with a rotating share": ("phi3", {"rope_parameters": ROPE["rope_parameters"] | {"partial_rotary_factor": 0.75}, "tie_word_embeddings": True}, "equal"),
    "phi3, longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 48, "head_dim": 16}, "equal"),
    "phi3, longrope beyond its length, of a rotating share": (
        "phi3",
        {"rope_parameters": LONGROPE | {"partial_rotary_factor": 0.75, "short_factor": [1.1] * 6, "long_factor": [1.0, 1.2, 1.5, 2.0, 3.0, 4.0]},
         "original_max_position_embeddings": 32, "head_dim": 16},
        "equal",
    ),
    "ernie4_5": ("ernie4_5", ROPE, "equal"),
    "ernie4_5 with biases": ("ernie4_5", {"use_bias": True, "tie_word_embeddings": False, **ROPE}, "equal"),
    "ernie4_5, linear": ("ernie4_5", LINEAR, "equal"),
    "helium": ("helium", {"head_dim": 16, **ROPE}, "equal"),
    "helium with biases": ("helium", {"head_dim": 16, "attention_bias": True, "mlp_bias": True, **ROPE}, "equal"),
    "llama in fp8": ("llama", WIDE | ROPE, "equal"),
    "llama in float64": ("llama", ROPE, "equal"),
    "llama in pickles": ("llama", ROPE, "equal"),
    "llava": ("llava", ROPE, "equal"),
    "llava with a tied head": ("llava", {"tie_word_embeddings": True, **ROPE}, "equal"),
    "llava_next": ("llava_next", ROPE, "equal"),
    "mistral3": ("mistral3", {"sliding_window": None, **ROPE}, "equal"),
    "mistral3 around ministral3": ("mistral3", {"model_type": "ministral3", "rope_parameters": GROWING}, "equal"),
    "mistral3 with a tied head": ("mistral3", {"sliding_window": 7, "tie_word_embeddings": True, **ROPE}, "equal"),
    "internvl": ("internvl", ROPE, "equal"),
    "qwen2_vl": ("qwen2_vl", MROPE, "equal"),
    "qwen2_5_vl": ("qwen2_5_vl", MROPE, "equal"),
    "qwen2_5_vl with a tied head": ("qwen2_5_vl", {"tie_word_embeddings": True, **MROPE}, "equal"),
    "qwen3_vl": ("qwen3_vl", {"rope_parameters": ROPE["rope_parameters"] | {"mrope_section": [4, 4, 4]}}, "equal"),
    "idefics3": ("idefics3", ROPE, "equal"),
    "smolvlm": ("smolvlm", ROPE, "equal"),
    "smolvlm with a tied head": ("smolvlm", {"tie_word_embeddings": True, **ROPE}, "equal"),
    "voxtral": ("voxtral", ROPE, "equal"),
    "gemma2": ("gemma2", GEMMA2, "equal"),
    "gemma2 of other layers and caps": (
        "gemma2",
        GEMMA2 | {"layer_types": [FULL, SLIDING, SLIDING], "attn_logit_softcapping": None, "tie_word_embeddings": False, "attention_bias": True},
        "equal",
    ),
    "gemma2 without a cap of logits": ("gemma2", GEMMA2 | {"final_logit_softcapping": None, "hidden_activation": "gelu", "sliding_window": 4096}, "equal"),
    "gemma3_text": ("gemma3_text", GEMMA3, "equal"),
    "gemma3_text, linear": ("gemma3_text", GEMMA3 | {"rope_parameters": {FULL: LINEAR["rope_parameters"], SLIDING: {"rope_type": "default", "rope_theta": 40.0}}}, "equal"),
    "gemma3_text of one rotation": (
        "gemma3_text",
        GEMMA3 | {"rope_parameters": dict.fromkeys([FULL, SLIDING], ROPE["rope_parameters"]), "attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0},
        "equal",
    ),
    "gemma3_text with a long window": ("gemma3_text", GEMMA3 | {"sliding_window": 4096, "query_pre_attn_scalar": 24}, "equal"),
    "gemma3_text with scaled windows": ("gemma3_text", GEMMA3 | {"rope_parameters": {FULL: ROPE["rope_parameters"], SLIDING: LINEAR["rope_parameters"]}}, "refused"),
    "gemma4_text": ("gemma4_text", GEMMA4, "equal"),
    "gemma4_text, its values of its own": (
        "gemma4_text",
        GEMMA4 | {"attention_k_eq_v": False, "attention_bias": True, "tie_word_embeddings": False, "final_logit_softcapping": 2.0},
        "equal",
    ),
    "gemma4_text of one rotation": (
        "gemma4_text",
        GEMMA4 | {"rope_parameters": dict.fromkeys([FULL, SLIDING], ROPE["rope_parameters"]), "global_head_dim": 24, "sliding_window": 4096},
        "equal",
    ),
    "gemma4_text without windows": ("gemma4_text", GEMMA4 | {"layer_types": [FULL, FULL, FULL]}, "equal"),
    "gemma4_text with embeddings of each layer": ("gemma4_text", GEMMA4 | {"hidden_size_per_layer_input": 12}, "equal"),
    "gemma4_text with embeddings of each layer and a head of its own": (
        "gemma4_text", GEMMA4 | {"hidden_size_per_layer_input": 8, "tie_word_embeddings": False, "hidden_activation": "silu"}, "equal",
    ),
    # transformers computes shared keys only beside embeddings of each layer.
    "gemma4_text with shared keys": (
        "gemma4_text", GEMMA4 | {"num_kv_shared_layers": 1, "layer_types": [SLIDING, FULL, FULL], "hidden_size_per_layer_input": 12}, "equal",
    ),
    "gemma4_text with shared keys of both kinds": (
        "gemma4_text",
        GEMMA4 | {"num_hidden_layers": 5, "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "layer_types": [SLIDING, FULL, SLIDING, SLIDING, FULL],
                  "hidden_size_per_layer_input": 8},
        "equal",
    ),
    "gemma4_text with experts": ("gemma4_text", GEMMA4 | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3}, "equal"),
    "gemma4_text with experts and embeddings of each layer": (
        "gemma4_text",
        GEMMA4 | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "hidden_size_per_layer_input": 8, "final_logit_softcapping": 2.0},
        "equal",
    ),
    "gemma4_text with experts, of which one is visited": ("gemma4_text", GEMMA4 | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 1}, "refused"),
    "gemma4": ("gemma4", GEMMA4 | {"tie_word_embeddings": True}, "equal"),
    "gemma3": ("gemma3", GEMMA3 | {"tie_word_embeddings": True}, "equal"),
    "qwen3_next": ("qwen3_next", QWEN3_NEXT, "equal"),
    "qwen3_next with dense layers": (
        "qwen3_next",
        {"mlp_only_layers": [0], "full_attention_interval": 2, "norm_topk_prob": False, "attention_bias": True, "tie_word_embeddings": True, **SHARE},
        "equal",
    ),
    "qwen3_5_text": ("qwen3_5_text", QWEN3_NEXT, "equal"),
    "qwen3_5_text with biases": ("qwen3_5_text", {"full_attention_interval": 2, "attention_bias": True, "tie_word_embeddings": True, **SHARE}, "equal"),
    "qwen3_5_text without linear attention": ("qwen3_5_text", {"layer_types": [FULL] * 3, **LINEAR}, "equal"),
    "qwen3_5_moe_text": ("qwen3_5_moe_text", QWEN3_NEXT, "equal"),
    "qwen3_5": ("qwen3_5", QWEN3_NEXT, "equal"),
    "qwen3_5 with a tied head": ("qwen3_5", QWEN3_NEXT | {"tie_word_embeddings": True}, "equal"),
    "qwen3_5_moe": ("qwen3_5_moe", QWEN3_NEXT, "equal"),
    "lfm2": ("lfm2", LFM2 | {"block_multiple_of": 20}, "equal"),
    "lfm2 of its older keys": (
        "lfm2",
        {"full_attn_idxs": [1], "block_ff_dim": 160, "block_ffn_dim_multiplier": 1.3, "tie_embedding": False, "rope_theta": 700.0},
        "equal",
    ),
    "lfm2 without convolutions": ("lfm2", {"head_dim": 24, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False, **LINEAR}, "equal"),
    "lfm2_moe": ("lfm2_moe", LFM2 | {"num_dense_layers": 1}, "equal"),
    "lfm2_moe without a bias": (
        "lfm2_moe",
        {"layer_types": [FULL, "conv", "conv"], "num_dense_layers": 0, "use_expert_bias": False, "norm_topk_prob": False, **LINEAR},
        "equal",
    ),
    "lfm2_vl": ("lfm2_vl", LFM2 | {"tie_word_embeddings": True}, "equal"),
    "phimoe": ("phimoe", {"router_jitter_noise": 0.2, "attention_bias": True, "lm_head_bias": True, **ROPE}, "equal"),
    "phimoe, longrope": (
        "phimoe",
        {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 64, "short_mscale": 1.3, "long_mscale": 1.3},
         "head_dim": 16, "sliding_window": 7, "tie_word_embeddings": True},
        "equal",
    ),
    "phimoe, longrope by two factors": (
        "phimoe",
        {"rope_parameters": LONGROPE | {"original_max_position_embeddings": 64, "short_mscale": 1.3, "long_mscale": 1.2}, "head_dim": 16},
        "refused",
    ),
    "ernie4_5_moe": ("ernie4_5_moe", ROPE, "equal"),
    "ernie4_5_moe without shared experts": (
        "ernie4_5_moe",
        {"moe_num_shared_experts": 0, "moe_layer_start_index": 2, "moe_norm_min": 1e-12, "tie_word_embeddings": False, **LINEAR},
        "equal",
    ),
    "ernie4_5_moe, dense": ("ernie4_5_moe", {"moe_layer_start_index": 3, **ROPE}, "equal"),
    "ernie4_5_moe with biases": ("ernie4_5_moe", {"use_bias": True, **ROPE}, "refused"),
    "ernie4_5_moe with experts in every other layer": ("ernie4_5_moe", {"moe_layer_interval": 2, **ROPE}, "refused"),
    "lfm2 with biases": ("lfm2", LFM2 | {"conv_bias": True}, "refused"),
    "bloom, residual after the norm": ("bloom", {"apply_residual_connection_post_layernorm": True}, "refused"),
}


def keys_of(kind):
    """The keys that the class of `kind` declares, by any of their names."""
    cls = CONFIG_MAPPING[kind]
    fields = {key for base in cls.__mro__ for key in getattr(base, "__annotations__", {})}
    return fields | set(cls.attribute_map)


def values(kind, keys):
    """What a config.json of `kind` is to say: the values of KEYS that it has, and `keys`, without those that are None."""
    known = keys_of(kind)
    if "qk_rope_head_dim" in known:
        known -= {"head_dim"}  # which is another name of it in some classes
    written = {key: value for key, value in KEYS.items() if key in known} | copy.deepcopy(keys)
    return {key: value for key, value in written.items() if key != "head_dim" or value is not None}


def config_of(kind, keys):
    if kind not in WRAPPERS:
        return CONFIG_MAPPING[kind](**values(kind, keys))
    text, towers = WRAPPERS[kind]
    outer = {"tie_word_embeddings": keys.get("tie_word_embeddings", False)}
    inner = {key: value for key, value in keys.items() if key not in outer}
    text = inner.get("model_type", text)
    return CONFIG_MAPPING[kind](text_config={"model_type": text} | values(text, inner), **outer, **copy.deepcopy(towers))


def class_of(config):
    """The class of models that `config` is of."""
    if config.model_type == "voxtral":
        return transformers.VoxtralForConditionalGeneration
    is_wrapper = config.model_type in WRAPPERS
    auto = transformers.AutoModelForImageTextToText if is_wrapper else transformers.AutoModelForCausalLM
    return auto._model_mapping[type(config)]


def model_of(config, **options):
    return class_of(config)._from_config(config, **options)


def make(kind, keys, folder):
    """Saves a random model in `folder`."""
    config = config_of(kind, keys)
    class_of(config)  # imported before that computes on no device
    with torch.device("meta"):
        size = sum(tensor.numel() for tensor in model_of(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(len(kind))
    model = model_of(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            is_scale = tensor.dim() == 1 and name.endswith(("weight", "layer_scalar"))
            if tensor.dtype.is_floating_point and not name.endswith(("inv_freq", "embed_scale", "attn.embed_positions")):
                noise = torch.randn_like(tensor)
                tensor.copy_(1 + 0.3 * noise if is_scale else 0.15 * noise)
    model.save_pretrained(folder)
    return model


def in_float64(folder, model):
    """Stores the weights in `folder` as float64, which differ from f32 by less than f32 can say."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.double() * (1 + 1e-9) for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def in_fp8(folder, model):
    """Stores the linear layers in `folder` in FP8 with a scale for each block of 128 x 128, and gives `model` what torch makes of them."""
    tensors = load_file(folder / "model.safetensors")
    parameters = dict(model.named_parameters())
    for name in [name for name in tensors if name.endswith("proj.weight")]:
        weight = tensors[name]
        rows, columns = weight.shape
        padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
        padded[:rows, :columns] = weight
        blocks = padded.view(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128)
        scale = blocks.abs().amax(dim=(1, 3)) / 448
        wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
        tensors[name] = (weight / wide).to(torch.float8_e4m3fn)
        tensors[name + "_scale_inv"] = scale
        with torch.no_grad():
            parameters[name].copy_(tensors[name].float() * wide)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps(config))


def in_mxfp4(folder, model):
    """Stores the experts in `folder` in MXFP4, in blocks of 32 inputs, and gives `model` what that stands for."""
    tensors = load_file(folder / "model.safetensors")
    parameters = dict(model.named_parameters())
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    values = torch.cat([values, -values])
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        weight = tensors.pop(name).transpose(1, 2)
        blocks = weight.reshape(*weight.shape[:2], -1, 32)
        exponent = torch.ceil(torch.log2(blocks.abs().amax(-1) / 6))
        codes = (torch.ldexp(blocks, -exponent[..., None])[..., None] - values).abs().argmin(-1)
        tensors[name + "_blocks"] = (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)
        tensors[name + "_scales"] = (exponent + 127).to(torch.uint8)
        with torch.no_grad():
            parameters[name].copy_(torch.ldexp(values[codes], exponent[..., None]).reshape(weight.shape).transpose(1, 2))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))


def in_pickles(folder, model):
    """Stores the weights in `folder` in two pickles, and converts them by the command of the error."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, part in enumerate([names[:9], names[9:]], 1):
        torch.save({name: tensors[name] for name in part}, folder / f"pytorch_model-0000{number}-of-00002.bin")
    loss, log = gristmill(folder.parent)
    command = log.split("`")[1].replace("python3", sys.executable, 1)
    assert loss is None and "is a pickle of PyTorch" in log, log
    subprocess.run(command, shell=True, check=True)


# What becomes of a folder after it is saved, of the shapes that are stored otherwise.
STORED = {"llama in fp8": in_fp8, "gpt_oss in mxfp4": in_mxfp4, "llama in float64": in_float64, "llama in pickles": in_pickles}


def gristmill(folder, steps=1, rate=1e-9, epsilon=EPSILON, name="run", **keys):
    """The losses of steps on the same tokens with further keys of the model, or None; and what standard error says."""
    text, file = folder / "text", folder / "shape.yaml"
    text.write_bytes(TEXT)
    lines = {
        "output_dir": str(folder), "run_name": name, "load_checkpoint": str(folder / "model"),
        "model": {"model_config": {"seq_length": WINDOW, **keys}},
        "train_dataset": {"data_loader": {"type": "TextDataLoader", "dataset_files": [str(text)]}},
        "runner_config": {"epochs": steps, "batch_size": BATCH}, "runner_wrapper": {"use_clip_grad": False},
        "optimizer": {"type": "AdamW", "betas": BETAS, "eps": epsilon, "weight_decay": 0.0},
        "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": rate},
        "callbacks": [{"type": "MFLossMonitor", "per_print_times": 1}, {"type": "CheckpointMonitor", "save_checkpoint_steps": steps}],
    }
    file.write_text(json.dumps(lines))  # which is YAML
    done = subprocess.run([GRISTMILL, "train", str(file), "--tier", "software"], capture_output=True, text=True)
    log = (done.stdout + done.stderr).strip()
    if done.returncode != 0:
        return None, log
    metrics = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in metrics if "loss" in line], log


TEXT = (pathlib.Path("tests/data/mill.txt").read_bytes() * 20)[: WINDOW * BATCH + 1]


def loss_on(text, model):
    tokens = torch.tensor(list(text))
    logits = model(tokens[:-1].view(BATCH, WINDOW), use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).double(), tokens[1:])


def loss_of(model):
    with torch.no_grad():
        return loss_on(TEXT, model).item()


def training(model, text=TEXT, rate=RATE):
    """The losses of STEPS steps on `text`, which change the model. Nothing is dropped."""
    model, losses = model.eval(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=BETAS, eps=EPSILON, weight_decay=0.0)
    for _ in range(STEPS):
        loss = loss_on(text, model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def opened(auto, folder):
    return auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def exported_model(run, folder, model):
    """What transformers opens of the export of the last checkpoint of `run`."""
    checkpoint = max((folder / run / "checkpoint").glob("step_*"))
    out = folder / run / "out"
    subprocess.run([GRISTMILL, "export", str(checkpoint), str(folder / "model"), str(out)], check=True, capture_output=True)
    return opened(class_of(model.config), out)


def gradients(folder, model):
    """Whether the gradient of each parameter is that of float64, and a line of the one that is farthest from it. AdamW's step is the gradient
    where epsilon is far above it."""
    epsilon, rate = 1e3, 1e6
    ours, log = gristmill(folder, 1, rate, epsilon, name="gradients")
    if ours is None:
        return False, f"gradients: {log}"
    before, after = [dict(other.named_parameters()) for other in (model, exported_model("gradients", folder, model))]
    padding = {f"{name}.weight": part.padding_idx for name, part in model.named_modules() if isinstance(part, torch.nn.Embedding)}

    def of(model):
        loss_on(TEXT, model).backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    exact, narrow = of(copy.deepcopy(model).double()), of(copy.deepcopy(model))
    # Some are 0 but for rounding: those of what softmax cancels.
    least = 1e-4 * max(gradient.norm().item() / gradient.numel() ** 0.5 for gradient in exact.values())
    rows = []
    for name, gradient in exact.items():
        step = before[name].detach().double() - after[name].detach().double()
        if (row := padding.get(name)) is not None:  # which some classes fill with zeros when they open a folder
            step[row] = rate * gradient[row] / (gradient[row].abs() + epsilon)
        size = max(gradient.norm().item(), least * gradient.numel() ** 0.5)
        far = [((other - gradient).norm() / size).item() for other in (step * epsilon / (rate - step.abs()), narrow[name].double())]
        least_allowed = next((most for end, most in CANCELLED.items() if name.endswith(end)), GRADIENT)
        rows.append((far[0] / max(least_allowed, NARROW * far[1]), *far, name))
    share, own, torch_own, name = max(rows)
    return share <= 1.0, f"{len(rows)} gradients: {own:.1e} apart, torch's float32 {torch_own:.1e}: {share:.2f} of what is allowed ({name})"


def trained(name, folder, model):
    """Whether the steps of both go the same way, and a line of it."""
    ours, log = gristmill(folder, STEPS, RATE, name="steps")
    if ours is None:
        return False, f"{STEPS} steps: {log}"
    def far(one, other):
        return max(abs(a - b) / b for a, b in zip(one, other, strict=True))

    theirs = training(copy.deepcopy(model).double())
    if name in UNTIL_TIPPED:
        ours, theirs = [losses[: UNTIL_TIPPED[name]] for losses in (ours, theirs)]
    apart = far(ours, theirs)
    line = f"{len(theirs)} steps: {theirs[0]:.4f} to {theirs[-1]:.4f}, at most {apart:.1e} apart"
    if apart <= ALLOWED:
        return True, line
    # AdamW divides gradients near 0 by their own size, so float32 may be as far from float64 in torch.
    narrow = training(copy.deepcopy(model))
    line += f", {far(ours, narrow):.1e} from float32, which is {far(narrow, theirs):.1e} from float64"
    return far(ours, narrow) <= ALLOWED or apart <= far(narrow, theirs), line


def verdict(folder, model, **keys):
    """The word, and a line of why. Without a model, which transformers refuses, only an error will do."""
    ours, log = gristmill(folder, **keys)
    if ours is None:
        errors = [line for line in log.splitlines() if "rror" in line or line.startswith("/")] or log.splitlines()[-1:]
        return "refused", "; ".join(line.replace(str(folder), "") for line in errors[:3])
    if model is None:
        return "DIFFERENT", "transformers refuses it"
    ours, theirs = ours[0], loss_of(model)
    apart, warned = abs(ours - theirs) / theirs, "not in this model" in log
    word = "equal" if apart <= ALLOWED and not warned else "DIFFERENT"
    return word, f"loss {ours:.7f} and {theirs:.7f}, {apart:.1e} apart" + (", with a warning" if warned else "")


def changed(value):
    """Another value of the same type, or None."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 if value > 1 else value + 1
    if isinstance(value, float):
        return value * 2 + 1e-3
    if isinstance(value, dict):
        return {key: inner if isinstance(inner, str) else changed(inner) for key, inner in value.items()}
    if isinstance(value, list) and value:
        return value[1:] + value[:1]
    return {"silu": "gelu", "gelu": "silu", "gelu_new": "gelu", "gelu_pytorch_tanh": "silu"}.get(value) if isinstance(value, str) else None


# Names, types, versions and a token, which say nothing of what is computed.
NAMES = ["architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "auto_map", "_name_or_path", "pad_token_id"]


def without_and_changed(folder):
    """Each key of the config.json in the folder, and the file without and with another value of it."""
    whole = json.loads((folder / "model" / "config.json").read_text())
    inner = whole.get("text_config")
    config, put = (inner, lambda text: whole | {"text_config": text}) if inner else (whole, lambda config: config)
    for key, value in config.items():
        if key in NAMES or value is None:
            continue
        yield f"without {key}", put({other: value for other, value in config.items() if other != key})
        if (other := changed(value)) is not None:
            yield f"{key}: {other}", put(config | {key: other})


def keys(folder, model):
    """Tries every such file; how many were equal, refused and DIFFERENT."""
    weights, words = model.state_dict(), {}
    file = folder / "model" / "config.json"
    written = file.read_text()
    for what, config in without_and_changed(folder):
        file.write_text(json.dumps(config))
        shutil.rmtree(folder / "run", ignore_errors=True)
        try:
            loaded = transformers.AutoConfig.from_pretrained(folder / "model")
            other = model_of(loaded, attn_implementation="eager").float().eval()
            other.load_state_dict(weights)
            loss_of(other)
        except Exception:  # whatever a class says of its keys, or of the weights
            other = None
        word, why = verdict(folder, other)
        words[word] = words.get(word, 0) + 1
        if word == "DIFFERENT":
            print(f"    {what}: DIFFERENT: {why}", flush=True)
    file.write_text(written)
    return words


def compared(other, model):
    """The other model, how far its loss is from that of `model`, and its tensors, if it is of the same class, at most."""
    theirs, ours = loss_of(model), loss_of(other)
    if type(other) is not type(model):
        return other, abs(ours - theirs) / theirs, 0.0
    pairs = zip(model.state_dict().values(), other.state_dict().values(), strict=True)
    return other, abs(ours - theirs) / theirs, max((one - other).abs().max().item() for one, other in pairs)


def exported(name, folder, model):
    """Whether transformers computes the same from the checkpoint of the run in `folder`, and from its export, which has to be of the same
    class; and a line of how far apart."""
    checkpoint = max((folder / "run" / "checkpoint").glob("step_*"))
    nearest, apart, largest = compared(opened(transformers.AutoModelForCausalLM, checkpoint), model)
    again, apart_again, largest_again = compared(exported_model("run", folder, model), model)
    line = f"checkpoint: {type(nearest).__name__}, loss {apart:.1e}, tensors {largest:.1e} apart"
    line += f"; export: {type(again).__name__}, {apart_again:.1e}, {largest_again:.1e}"
    # FP8 leaves in bfloat16.
    allowed, allowed_loss = (2e-3, 1e-2) if name == "llama in fp8" else (1e-7, ALLOWED)
    is_same = apart_again <= allowed_loss and largest_again <= allowed
    if not is_same and name not in STORED:
        _, *own = compared(opened(class_of(model.config), folder / "model"), model)
        is_same = all(math.isclose(one, other, rel_tol=1e-2) for one, other in zip(own, (apart_again, largest_again)))
        line += ", as is the folder of transformers itself" if is_same else ""
    if "gristmill_note" in json.loads((checkpoint / "config.json").read_text()):
        return is_same, line + ", with a note in the checkpoint"
    return is_same and apart <= ALLOWED and largest <= 1e-7, line


def in_shards(folder, model):
    """The verdict on the model in bfloat16 and in several files, which both compute in float32."""
    copy.deepcopy(model).bfloat16().save_pretrained(folder / "shards" / "model", max_shard_size="50KB")
    files = len(list((folder / "shards" / "model").glob("*.safetensors")))
    rounded = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in [tensor for tensor in rounded.state_dict().values() if tensor.dtype.is_floating_point]:
            tensor.copy_(tensor.bfloat16())
    word, why = verdict(folder / "shards", rounded, compute_dtype="float32")
    return word == "equal" and files > 1, f"bfloat16 in {files} files: {word}: {why}"


def continued(folder, model):
    """Whether both continue the prompt by the same bytes, and a line that says so."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    # From this length on transformers rotates further tokens otherwise, and keeps the keys that it has.
    is_by_length = rope.get("rope_type") in ["dynamic", "longrope"]
    length = rope.get("original_max_position_embeddings") or model.config.get_text_config().max_position_embeddings if is_by_length else math.inf
    count, tokens = min(TOKENS, length - len(PROMPT)), list(PROMPT)
    with torch.no_grad():
        for _ in range(count):
            tokens.append(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax().item())
    theirs = bytes(tokens).decode(errors="replace").rstrip("\n")
    command = [GRISTMILL, "generate", str(folder / "model"), "--prompt", PROMPT.decode(), "--tokens", str(count), "--temperature", "0"]
    done = subprocess.run([*command, "--ignore-eod", "--tier", "software"], capture_output=True)
    if done.returncode != 0:
        return False, f"text: {done.stderr.decode().strip()}"
    ours = done.stdout.decode(errors="replace").rstrip("\n")
    return ours == theirs, f"text of {count} tokens: " + ("equal" if ours == theirs else f"{ours!r}, not {theirs!r}")


def shape(name, kind, config, expected, arguments):
    """Prints lines about a shape; its word, and whether all is as it has to be."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            model = make(kind, config, folder / "model")
            STORED.get(name, lambda *_: None)(folder / "model", model)
            word, why = verdict(folder, model)
        except Exception as error:  # whatever a class says of its keys, or of what it is to compute
            print(f"{name}: not made: {type(error).__name__}: {str(error).splitlines()[0][:120]}", flush=True)
            return "not made", expected is None
        fine = word != "DIFFERENT" and expected in [None, word]
        print(f"{name}: {word}: {why}" + ("" if fine or word == "DIFFERENT" else f" (expected: {expected})"), flush=True)
        checks = [
            (arguments.gradients and name not in STORED, gradients),
            (arguments.steps, lambda folder, model: trained(name, folder, model)),
            (arguments.export, lambda folder, model: exported(name, folder, model)),
            (arguments.shards and name not in STORED, in_shards),
            (arguments.text, continued),
        ]
        for check in [check for is_asked, check in checks if is_asked and word == "equal"]:
            is_same, line = check(folder, model)
            fine &= is_same
            print(f"    {line}" + ("" if is_same else ": DIFFERENT"), flush=True)
        if arguments.keys and word == "equal":
            words = keys(folder, model)
            fine &= "DIFFERENT" not in words
            print("    keys: " + ", ".join(f"{count} {word}" for word, count in sorted(words.items())), flush=True)
        return word, fine


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the shapes")
    parser.add_argument("--gradients", action="store_true", help="compare the gradients of those that are equal")
    parser.add_argument("--steps", action="store_true", help="train those that are equal for ten steps")
    parser.add_argument("--keys", action="store_true", help="try each key of those that are equal")
    parser.add_argument("--export", action="store_true", help="open the checkpoints of those that are equal in transformers")
    parser.add_argument("--shards", action="store_true", help="save those that are equal in bfloat16 and in several files")
    parser.add_argument("--text", action="store_true", help="continue a prompt by those that are equal")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help="all of them if left out")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    described = {kind for kind, _, _ in SHAPES.values()}
    shapes = SHAPES | {kind: (kind, {}, None) for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) if kind not in described}
    if arguments.list:
        return print("\n".join(shapes))
    words, wrong = {}, []
    for name in arguments.shapes or shapes:
        word, fine = shape(name, *shapes[name], arguments)
        words[word] = words.get(word, 0) + 1
        wrong += [] if fine else [name]
    print(", ".join(f"{count} {word}" for word, count in sorted(words.items())))
    if wrong:
        sys.exit(f"not as they have to be: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
