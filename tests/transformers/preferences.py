"""Learning from pairs of answers beside TRL: losses, rewards and log-probabilities of ten steps.

    cargo build --release --bin gristmill
    python tests/transformers/preferences.py target/release/gristmill [NAME...]

Needs torch, transformers, peft and trl (1.16); CI does not run it. A small Qwen3, a Qwen2 or a Qwen3-MoE with the tokenizer of
tests/data/folders/qwen2 learns from the same pairs in the same order in TRL, in float64, and here, in float32: all weights, or an adapter
that PEFT wrote. Each number of each step is at most 1e-5 of TRL's apart, relative to its magnitude plus 1; log-probabilities of answers to their
own. TRL's `sigmoid` has no label smoothing; SimPO's shows ours. A mixture has no auxiliary loss in either. TRL's ORPO also learns the prompt, which here no loss does, so there prompts are one token,
which nothing predicts, and a micro-batch has one pair, whose mean over tokens is ours.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import warnings

import datasets
import torch
import transformers
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.data import SequentialSampler
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

ALLOWED = 1e-5
SMALL = pathlib.Path("tests/data/folders/qwen2")
STEPS, BATCH, RATE, BETAS, EPSILON = 10, 4, 2e-3, (0.9, 0.99), 1e-6
SIZES = dict(hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=12, max_position_embeddings=256)
MIXTURE = SIZES | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True, output_router_logits=False, router_aux_loss_coef=0.0)
WORDS = "the mill grinds corn and water turns a wheel that lifts stones into flour for bread while rain falls on old roofs".split()
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"

# The model, the method and its options, what trains ("full", "new" or "begun", an adapter whose B is zero or not), the form of the data
# (text or chat), and further keys here.
CASES = {
    "dpo_lora": ("qwen3", "dpo", dict(beta=0.3), "new", "text", {"reference": "adapters_off"}),
    "dpo_chat": ("qwen2", "dpo", dict(beta=0.3), "new", "chat", {"reference": "adapters_off"}),
    "dpo_begun": ("qwen3", "dpo", dict(beta=0.3), "begun", "text", {"reference": "precompute"}),
    "dpo_full": ("qwen3", "dpo", dict(beta=0.1), "full", "text", {"reference": "precompute"}),
    "dpo_mixture": ("qwen3_moe", "dpo", dict(beta=0.3), "new", "text", {"reference": "adapters_off"}),
    "ipo_lora": ("qwen3", "ipo", dict(beta=0.2), "new", "text", {"reference": "adapters_off"}),
    "simpo_full": ("qwen3", "simpo", dict(beta=2.0, gamma=1.0, label_smoothing=0.1), "full", "text", {}),
    "orpo_lora": ("qwen3", "orpo", dict(beta=0.2), "new", "tokens", {}),
}


def sentences(count, seed):
    draw = torch.Generator().manual_seed(seed)
    number = lambda most: int(torch.randint(most, (1,), generator=draw))
    words = lambda: " ".join(WORDS[number(len(WORDS))] for _ in range(3 + number(9)))
    return [(words(), words(), words()) for _ in range(count)]


def records(form):
    turn = lambda role, text: {"role": role, "content": text}
    for prompt, chosen, rejected in sentences(STEPS * BATCH, 5):
        if form == "chat":
            yield {"prompt": [turn("user", prompt)], "chosen": [turn("assistant", chosen)], "rejected": [turn("assistant", rejected)]}
        elif form == "tokens":
            yield {"prompt": "<|end|>", "chosen": chosen, "rejected": rejected}
        else:
            yield {"prompt": prompt, "chosen": f" {chosen}", "rejected": f" {rejected}"}


def model_in(folder, kind):
    sizes = MIXTURE if kind == "qwen3_moe" else SIZES
    if kind == "qwen2":
        sizes = {key: value for key, value in sizes.items() if key != "head_dim"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(SMALL)
    config = transformers.AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), initializer_range=0.2, tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, **sizes
    )
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder)
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(SMALL / name, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def adapter_in(folder, base, is_begun):
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), config)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_A" in name or (is_begun and "lora_B" in name):
                parameter.copy_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)


def theirs(base, adapter, method, options, form, home):
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")
    is_begun = adapter is not None and "begun" in adapter.name
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, is_trainable=True, autocast_adapter_dtype=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    common = dict(
        output_dir=str(home / "trl"), max_steps=STEPS, per_device_train_batch_size=1 if method == "orpo" else BATCH,
        gradient_accumulation_steps=BATCH if method == "orpo" else 1, learning_rate=RATE, lr_scheduler_type="constant", warmup_steps=0,
        adam_beta1=BETAS[0], adam_beta2=BETAS[1], adam_epsilon=EPSILON, weight_decay=0.0, max_grad_norm=0.0, use_cpu=True, bf16=False,
        report_to=[], logging_steps=1, disable_tqdm=True, save_strategy="no", gradient_checkpointing=False, max_length=None, beta=options["beta"],
    )
    data = Dataset.from_list(list(records(form)))
    datasets.disable_progress_bars()
    seen = []
    if method in ("dpo", "ipo"):
        config = DPOConfig(**common, loss_type="sigmoid" if method == "dpo" else "ipo", label_smoothing=options.get("label_smoothing", 0.0))
        kind = DPOTrainer
        reference = None
        if adapter is None:
            reference = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64, attn_implementation="eager")
        arguments = dict(model=model, ref_model=reference)
    elif method == "simpo":
        config = CPOConfig(**common, loss_type="simpo", simpo_gamma=options["gamma"], cpo_alpha=0.0, label_smoothing=options.get("label_smoothing", 0.0))
        kind, arguments = CPOTrainer, dict(model=model)
    else:
        config, kind, arguments = ORPOConfig(**common), ORPOTrainer, dict(model=model)

    class Watched(kind):
        def _get_train_sampler(self, *_):
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *arguments, **keys):
            result = super().compute_loss(*arguments, **keys)
            seen.append({"loss": (result[0] if isinstance(result, tuple) else result).item()})
            return result

        def log(self, logs, *arguments, **keys):
            metrics = {key: sum(values) / len(values) for key, values in self._stored().items() if values}
            if metrics:
                seen.append(metrics)
            getattr(self, "_metrics", getattr(self, "_stored_metrics", None))["train"].clear()

        def _stored(self):
            return dict(self._metrics["train"]) if hasattr(self, "_metrics") else dict(self._stored_metrics["train"])

    trainer = Watched(args=config, train_dataset=data, processing_class=tokenizer, **arguments)
    trainer.train()
    steps, losses = [], []
    for one in seen:
        if "loss" in one and len(one) == 1:
            losses.append(one["loss"])
            continue
        if losses:
            steps.append(one | {"loss": sum(losses) / len(losses)})
            losses = []
    return steps[:STEPS]


def ours(gristmill, base, adapter, method, options, form, keys, home, name):
    data = home / "pairs.jsonl"
    data.write_text("\n".join(json.dumps(record) for record in records(form)) + "\n")
    model = {"seq_length": 160}
    if adapter is not None:
        model["pet_config"] = {
            "pet_type": "lora", "lora_rank": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": ["q_proj", "v_proj", "o_proj"],
            "adapter_path": str(adapter),
        }
    config = {
        "output_dir": str(home), "run_name": name, "load_checkpoint": str(base), "model": {"model_config": model},
        "preference": {"type": method, **options, **keys},
        "train_dataset": {"data_loader": {"type": "SFTDataLoader", "dataset_files": [str(data)], "raw": form != "chat", "shuffle": False}},
        "runner_config": {"epochs": 1, "batch_size": 2, "gradient_accumulation_steps": BATCH // 2}, "runner_wrapper": {"use_clip_grad": False},
        "optimizer": {"type": "AdamW", "betas": BETAS, "eps": EPSILON, "weight_decay": 0.0},
        "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": RATE}, "save_final": False,
    }
    file = home / f"{name}.yaml"
    file.write_text(json.dumps(config))
    done = subprocess.run([gristmill, "train", file, "--tier", "software"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [json.loads(line) for line in (home / name / "metrics.jsonl").read_text().splitlines()]


NUMBERS = {
    "loss": "loss", "rewards_chosen": "rewards/chosen", "rewards_rejected": "rewards/rejected", "rewards_margin": "rewards/margins",
    "rewards_accuracy": "rewards/accuracies", "logps_chosen": "logps/chosen", "logps_rejected": "logps/rejected",
}


def compare(gristmill, name):
    kind, method, options, trains, form, keys = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        base = home / "base"
        model_in(base, kind)
        adapter = None
        if trains != "full":
            adapter = home / f"adapter_{trains}"
            adapter_in(adapter, base, trains == "begun")
        mine = ours(gristmill, base, adapter, method, options, form, keys, home, name)
        want = theirs(base, adapter, method, options, form, home)
    apart = {}
    for step, other in zip(mine, want, strict=True):
        for own, their in NUMBERS.items():
            distance = abs(step[own] - other[their]) / (abs(other[their]) + 1)
            apart[own] = max(apart.get(own, 0.0), distance)
    losses = [round(step["loss"], 4) for step in mine]
    print(f"{name}: losses {losses[0]} to {losses[-1]}, apart " + ", ".join(f"{key} {value:.1e}" for key, value in apart.items()), flush=True)
    return max(apart.values()) <= ALLOWED


def main():
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning)
    gristmill = pathlib.Path(sys.argv[1]).resolve()
    results = [compare(gristmill, name) for name in sys.argv[2:] or CASES]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
