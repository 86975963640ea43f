"""Loads a small random model of every family of causal language models in transformers, and compares losses.

    cargo build --release --bin gristmill
    python tests/transformers/shapes.py [--list] [SHAPE ...]

Each shape is saved by `save_pretrained` and named in `load_checkpoint` of a configuration that says what it can of the shape. It is

    equal       the loss of the first step is that of transformers on the same tokens, at most 1e-5 of it apart
    refused     gristmill ends with an error that names the culprit
    DIFFERENT   it trains another model, or loads this one with a warning: the script then ends with exit code 1

Besides, keys are taken out of configurations that are equal, one at a time, as if they had been forgotten: each has to be refused.
Those of SHAPES are expected to be equal or refused as they say; of the other families nothing is expected but that they do not
differ. Needs torch, transformers and safetensors, and runs from the root of the repository. All shapes take ten minutes.
"""

import argparse
import copy
import json
import logging
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors import safe_open
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

GRISTMILL = "target/release/gristmill"
WINDOW, BATCH, VOCABULARY = 48, 4, 256
ALLOWED = 1e-5
LARGEST = 20_000_000  # parameters of a shape that is made

# Values of keys that a class has: none is its default, and a key that is left out shows in the loss.
KEYS = {
    "vocab_size": VOCABULARY, "max_position_embeddings": 64, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 24, "intermediate_size": 112, "rms_norm_eps": 3e-2, "layer_norm_epsilon": 3e-2,
    "moe_intermediate_size": 40, "num_experts": 8, "n_routed_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 3,
    "shared_expert_intermediate_size": 56, "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7, "norm_topk_prob": True, "kv_lora_rank": 28, "q_lora_rank": 20, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 16, "n_embd": 64, "n_layer": 3, "n_layers": 3, "num_layers": 3, "n_head": 4, "n_inner": 112,
    "n_positions": 64, "ffn_dim": 112, "ffn_hidden_size": 112, "expert_ffn_hidden_size": 40, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2,
}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}
LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 700.0, "factor": 3.0}}
YARN = {"rope_type": "yarn", "rope_theta": 700.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 1.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 700.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 700.0, "factor": 2.0}
LATENT = {"rms_norm_eps": 1e-6, "num_key_value_heads": 4, **ROPE}
SLIDING, FULL = "sliding_attention", "full_attention"

