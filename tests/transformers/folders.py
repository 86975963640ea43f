"""Makes the small Hugging Face folders of tests/data/folders and what transformers computes with them.

    python tests/transformers/folders.py [NAME ...]

Random models of many families, saved by `save_pretrained`; losses.json has of each the loss of tests/data/mill.txt by windows of WINDOW
bytes, each after the byte before it and the first after a line feed, in float64, and the losses of five steps of AdamW on the first
BATCH of them, in float32. tests/processes/folders.rs compares gristmill's with them. Two more have a tokenizer, a chat template and
weights in bfloat16, one of them in two files: tests/processes/conversations.rs takes them from conversations to merged weights. Needs
torch and transformers, and runs from the root of the repository. Without a name all are made again.
"""

import json
import logging
import pathlib
import shutil
import sys

import tokenizers
import torch
import transformers

import shapes

FOLDERS = pathlib.Path("tests/data/folders")
WINDOW, BATCH, RATE = shapes.WINDOW, shapes.BATCH, 3e-3
TINY = {"vocab_size": 128, "hidden_size": 16, "num_hidden_layers": 2, "head_dim": 8, "max_position_embeddings": WINDOW, "n_positions": WINDOW, "intermediate_size": 20, "moe_intermediate_size": 12,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "n_embd": 16, "n_layer": 2, "n_inner": 20, "kv_lora_rank": 8, "q_lora_rank": 12, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
FAMILIES = {
    "llama": ("llama", {"rope_parameters": shapes.LLAMA3}),
    "mistral": ("mistral", {"sliding_window": 7, **shapes.ROPE}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True, **shapes.ROPE}),
    "qwen3_moe": ("qwen3_moe", {"router_aux_loss_coef": 0.0, **shapes.ROPE}),
    "deepseek_v3": ("deepseek_v3", shapes.LATENT),
    "mimo_v2_flash": ("mimo_v2_flash", shapes.MIMO | {"num_key_value_heads": 1, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "head_dim": 12}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 7, **shapes.ROPE}),
    "ministral3": ("ministral3", {"rope_parameters": shapes.GROWING}),
    "minicpm3": ("minicpm3", shapes.MINICPM3 | {"num_key_value_heads": 4}),
    "granitemoeshared": ("granitemoeshared", shapes.GRANITE | {"shared_intermediate_size": 12, **shapes.ROPE}),
    "hyperclovax": ("hyperclovax", shapes.GRANITE | {"logits_scaling": 0.25, **shapes.ROPE}),
    "gemma": ("gemma", shapes.ROPE),
    "glm4": ("glm4", shapes.ROPE),
    "exaone4": ("exaone4", {"sliding_window": 7, "sliding_window_pattern": 2, **shapes.ROPE}),
    "olmo2": ("olmo2", shapes.ROPE),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", shapes.ROPE),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", shapes.ROPE),
    "minimax_m2": ("minimax_m2", {"rotary_dim": 4, **shapes.ROPE}),
    "gemma2": ("gemma2", shapes.GEMMA2),
    "gemma3_text": ("gemma3_text", shapes.GEMMA3 | {"layer_types": [shapes.SLIDING, shapes.FULL]}),
    "nemotron": ("nemotron", shapes.SHARE),
    "apertus": ("apertus", shapes.ROPE),
    "starcoder2": ("starcoder2", {"sliding_window": 7, **shapes.ROPE}),
    "stablelm": ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True, **shapes.SHARE}),
    "cohere": ("cohere", {"logit_scale": 0.3, **shapes.ROPE}),
    "gpt_neox": ("gpt_neox", shapes.SHARE),
    "gemma4_text": (
        "gemma4_text",
        shapes.GEMMA4 | {"num_hidden_layers": 4, "layer_types": [shapes.SLIDING, shapes.FULL] * 2, "num_kv_shared_layers": 2,
                         "use_double_wide_mlp": True, "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 128,
                         "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2},
    ),
    "ernie4_5_moe": ("ernie4_5_moe", {"moe_num_experts": 4, "moe_k": 2, "num_experts": 4, "num_experts_per_tok": 2, **shapes.ROPE}),
    "phimoe": ("phimoe", {"num_local_experts": 4, "router_jitter_noise": 0.3, "lm_head_bias": True, **shapes.ROPE}),
    "gpt_oss": ("gpt_oss", {"num_experts": 4, "num_local_experts": 4, "sliding_window": 7, "rope_parameters": shapes.YARN | {"truncate": False}}),
    "qwen3_next": ("qwen3_next", shapes.QWEN3_NEXT | {"layer_types": ["linear_attention", shapes.FULL], "num_experts": 4}),
    "lfm2_moe": ("lfm2_moe", shapes.LFM2 | {"layer_types": ["conv", shapes.FULL], "num_dense_layers": 1, "num_experts": 4}),
    "qwen3_5_text": ("qwen3_5_text", shapes.QWEN3_NEXT | {"layer_types": ["linear_attention", shapes.FULL]}),
    "gptj": ("gptj", {"rotary_dim": 4}),
    "nanochat": ("nanochat", {"final_logit_softcapping": 2.0, **shapes.ROPE}),
    "opt": ("opt", {"dropout": 0.0, "ffn_dim": 20, "do_layer_norm_before": False, "word_embed_proj_dim": 12}),
    "gpt2": ("gpt2", {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
}
CONVERSING = {
    "qwen2": ("qwen2", {"tie_word_embeddings": True, **shapes.ROPE}),
    "phi3": ("phi3", {"original_max_position_embeddings": 96, **shapes.ROPE}),
}
LONGEST, VOCABULARY = 96, 384
TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXT = list(pathlib.Path("tests/data/mill.txt").read_bytes())


def evaluation(model):
    model, before, total = model.double().eval(), ord("\n"), 0.0
    for start in range(0, len(TEXT), WINDOW):
        targets = TEXT[start : start + WINDOW]
        with torch.no_grad():
            logits = model(torch.tensor([[before, *targets[:-1]]]), use_cache=False).logits[0]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="sum").item()
        before = targets[-1]
    return total / len(TEXT)


def tokenizer():
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=VOCABULARY - 8, special_tokens=special, initial_alphabet=alphabet)
    bpe.train(["tests/data/mill.txt"], trainer)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    return fast


