"""Writes tests/data/adapters.json: what PEFT computes with adapters of every kind, for `tests/training/adapters.rs`.

    python tests/transformers/adapters.py

Needs torch, transformers and peft 0.21. The file has no tensors but their names and shapes: both sides fill them by `values`. Each case
has the keys of `adapter_config.json` that differ from PEFT's defaults, and the loss of TEXT, byte by byte, of PEFT's model and of the
merged one (null where PEFT does not merge).
"""

import json
import math
import pathlib
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GptOssConfig, LlamaConfig, Qwen3MoeConfig

TEXT = "a mill grinds what is brought to it, and keeps a share"
SIZES = dict(vocab_size=256, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
             intermediate_size=20, max_position_embeddings=64, rope_theta=10000.0, rms_norm_eps=1e-5)
MIXTURE = SIZES | dict(head_dim=8, num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=12,
                       tie_word_embeddings=False)
BASES = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "tied llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "qwen3_moe": Qwen3MoeConfig(**MIXTURE, norm_topk_prob=True),
    "gpt_oss": GptOssConfig(**MIXTURE, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
}
SOME = ["q_proj", "v_proj", "down_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
BOTH = ["lm_head", "embed_tokens"]
CASES = {
    "plain": ("llama", dict(target_modules=SOME)),
    "rank-stabilised": ("llama", dict(target_modules=SOME, use_rslora=True)),
    "patterns": ("llama", dict(target_modules=SOME, rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 7},
                             alpha_pattern={"v_proj": 32, "0.mlp.down_proj": 3})),
    "rank-stabilised patterns": ("llama", dict(target_modules=SOME, use_rslora=True, rank_pattern={"q_proj": 2})),
    "one layer": ("llama", dict(target_modules=SOME, layers_to_transform=[1], layers_pattern="layers")),
    "excluded": ("llama", dict(target_modules=SOME, exclude_modules=["0.self_attn.q_proj"])),
    "gaussian": ("llama", dict(target_modules=SOME, init_lora_weights="gaussian")),
    "pissa": ("llama", dict(target_modules=SOME, init_lora_weights="pissa")),
    "pissa, rank-stabilised": ("llama", dict(target_modules=["gate_proj"], init_lora_weights="pissa", use_rslora=True)),
    "olora": ("llama", dict(target_modules=SOME, init_lora_weights="olora")),
    "biases of factors": ("llama", dict(target_modules=["k_proj", "o_proj", "up_proj", "down_proj"], lora_bias=True)),
    "trained biases": ("llama", dict(target_modules=SOME, bias="all")),
    "saved norms": ("llama", dict(target_modules=["q_proj"], modules_to_save=["input_layernorm", "norm"])),
    "saved embedding and head": ("llama", dict(target_modules=["q_proj"], modules_to_save=BOTH)),
    "saved on a tied base": ("tied llama", dict(target_modules=["q_proj"], modules_to_save=BOTH)),
    "saved embedding on a tied base": ("tied llama", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "saved head on a tied base": ("tied llama", dict(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "saved and tied": ("tied llama", dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
    "experts": ("qwen3_moe", dict(target_modules=["q_proj"], target_parameters=EXPERTS)),
    "gate and up of one layer": ("qwen3_moe", dict(target_modules=[], target_parameters=["1.mlp.experts.gate_up_proj"], use_rslora=True)),
    "patterns of experts": ("qwen3_moe", dict(target_modules=["q_proj"], target_parameters=EXPERTS, alpha_pattern={"gate_up_proj": 3},
                                              rank_pattern={"0.mlp.experts.down_proj": 2, "q_proj": 5})),
    "turned experts": ("gpt_oss", dict(target_modules=["v_proj"], target_parameters=EXPERTS)),
}


def values(name, shape):
    """Numbers without a pattern, around 1 for norms."""
    count, start = math.prod(shape), sum(name.encode())
    noise = [math.modf(math.sin(12.9898 * i + start) * 437.58)[0] for i in range(count)]
    offset, width = (1.0, 0.1) if len(shape) == 1 and "norm" in name else (0.0, 0.4)
    return torch.tensor([offset + width * x for x in noise], dtype=torch.float32).reshape(shape)


def filled(path, ties=False):
    # What is tied is in the file twice.
    source = lambda name: name.replace("model.lm_head", "model.model.embed_tokens") if ties else name
    tensors = {name: values(source(name), tensor.shape) for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    return {name: list(tensor.shape) for name, tensor in sorted(tensors.items())}


def loss(model):
    ids = torch.tensor([list(TEXT.encode())])
    with torch.no_grad():
        return model.eval()(ids, labels=ids).loss.item()


def main():
    written = {"text": TEXT, "bases": {}, "cases": []}
    with tempfile.TemporaryDirectory() as home:
        for base, config in BASES.items():
            folder = f"{home}/{base}"
            AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
            tensors = filled(f"{folder}/model.safetensors")
            written["bases"][base] = {"config": json.loads(pathlib.Path(f"{folder}/config.json").read_text()), "tensors": tensors}
        for name, (of, keys) in CASES.items():
            base = lambda: AutoModelForCausalLM.from_pretrained(f"{home}/{of}", dtype=torch.float32, attn_implementation="eager")
            config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, **keys)
            folder = f"{home}/{name}"
            get_peft_model(base(), config).save_pretrained(folder)
            tensors = filled(f"{folder}/adapter_model.safetensors", config.ensure_weight_tying)
            defaults = LoraConfig(task_type="CAUSAL_LM").to_dict()
            written_keys = json.loads(pathlib.Path(f"{folder}/adapter_config.json").read_text())
            keys = {key: value for key, value in written_keys.items() if key in ("r", "lora_alpha") or value != defaults.get(key)}
            drop = {"base_model_name_or_path", "peft_type", "peft_version", "task_type", "inference_mode"}
            keys = {key: value for key, value in keys.items() if key not in drop}
            try:
                merged = loss(PeftModel.from_pretrained(base(), folder).merge_and_unload())
            except RuntimeError:
                merged = None
            used = loss(PeftModel.from_pretrained(base(), folder))
            written["cases"].append(dict(name=name, base=of, keys=keys, tensors=tensors, loss=used, merged=merged))
            print(f"{name}: {used:.6f}, merged {merged}")
    target = pathlib.Path(__file__).parents[1] / "data" / "adapters.json"
    rows = lambda items: ",\n".join(items)
    bases = rows(f"{json.dumps(name)}: {json.dumps(base)}" for name, base in written["bases"].items())
    cases = rows(json.dumps(case) for case in written["cases"])
    target.write_text(f'{{"text": {json.dumps(TEXT)}, "bases": {{\n{bases}\n}}, "cases": [\n{cases}\n]}}\n')


if __name__ == "__main__":
    main()