# Shape: its model_type, keys that it has beside those above, and what it has to be.
SHAPES = {
    "llama": ("llama", ROPE, "equal"),
    "llama with all biases": ("llama", {"attention_bias": True, "mlp_bias": True, **ROPE}, "equal"),
    "llama with a tied head": ("llama", {"tie_word_embeddings": True, **ROPE}, "equal"),
    "llama, linear": ("llama", LINEAR, "equal"),
    "llama, yarn": ("llama", {"rope_parameters": YARN}, "equal"),
    "llama, yarn with mscale": ("llama", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}}, "equal"),
    "llama, yarn with an attention factor": ("llama", {"rope_parameters": YARN | {"attention_factor": 1.3}}, "refused"),
    "llama, yarn that is not truncated": ("llama", {"rope_parameters": YARN | {"truncate": False}}, "refused"),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3}, "equal"),
    "llama, dynamic within its length": ("llama", {"rope_parameters": DYNAMIC}, "equal"),
    "llama, dynamic beyond its length": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}, "refused"),
    "llama with a rotating share": ("llama", {"rope_parameters": ROPE["rope_parameters"] | {"partial_rotary_factor": 0.5}}, "refused"),
    "llama with gelu": ("llama", {"hidden_act": "gelu", **ROPE}, "refused"),
    "mistral": ("mistral", {"sliding_window": 7, **ROPE}, "equal"),
    "mistral without a window": ("mistral", {"sliding_window": None, **ROPE}, "equal"),
    "mistral with a long window": ("mistral", {"sliding_window": 4096, **ROPE}, "equal"),
    "ministral": ("ministral", {"sliding_window": 7, **ROPE}, "equal"),
    "ministral, alternating": ("ministral", {"sliding_window": 7, "layer_types": [SLIDING, FULL, SLIDING], **ROPE}, "refused"),
    "ministral3": ("ministral3", {"sliding_window": None}, "refused"),
    "mixtral": ("mixtral", ROPE, "equal"),
    "mixtral with a window": ("mixtral", {"sliding_window": 7, **ROPE}, "equal"),
    "qwen2": ("qwen2", ROPE, "equal"),
    "qwen2 with a window": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0, **ROPE}, "equal"),
    "qwen2 with windows from layer 1": ("qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, **ROPE}, "refused"),
    "qwen3": ("qwen3", ROPE, "equal"),
    "qwen3 with biases": ("qwen3", {"attention_bias": True, **ROPE}, "equal"),
    "qwen2_moe": ("qwen2_moe", ROPE, "equal"),
    "qwen2_moe with a dense layer": ("qwen2_moe", {"mlp_only_layers": [0], **ROPE}, "equal"),
    "qwen2_moe, every second layer": ("qwen2_moe", {"decoder_sparse_step": 2, **ROPE}, "refused"),
    "qwen2_moe, not normalised": ("qwen2_moe", {"norm_topk_prob": False, **ROPE}, "equal"),
    "qwen3_moe": ("qwen3_moe", ROPE, "equal"),
    "qwen3_moe with a window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 7, **ROPE}, "equal"),
    "qwen3_moe, one expert": ("qwen3_moe", {"num_experts_per_tok": 1, **ROPE}, "refused"),
    "glm": ("glm", ROPE, "equal"),
    "glm4_moe": ("glm4_moe", ROPE, "equal"),
    "glm4_moe with QK-norm": ("glm4_moe", {"use_qk_norm": True, "attention_bias": True, **ROPE}, "equal"),
    "glm4_moe_lite": ("glm4_moe_lite", LATENT, "equal"),
    "deepseek_v2": ("deepseek_v2", LATENT | {"topk_method": "group_limited_greedy", "norm_topk_prob": False}, "equal"),
    "deepseek_v2 without groups": ("deepseek_v2", LATENT | {"topk_method": "greedy", "q_lora_rank": None, "norm_topk_prob": False}, "equal"),
    "deepseek_v3": ("deepseek_v3", LATENT, "equal"),
    "deepseek_v3, yarn": ("deepseek_v3", LATENT | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.8}}, "equal"),
    "deepseek_v3 with halves": ("deepseek_v3", LATENT | {"rope_interleave": False}, "refused"),
    "deepseek_v3 of another eps": ("deepseek_v3", LATENT | {"rms_norm_eps": 3e-2}, "refused"),
    "youtu": ("youtu", LATENT, "equal"),
    "dots1": ("dots1", {"sliding_window": None, **ROPE}, "equal"),
    "seed_oss": ("seed_oss", ROPE, "equal"),
    "seed_oss with an output bias": ("seed_oss", {"attention_out_bias": True, **ROPE}, "equal"),
    "internlm3": ("internlm3", ROPE, "equal"),
    "iquestcoder": ("iquestcoder", ROPE, "equal"),
    "solar_open": ("solar_open", ROPE, "equal"),
    "cwm": ("cwm", {"sliding_window": 7, **ROPE}, "refused"),
    "cwm without windows": ("cwm", {"layer_types": [FULL] * 3, **ROPE}, "equal"),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, **ROPE}, "refused"),
    "smollm3 that rotates in all layers": ("smollm3", {"no_rope_layers": [1, 1, 1], **ROPE}, "equal"),
    "granite": ("granite", {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0, **ROPE}, "refused"),
    "granite without factors": ("granite", {"attention_multiplier": 0.25, **ROPE}, "equal"),
    "hyperclovax": ("hyperclovax", ROPE, "refused"),
    "hyperclovax without further norms": ("hyperclovax", {"use_post_norm": False, **ROPE}, "equal"),
    "minicpm3": ("minicpm3", LATENT, "refused"),
    "gpt2": ("gpt2", {}, "equal"),
    "gpt2 of a plain width": ("gpt2", {"n_inner": None, "activation_function": "gelu"}, "equal"),
    "gpt2 scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "refused"),
    "gpt_bigcode": ("gpt_bigcode", {}, "equal"),
    "gpt_bigcode with heads of its own": ("gpt_bigcode", {"multi_query": False}, "refused"),
    "bloom": ("bloom", {}, "equal"),
    "bloom, residual after the norm": ("bloom", {"apply_residual_connection_post_layernorm": True}, "refused"),
}

# Shape: keys that its configuration lacks, each by itself.
FORGOTTEN = {
    "llama": ["rms_norm_eps", "theta", "num_heads", "head_dim"],
    "llama, linear": ["rope_scaling"],
    "llama, yarn": ["rope_scaling"],
    "llama, llama3": ["rope_scaling"],
    "llama with all biases": ["qkv_has_bias", "attn_proj_has_bias", "add_mlp_fc1_bias_linear", "add_mlp_fc2_bias_linear"],
    "llama with a tied head": ["tie_word_embeddings"],
    "mistral": ["sliding_window", "n_kv_heads"],
    "qwen2": ["qkv_has_bias"],
    "qwen3": ["use_qk_norm"],
    "qwen3_moe": ["num_experts_chosen", "norm_topk_prob", "moe_intermediate_size"],
    "mixtral": ["num_experts_chosen"],
    "qwen2_moe": ["use_shared_expert_gating"],
    "glm": ["rotary_percent"],
    "glm4_moe": ["use_gating_sigmoid", "routed_scaling_factor", "topk_method", "balance_via_topk_bias", "first_k_dense_replace"],
    "deepseek_v3": ["routed_scaling_factor", "n_group", "qk_rope_head_dim"],
    "gpt2": ["rms_norm_eps", "hidden_act"],
}
# What stands in place of a key whose absence says the same.
INSTEAD = {
    "num_heads": {"num_heads": 8, "head_dim": 12, "n_kv_heads": 4},  # the same tensors
    "norm_topk_prob": {"norm_topk_prob": False},
    "hidden_act": {"hidden_act": "fast_gelu"},
    "rotary_percent": {"rotary_percent": 1.0},
    "n_group": {"n_group": 2, "topk_group": 1},
}