def conversing(name, kind, keys):
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": LONGEST, "hidden_size": 32, "intermediate_size": 48}
    model = shapes.make(kind, keys | sizes | {"eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0}, FOLDERS / name)
    (FOLDERS / name / "model.safetensors").unlink()
    model.bfloat16().save_pretrained(FOLDERS / name, max_shard_size="40KB" if name == "phi3" else "1GB")
    tokenizer().save_pretrained(FOLDERS / name)


def main():
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    shapes.KEYS |= TINY
    file, names = FOLDERS / "losses.json", sys.argv[1:] or [*FAMILIES, *CONVERSING]
    losses = json.loads(file.read_text()) if file.exists() else {}
    for name in names:
        shutil.rmtree(FOLDERS / name, ignore_errors=True)
    for name, (kind, keys) in FAMILIES.items():
        if name not in names:
            continue
        model = shapes.make(kind, keys, FOLDERS / name)
        (FOLDERS / name / "generation_config.json").unlink(missing_ok=True)
        losses[name] = {"evaluation": evaluation(model), "training": shapes.training(model.float(), TEXT[: WINDOW * BATCH + 1], RATE)}
    for name, (kind, keys) in CONVERSING.items():
        if name in names:
            conversing(name, kind, keys)
    for weights in FOLDERS.rglob("*.safetensors"):
        weights.chmod(0o644)
    file.write_text(json.dumps({name: losses[name] for name in FAMILIES}, indent=1) + "\n")


if __name__ == "__main__":
    main()
