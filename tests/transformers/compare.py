"""Trains a small model of each family, opens its checkpoint in transformers, and compares evaluation loss and greedy text.

    cargo build --release --example train_gpt --bin gristmill
    python tests/transformers/compare.py [--ranks N [--degrees DEGREES]] [FAMILY ...]

With --ranks the model is trained by `gristmill train --ranks N`, an even number of ranks that share the optimizer's state and, in
pairs, the experts, or what DEGREES say: '{model_parallel: 2, pipeline_stage: 2, micro_batch_num: 2}'. Each writes its part of the
checkpoint.

Needs torch, transformers and safetensors, and runs from the root of the repository. A family that no published architecture
computes is only listed, with what config.json says of it. Adding a family is adding a line to FAMILIES.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers

WINDOW, BATCH, BATCHES, STEPS = 64, 4, 5, 60
PROMPT, TOKENS = "the mill ", 48
ALLOWED = 1e-5

LLAMA = {"vocab_size": 256, "num_heads": 4, "init_method_std": 0.05}
GLM = {"padded_vocab_size": 256, "num_attention_heads": 4, "kv_channels": 16, "ffn_hidden_size": 128, "init_method_std": 0.05}
WIDTH = {"intermediate_size": 128}
GPT = {"vocab_size": 256, "num_heads": 4, "hidden_dropout_rate": 0.0, "attention_dropout_rate": 0.0, "init_method_std": 0.05}
DEEPSEEK = {"vocab_size": 256, "num_layers": 3, "init_method_std": 0.05}
V2 = DEEPSEEK | {
    "type": "DeepseekV2Config",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "moe_router_enable_expert_bias": False,
    "rope_scaling": None,
    "num_nextn_predict_layers": 0,
    "topk_method": "group_limited_greedy",
}

# Family: the file in tests/data/dialect, keys of the model that shrink or vary it, the architecture of its checkpoint.
FAMILIES = {
    "llama": ("llama2", LLAMA | {"n_kv_heads": 2, "multiple_of": 16}, "LlamaForCausalLM"),
    "llama with a window beyond its texts": ("llama2", LLAMA | WIDTH | {"n_kv_heads": 2, "sliding_window": WINDOW, "max_position_embedding": 256}, "MistralForCausalLM"),
    "gpt2 with a window": ("gpt2", {"vocab_size": 256, "num_heads": 4, "initializer_range": 0.05, "sliding_window": 7}, None),
    "gpt2": ("gpt2", {"vocab_size": 256, "num_heads": 4, "initializer_range": 0.05}, "GPT2LMHeadModel"),
    "chatglm3": ("chatglm3", GLM, "GlmForCausalLM"),
    "glm4": ("glm4", GLM, "GlmForCausalLM"),
    "chatglm of an odd width": ("chatglm3", GLM | {"ffn_hidden_size": 101}, "Glm4MoeForCausalLM"),
    "qwen": ("qwen", LLAMA | WIDTH | {"kv_channels": 16}, "Qwen2ForCausalLM"),
    "internlm": ("internlm", LLAMA | {"multiple_of": 16}, "LlamaForCausalLM"),
    "internlm2": ("internlm2", LLAMA | WIDTH | {"n_kv_heads": 2}, "LlamaForCausalLM"),
    "llama with all biases": ("llama2", LLAMA | WIDTH | {"n_kv_heads": 2, "add_bias_linear": True}, "LlamaForCausalLM"),
    "telechat": ("telechat", LLAMA | WIDTH, None),
    "bloom": ("bloom", GPT, "BloomForCausalLM"),
    "wizardcoder": ("wizardcoder", GPT, "GPTBigCodeForCausalLM"),
    "pangu-alpha": ("pangualpha", GPT | {"ffn_hidden_size": 256}, None),
    "baichuan2 of 13B": ("baichuan2_13b", LLAMA | WIDTH, None),
    "deepseek-v3": ("deepseek3", DEEPSEEK, "DeepseekV3ForCausalLM"),
    "deepseek-v3 without experts": ("deepseek3", DEEPSEEK | {"n_routed_experts": 1, "q_lora_rank": None}, "DeepseekV3ForCausalLM"),
    "deepseek-v2": ("deepseek3", V2, "DeepseekV2ForCausalLM"),
}


def train(folder, file, keys, ranks, degrees):
    """The folder of a run on so many ranks, and the loss of its last evaluation."""
    text = (pathlib.Path("tests/data/mill.txt").read_bytes() * 20)[: WINDOW * BATCH * BATCHES + 1]
    (folder / "text.txt").write_bytes(text)
    data = f"{{data_loader: {{type: TextDataLoader, dataset_files: {folder / 'text.txt'}}}}}"
    flags = {
        "parallel_config": "{}",
        "output_dir": folder,
        "run_name": "run",
        "train_dataset": data,
        "train_dataset_task": "{type: CausalLanguageModelDataset}",
        "eval_dataset": data,
        "do_eval": True,
        "eval_step_interval": STEPS,
        "eval_batches": BATCHES,
        "runner_config": f"{{epochs: 1000, batch_size: {BATCH}, stop_step: {STEPS}}}",
        "lr_schedule": f"{{type: CosineWithWarmUpLR, learning_rate: 3.e-3, warmup_steps: 5, total_steps: {STEPS}}}",
        "callbacks": f"[{{type: MFLossMonitor}}, {{type: CheckpointMonitor, save_checkpoint_steps: {STEPS}}}]",
        "recompute_config": "{recompute: False}",
        "context.max_device_memory": "8GB",
    }
    shape = {"hidden_size": 64, "num_layers": 2, "seq_length": WINDOW, "compute_dtype": "float32"} | keys
    flags |= {f"model.model_config.{key}": value for key, value in shape.items()}
    program = ["target/release/examples/train_gpt", "--as-single"]
    if ranks > 1:
        program = ["target/release/gristmill", "train", "--ranks", str(ranks)]
        has_experts = file.startswith("deepseek") and keys.get("n_routed_experts") != 1
        experts = 2 if has_experts else 1
        flags["parallel_config"] = degrees or f"{{data_parallel: {ranks}, expert_parallel: {experts}}}"
        flags |= {"use_parallel": True, "parallel": "{enable_parallel_optimizer: True}"}
    if "type" in keys:  # the class of the file's own type does not go with it
        flags["model.arch.type"] = None
    command = [*program, f"tests/data/dialect/{file}.yaml", *(f"--{key}={value}" for key, value in flags.items())]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return folder / "run", [line["eval_loss"] for line in lines if line.get("eval_loss") is not None][-1], text


def loss_of(model, text):
    """The mean loss over all windows, in the text's order."""
    tokens = torch.tensor(list(text))
    with torch.no_grad():
        logits = model(tokens[:-1].view(-1, WINDOW)).logits
    return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]).double(), tokens[1:]).item()