def keys_of(kind):
    """The keys that the class of `kind` declares, by any of their names."""
    cls = CONFIG_MAPPING[kind]
    fields = {key for base in cls.__mro__ for key in getattr(base, "__annotations__", {})}
    return fields | set(cls.attribute_map)


def make(kind, keys, folder):
    """Saves a random model in `folder`; the model, and the names of its tensors. None where it cannot be made."""
    known = keys_of(kind)
    if "qk_rope_head_dim" in known:
        known -= {"head_dim"}  # which is another name of it in some classes
    config = CONFIG_MAPPING[kind](**{key: value for key, value in KEYS.items() if key in known} | copy.deepcopy(keys))
    with torch.device("meta"):
        size = sum(tensor.numel() for tensor in transformers.AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(len(kind))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            is_scale = tensor.dim() == 1 and name.endswith("weight")
            if tensor.dtype.is_floating_point and "inv_freq" not in name:
                noise = torch.randn_like(tensor)
                tensor.copy_(1 + 0.3 * noise if is_scale else 0.15 * noise)
    model.save_pretrained(folder)
    names = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names |= set(file.keys())
    return model, names


def model_config(config, names):
    """What a configuration can say of the shape: sizes and options by our names, where the class has them."""

    def get(*keys):
        return next((value for key in keys if (value := getattr(config, key, None)) is not None), None)

    def has(end):
        return any(name.endswith(end) for name in names)

    rope = dict(get("rope_parameters") or {})
    rope = next((value for value in rope.values() if isinstance(value, dict)), rope)
    heads, layers = get("num_attention_heads", "n_head"), get("num_hidden_layers", "n_layer")
    kinds = get("layer_types") or []
    windowed = any(kind == SLIDING for kind in kinds) if kinds else True
    keys = {
        "vocab_size": VOCABULARY, "seq_length": WINDOW, "hidden_size": get("hidden_size", "n_embd"), "num_layers": layers, "num_heads": heads,
        "intermediate_size": get("intermediate_size", "n_inner"), "max_position_embedding": max(64, WINDOW),
        "rms_norm_eps": get("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps"),
        "tie_word_embeddings": bool(get("tie_word_embeddings")),
    }
    if config.model_type in GPT:
        words = {"gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new", "gelu": "gelu_exact"}
        return keys | {"type": GPT[config.model_type], "hidden_act": words.get(get("activation_function"), "gelu_new")}
    window = get("sliding_window") if windowed else None
    keys |= {
        "n_kv_heads": get("num_key_value_heads"), "head_dim": get("head_dim"), "theta": rope.get("rope_theta"), "sliding_window": window,
        "rotary_percent": rope.get("partial_rotary_factor"),
        "qkv_has_bias": has("q_proj.bias"), "attn_proj_has_bias": has("o_proj.bias"),
        "add_mlp_fc1_bias_linear": has("mlp.up_proj.bias"), "add_mlp_fc2_bias_linear": has("mlp.down_proj.bias"),
        "use_qk_norm": has("self_attn.q_norm.weight"),
    }
    if rope.get("rope_type", "default") != "default":
        known = ["rope_type", "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"]
        keys["rope_scaling"] = {key: rope[key] for key in [*known, "original_max_position_embeddings"] if key in rope}
        if rope["rope_type"] not in ["linear", "yarn", "llama3"]:
            del keys["rope_scaling"]
    if config.model_type == "glm":
        keys |= {"type": "ChatGLM2Config"}
    experts = get("n_routed_experts", "num_experts", "num_local_experts")
    if experts and has("up_proj.weight") or has("w1.weight"):
        is_sigmoid, shared = has("e_score_correction_bias"), get("n_shared_experts")
        width = get("moe_intermediate_size", "intermediate_size")
        keys |= {
            "expert_num": experts, "num_experts_chosen": get("num_experts_per_tok"), "moe_intermediate_size": width, "use_gmm": True,
            "norm_topk_prob": getattr(config, "norm_topk_prob", True), "routed_scaling_factor": get("routed_scaling_factor") or 1.0,
            "use_gating_sigmoid": is_sigmoid, "balance_via_topk_bias": is_sigmoid,
            "first_k_dense_replace": sum(not any(f"layers.{n}." in name and "experts.0" in name for name in names) for n in range(layers)),
        }
        if shared and has("shared_experts.up_proj.weight"):
            keys |= {"moe_shared_expert_intermediate_size": shared * width}
        if has("shared_expert.up_proj.weight"):
            keys |= {"moe_shared_expert_intermediate_size": get("shared_expert_intermediate_size"), "use_shared_expert_gating": True}
        method = "noaux_tc" if is_sigmoid else get("topk_method")
        if (get("n_group") or 1) > 1 and method not in [None, "greedy"]:
            keys |= {"topk_method": method, "n_group": get("n_group"), "topk_group": get("topk_group")}
    if has("kv_a_proj_with_mqa.weight"):
        is_v2 = config.model_type == "deepseek_v2"
        parts = ["q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"]
        keys |= {"type": "DeepseekV2Config" if is_v2 else "DeepseekV3Config"} | {part: get(part) for part in parts}
        keys |= {"norm_topk_prob": False} if is_v2 else {}
        for key in ["head_dim", "n_kv_heads", "use_qk_norm", "rotary_percent", "qkv_has_bias", "sliding_window"]:
            keys.pop(key, None)
    return {key: value for key, value in keys.items() if value is not None}


GPT = {"gpt2": "GPT2Config", "gpt_bigcode": "WizardCoderConfig", "bloom": "BloomConfig"}


def gristmill(folder, keys):
    """The loss of the first step, or None; and what standard error says."""
    text, file = folder / "text", folder / "shape.yaml"
    text.write_bytes(TEXT)
    lines = {
        "output_dir": str(folder), "run_name": "run", "load_checkpoint": str(folder / "model"),
        "model": {"model_config": keys},
        "train_dataset": {"data_loader": {"type": "TextDataLoader", "dataset_files": [str(text)]}},
        "runner_config": {"epochs": 1, "batch_size": BATCH},
        "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": 1e-6},
        "callbacks": [{"type": "MFLossMonitor", "per_print_times": 1}],
    }
    file.write_text(json.dumps(lines))  # which is YAML
    done = subprocess.run([GRISTMILL, "train", str(file), "--tier", "software"], capture_output=True, text=True)
    log = (done.stdout + done.stderr).strip()
    if done.returncode != 0:
        return None, log
    metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return next(line["loss"] for line in metrics if "loss" in line), log


