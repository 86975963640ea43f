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
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

TEXT = "a mill grinds what is brought to it, and keeps a share"
SIZES = dict(vocab_size=256, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
             intermediate_size=20, max_position_embeddings=64, rope_theta=10000.0, rms_norm_eps=1e-5)
SOME = ["q_proj", "v_proj", "down_proj"]
BOTH = ["lm_head", "embed_tokens"]
CASES = {
    "plain": (False, dict(target_modules=SOME)),
    "rank-stabilised": (False, dict(target_modules=SOME, use_rslora=True)),
    "patterns": (False, dict(target_modules=SOME, rank_pattern={"q_proj": 2, "layers.1.mlp.down_proj": 7},
                             alpha_pattern={"v_proj": 32, "0.mlp.down_proj": 3})),
    "rank-stabilised patterns": (False, dict(target_modules=SOME, use_rslora=True, rank_pattern={"q_proj": 2})),
    "one layer": (False, dict(target_modules=SOME, layers_to_transform=[1], layers_pattern="layers")),
    "excluded": (False, dict(target_modules=SOME, exclude_modules=["0.self_attn.q_proj"])),
    "gaussian": (False, dict(target_modules=SOME, init_lora_weights="gaussian")),
    "pissa": (False, dict(target_modules=SOME, init_lora_weights="pissa")),
    "pissa, rank-stabilised": (False, dict(target_modules=["gate_proj"], init_lora_weights="pissa", use_rslora=True)),
    "olora": (False, dict(target_modules=SOME, init_lora_weights="olora")),
    "biases of factors": (False, dict(target_modules=["k_proj", "o_proj", "up_proj", "down_proj"], lora_bias=True)),
    "trained biases": (False, dict(target_modules=SOME, bias="all")),
    "saved norms": (False, dict(target_modules=["q_proj"], modules_to_save=["input_layernorm", "norm"])),
    "saved embedding and head": (False, dict(target_modules=["q_proj"], modules_to_save=BOTH)),
    "saved on a tied base": (True, dict(target_modules=["q_proj"], modules_to_save=BOTH)),
    "saved embedding on a tied base": (True, dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"])),
    "saved head on a tied base": (True, dict(target_modules=["q_proj"], modules_to_save=["lm_head"])),
    "saved and tied": (True, dict(target_modules=["q_proj"], modules_to_save=["embed_tokens"], ensure_weight_tying=True)),
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
    written = {"text": TEXT, "sizes": SIZES, "bases": {}, "cases": []}
    with tempfile.TemporaryDirectory() as home:
        for is_tied in (False, True):
            folder = f"{home}/{is_tied}"
            LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=is_tied)).save_pretrained(folder)
            written["bases"][str(is_tied).lower()] = filled(f"{folder}/model.safetensors")
        for name, (is_tied, keys) in CASES.items():
            base = lambda: AutoModelForCausalLM.from_pretrained(f"{home}/{is_tied}", dtype=torch.float32)
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
            written["cases"].append(dict(name=name, tied=is_tied, keys=keys, tensors=tensors, loss=used, merged=merged))
            print(f"{name}: {used:.6f}, merged {merged}")
    target = pathlib.Path(__file__).parents[1] / "data" / "adapters.json"
    rows = ",\n".join(json.dumps(case) for case in written.pop("cases"))
    target.write_text(json.dumps(written)[:-1] + ', "cases": [\n' + rows + "\n]}\n")


if __name__ == "__main__":
    main()