def greedy(model):
    """The continuation of the prompt by the most likely bytes, computed without a cache."""
    tokens = list(PROMPT.encode())
    with torch.no_grad():
        for _ in range(TOKENS):
            tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
    return bytes(tokens).decode(errors="replace")


def compare(name, ranks, degrees, file, keys, architecture):
    """One line about a family, and whether it agrees."""
    with tempfile.TemporaryDirectory() as folder:
        run, loss, text = train(pathlib.Path(folder), file, keys, ranks, degrees)
        checkpoint = sorted((run / "checkpoint").glob("step_*"))[-1]
        shards = len(list(checkpoint.glob("model*.safetensors")))
        if shards != ranks:
            return f"{name}: {shards} files of weights, not {ranks}", False
        config = json.loads((checkpoint / "config.json").read_text())
        note, found = config.get("gristmill_note"), config["architectures"][0]
        if architecture is None:
            return f"{name}: loss {loss:.6f}; {note}", note is not None
        if note is not None or found != architecture:
            return f"{name}: {found}, not {architecture}; {note}", False
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        further = f"model.layers.{config.get('num_hidden_layers')}."  # of multi-token prediction, which transformers leaves out
        unexpected = [key for key in report["unexpected_keys"] if not key.startswith(further)]
        unmatched = sorted(report["missing_keys"]) + sorted(unexpected)
        theirs = loss_of(model.eval(), text)
        generate = ["target/release/gristmill", "generate", run, "--prompt", PROMPT, "--tokens", str(TOKENS)]
        ours = subprocess.run(generate + ["--temperature", "0", "--ignore-eod"], capture_output=True, check=True).stdout
        same = ours.decode(errors="replace").rstrip("\n") == greedy(model).rstrip("\n")
    error = abs(theirs - loss) / loss
    files = f" from {shards} files" if shards > 1 else ""
    line = f"{name}: {found}{files}: loss {loss:.7f} and {theirs:.7f}, {error:.1e} apart; text {'equal' if same else 'DIFFERS'}"
    return line + (f"; unmatched {unmatched}" if unmatched else ""), error <= ALLOWED and same and not unmatched


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1, metavar="N", help="train on N ranks; 1 if left out")
    parser.add_argument("--degrees", metavar="DEGREES", help="parallel_config of these ranks")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="all of them if left out")
    arguments = parser.parse_args()
    agree = True
    for name in arguments.families or FAMILIES:
        line, is_right = compare(name, arguments.ranks, arguments.degrees, *FAMILIES[name])
        agree &= is_right
        print(line, flush=True)
    sys.exit(0 if agree else "some families differ")


if __name__ == "__main__":
    main()
