"""Opens an adapter that Gristmill trained in PEFT and compares evaluation loss and greedy text with Gristmill's.

    cargo build --release --bin gristmill
    python tests/transformers/peft_adapter.py target/release/gristmill

Needs torch, transformers and peft; CI does not run it. It trains small models with adapters in a temporary folder, on
tests/data/mill.txt: a Llama with all linear layers adapted, one with some (rank 3, interleaved heads, one layer excluded), and a
GPT-2. For each it compares:
  - the last evaluation's loss in metrics.jsonl with PEFT's on the same windows: at most 1e-5 apart;
  - 40 greedy tokens of `gristmill generate` with those of PEFT's model: equal;
  - both with what `transformers` computes from the result of `gristmill merge`.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

ALLOWED = 1e-5
LENGTH, TOKENS, STEPS = 24, 20, 30
TEXT = pathlib.Path(__file__).parents[1] / "data" / "mill.txt"
PROMPT = "fn "

CONFIG = """
model:
  model_config: {{ type: {kind}, vocab_size: 256, hidden_size: 48, num_layers: 2, num_heads: 4, intermediate_size: 64,
                  seq_length: {length}, init_method_std: 0.1, {model} }}
train_dataset:
  data_loader: {{ type: TextDataLoader, dataset_files: {text}, shuffle: True }}
eval_dataset:
  data_loader: {{ type: TextDataLoader, dataset_files: {evaluation} }}
do_eval: True
eval_step_interval: {steps}
eval_batches: {batches}
runner_config: {{ epochs: 100, batch_size: 3, gradient_accumulation_steps: 1, stop_step: {steps} }}
optimizer: {{ type: AdamW }}
lr_schedule: {{ type: ConstantWarmUpLR, learning_rate: 1.0e-2, warmup_steps: 3 }}
callbacks: [ {{ type: CheckpointMonitor, save_checkpoint_steps: {steps} }} ]
"""

CASES = {
    "llama": ("LlamaConfig", "n_kv_heads: 2", "lora_rank: 8, lora_alpha: 16, target_modules: '.*'"),
    "some": (
        "LlamaConfig",
        "qkv_has_bias: True, rotary_interleaved: True",
        "lora_rank: 3, lora_alpha: 5, target_modules: '.*wq|.*wv|.*w1', exclude_layers: ['0.feed_forward']",
    ),
    "gpt2": ("GPT2Config", "tie_word_embeddings: True", "lora_rank: 4, target_modules: c_attn|.*c_proj"),
}

BATCHES = 3


def run(*arguments):
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def evaluation_windows(text):
    """The windows that Gristmill evaluates: the first of the file, one after the other."""
    starts = range(0, 3 * BATCHES * LENGTH, LENGTH)
    return torch.tensor([list(text[start : start + LENGTH + 1]) for start in starts])


def loss(model, windows):
    with torch.no_grad():
        logits = model(input_ids=windows[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten()).item()


def greedy(model):
    """As many tokens as one window holds, each the likeliest."""
    tokens = list(PROMPT.encode())
    for _ in range(TOKENS):
        with torch.no_grad():
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return bytes(tokens)


def compare(gristmill, name, home):
    kind, model, adapters = CASES[name]
    config, evaluation = home / f"{name}.yaml", home / "evaluation.txt"
    text = TEXT.read_bytes()[:1000]
    evaluation.write_bytes(text)
    windows = evaluation_windows(text)
    keys = f"{model}, pet_config: {{ pet_type: lora, {adapters} }}"
    config.write_text(
        CONFIG.format(
            kind=kind, length=LENGTH, model=keys, text=TEXT, evaluation=evaluation, steps=STEPS, batches=BATCHES
        )
    )
    run(gristmill, "train", config, f"--output_dir={home}")
    checkpoint = home / name / "checkpoint" / f"step_{STEPS:07}"
    lines = (home / name / "metrics.jsonl").read_text().splitlines()
    ours = json.loads(lines[-1])["eval_loss"]
    ours_text = run(gristmill, "generate", home / name, "--prompt", PROMPT, "--tokens", TOKENS, "--temperature", 0)
    run(gristmill, "merge", checkpoint, checkpoint, home / f"{name}_merged")

    base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    without = loss(base, windows)
    adapted = PeftModel.from_pretrained(base, checkpoint / "adapter").eval()
    merged = AutoModelForCausalLM.from_pretrained(
        home / f"{name}_merged", dtype=torch.float32, attn_implementation="eager"
    )
    theirs, of_merged = loss(adapted, windows), loss(merged, windows)
    their_text = greedy(adapted).decode("utf-8", "replace")
    is_same_text = ours_text.rstrip("\n") == their_text.rstrip("\n")
    targets = sorted({key for key in adapted.peft_config["default"].target_modules})
    print(
        f"{name}: base {without:.7f}; ours {ours:.7f}, PEFT {theirs:.7f} ({theirs - ours:+.1e}), merged {of_merged:.7f} "
        f"({of_merged - ours:+.1e}); greedy text {'equal' if is_same_text else 'DIFFERS'}; targets {', '.join(targets)}"
    )
    is_close = max(abs(theirs - ours), abs(of_merged - ours)) <= ALLOWED
    return is_close and is_same_text and without - theirs > 100 * ALLOWED


def main():
    gristmill = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as home:
        results = [compare(gristmill, name, pathlib.Path(home)) for name in CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