TEXT = (pathlib.Path("tests/data/mill.txt").read_bytes() * 20)[: WINDOW * BATCH + 1]


def loss_of(model):
    tokens = torch.tensor(list(TEXT))
    with torch.no_grad():
        logits = model(tokens[:-1].view(BATCH, WINDOW), use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]).double(), tokens[1:]).item()


def verdict(folder, model, keys):
    """The word, and a line of why."""
    ours, log = gristmill(folder, keys)
    if ours is None:
        errors = [line for line in log.splitlines() if "rror" in line or line.startswith("/")] or log.splitlines()[-1:]
        return "refused", "; ".join(line.replace(str(folder), "") for line in errors[:3])
    theirs = loss_of(model)
    apart, warned = abs(ours - theirs) / theirs, "not in this model" in log
    word = "equal" if apart <= ALLOWED and not warned else "DIFFERENT"
    return word, f"loss {ours:.7f} and {theirs:.7f}, {apart:.1e} apart" + (", with a warning" if warned else "")


def shape(name, kind, keys, expected):
    """Lines about a shape and its forgotten keys, and whether all are as they have to be."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        try:
            model, names = make(kind, keys, folder / "model")
            ours = model_config(model.config, names)
            word, why = verdict(folder, model, ours)
        except Exception as error:  # whatever a class says of its keys, or of what it is to compute
            print(f"{name}: not made: {type(error).__name__}: {str(error).splitlines()[0][:120]}", flush=True)
            return "not made", expected is None
        fine = word != "DIFFERENT" and expected in [None, word]
        print(f"{name}: {word}: {why}" + ("" if fine or word == "DIFFERENT" else f" (expected: {expected})"), flush=True)
        for key in FORGOTTEN.get(name, []):
            left = {other: value for other, value in ours.items() if other != key} | INSTEAD.get(key, {})
            shutil.rmtree(folder / "run", ignore_errors=True)
            word_of_key, why = verdict(folder, model, left)
            fine &= word_of_key == "refused"
            print(f"    without {key}: {'' if word_of_key == 'refused' else 'NOT '}refused: {why}", flush=True)
        return word, fine


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the shapes")
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
        word, fine = shape(name, *shapes[name])
        words[word] = words.get(word, 0) + 1
        wrong += [] if fine else [name]
    print(", ".join(f"{count} {word}" for word, count in sorted(words.items())))
    if wrong:
        sys.exit(f"not as they have to be: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
