"""Opens an adapter that Gristmill trained in PEFT and compares evaluation loss and greedy text with Gristmill's.

    cargo build --release --bin gristmill
    python tests/transformers/peft_adapter.py target/release/gristmill

Needs torch, transformers and peft; CI does not run it. It trains small models with adapters in a temporary folder, on
tests/data/mill.txt: a Llama with all linear layers adapted, one with some (rank 3, interleaved heads, one layer
excluded), and a GPT-2; and models that start from a folder of transformers: a Phi-3, of whose modules two are fused, an
ERNIE 4.5, whose heads rotate in pairs, a SmolLM3 and a CWM, whose layers differ, a Ministral 3, a Granite, a Gemma, mixtures, models
with LayerNorm, a Llava, whose language model is inside another, and a Qwen2 and a GPT-2 of which more trains than adapters. Of these the adapter that
`gristmill export` writes is opened on that folder.
For each it compares:
  - the last evaluation's loss in metrics.jsonl with PEFT's on the same windows: at most 1e-5 apart;
  - 40 greedy tokens of `gristmill generate` with those of PEFT's model: equal;
  - both with what `transformers` computes from the result of `gristmill merge`.
Models of BESIDE have what else PEFT's adapters can: of experts, which PEFT calls `target_parameters`, of several ranks and scales, modules that train
whole, rates of their own. PEFT writes an adapter, from which both train for STEPS_BESIDE steps of AdamW on the same tokens. Each loss, the first of which is that of the adapter as PEFT wrote it, must be PEFT's in float64, at most
1e-5 of it apart, and so must those of our adapter in PEFT and of what `gristmill merge` makes of it in transformers.
At last PEFT writes an adapter of a Qwen2 with modules that it saves whole, and `gristmill generate --adapter`, and `generate` of
what `merge` makes of it, must write what PEFT does.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import shapes
from peft import LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from transformers import AutoModelForCausalLM

ALLOWED = 1e-5
LENGTH, TOKENS, STEPS, STEPS_BESIDE = 24, 20, 30, 10
TEXT = pathlib.Path(__file__).parents[1] / "data" / "mill.txt"
PROMPT = "fn "

MODEL = """
model:
  model_config: {{ type: {kind}, vocab_size: 256, hidden_size: 48, num_layers: 2, num_heads: 4, intermediate_size: 64,
                  seq_length: {length}, init_method_std: 0.1, {model} }}
"""
CONFIG = """
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

# The model_type of a folder, its keys, and the adapters.
FOLDERS = {
    # Rotations by the length of texts, and clipped projections.
    "phi3": ("phi3", {"rope_parameters": shapes.LONGROPE, "original_max_position_embeddings": 32, "head_dim": 16}, "lora_rank: 4, target_modules: 'qkv_proj|o_proj|gate_up_proj|down_proj'"),
    "ernie4_5": ("ernie4_5", shapes.ROPE, "lora_rank: 3, lora_alpha: 6, target_modules: '.*wq|.*wk|.*w1'"),
    # Layers that differ in window and rotation, and queries that grow with their position.
    "smollm3": (
        "smollm3",
        {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 7, **shapes.ROPE},
        "lora_rank: 3, target_modules: 'q_proj|k_proj|o_proj'",
    ),
    # Norms after sublayers, over all heads of q and k, and of rotated heads.
    "glm4": ("glm4", shapes.ROPE, "lora_rank: 3, target_modules: 'q_proj|o_proj|down_proj'"),
    "olmo2": ("olmo2", shapes.ROPE, "lora_rank: 3, target_modules: '.*_proj'"),
    "hunyuan": ("hunyuan_v1_dense", shapes.ROPE, "lora_rank: 2, target_modules: 'q_proj|k_proj|o_proj'"),
    "cwm": ("cwm", {"sliding_window": 7, **shapes.ROPE}, "lora_rank: 2, target_modules: '.*_proj'"),
    "ministral3": (
        "ministral3",
        {"rope_parameters": shapes.GROWING | {"original_max_position_embeddings": 8}},
        "lora_rank: 4, target_modules: '.*wq|.*wk'",
    ),
    # Factors of what adapters add to, and a gate by GELU under norms that multiply by 1 + w.
    "granite": ("granite", {"residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 2.0, **shapes.ROPE}, "lora_rank: 3, target_modules: '.*_proj'"),
    "gemma": ("gemma", shapes.ROPE, "lora_rank: 2, target_modules: '.*_proj'"),
    "gemma2": ("gemma2", shapes.GEMMA2, "lora_rank: 3, target_modules: '.*_proj'"),
    "gemma4_text": (
        "gemma4_text",
        shapes.GEMMA4 | {"num_kv_shared_layers": 1, "layer_types": [shapes.SLIDING, shapes.FULL, shapes.FULL], "hidden_size_per_layer_input": 12,
                         "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3},
        "lora_rank: 2, target_modules: 'q_proj|k_proj|v_proj|o_proj|per_layer_input_gate|per_layer_projection'",
    ),
    "gemma3_text": ("gemma3_text", shapes.GEMMA3, "lora_rank: 2, target_modules: 'q_proj|o_proj|down_proj'"),
    # Experts, which have no adapters, under names of their own.
    "granitemoeshared": ("granitemoeshared", shapes.GRANITE | {"shared_intermediate_size": 56, **shapes.ROPE}, "lora_rank: 3, target_modules: 'q_proj|o_proj'"),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", shapes.ROPE, "lora_rank: 2, target_modules: 'q_proj|k_proj|o_proj'"),
    "minimax_m2": ("minimax_m2", {"rotary_dim": 8, **shapes.ROPE}, "lora_rank: 3, target_modules: 'q_proj|v_proj|o_proj'"),
    # A factor behind the norms of what adapters add to.
    "hyperclovax": ("hyperclovax", shapes.GRANITE | {"logits_scaling": 0.25, **shapes.ROPE}, "lora_rank: 3, target_modules: '.*_proj'"),
    "olmo3": ("olmo3", {"num_hidden_layers": 4, "sliding_window": 7}, "lora_rank: 2, target_modules: '.*_proj'"),
    # LayerNorm, networks without gates, and attention and feed-forward network beside each other.
    "nemotron": ("nemotron", shapes.SHARE, "lora_rank: 3, target_modules: '.*_proj'"),
    "starcoder2": ("starcoder2", {"sliding_window": 7, **shapes.ROPE}, "lora_rank: 2, target_modules: 'c_fc|c_proj|q_proj'"),
    "stablelm": ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True, "qk_layernorm": True, **shapes.SHARE}, "lora_rank: 2, target_modules: '.*_proj'"),
    "cohere": ("cohere", {"logit_scale": 0.3, "use_qk_norm": True, **shapes.ROPE}, "lora_rank: 3, target_modules: '.*_proj'"),
    "gpt_neox": ("gpt_neox", shapes.SHARE, "lora_rank: 3, target_modules: 'query_key_value|dense|dense_h_to_4h|dense_4h_to_h'"),
    "cohere2": ("cohere2", {"sliding_window": 7, "logit_scale": 0.3, **shapes.ROPE}, "lora_rank: 2, target_modules: '.*_proj'"),
    "arcee": ("arcee", shapes.ROPE, "lora_rank: 3, target_modules: '.*_proj'"),
    # Frozen numbers of an activation beside adapters.
    "apertus": ("apertus", shapes.ROPE, "lora_rank: 3, target_modules: '.*_proj'"),
    "jais2": ("jais2", shapes.ROPE, "lora_rank: 2, target_modules: '.*_proj'"),
    "olmo": ("olmo", {"clip_qkv": 0.5, **shapes.ROPE}, "lora_rank: 3, target_modules: '.*_proj'"),
    "falcon": (
        "falcon",
        {"new_decoder_architecture": True, "num_kv_heads": 2, **shapes.ROPE},
        "lora_rank: 3, target_modules: 'query_key_value|dense|dense_h_to_4h|dense_4h_to_h'",
    ),
    "gptj": ("gptj", {"rotary_dim": 8}, "lora_rank: 3, target_modules: 'q_proj|k_proj|out_proj|fc_in|fc_out'"),
    "phi": ("phi", {"qk_layernorm": True, **shapes.SHARE}, "lora_rank: 2, target_modules: 'q_proj|v_proj|dense|fc1|fc2'"),
    "nanochat": ("nanochat", {"final_logit_softcapping": 2.0, **shapes.ROPE}, "lora_rank: 3, target_modules: 'q_proj|k_proj|o_proj|fc1|fc2'"),
    "mpt": ("mpt", shapes.MPT, "lora_rank: 2, target_modules: 'Wqkv|out_proj|up_proj|down_proj'"),
    "opt": (
        "opt",
        {"do_layer_norm_before": False, "word_embed_proj_dim": 36},
        "lora_rank: 3, target_modules: 'project_in|project_out|q_proj|v_proj|out_proj|fc1|fc2'",
    ),
    # Products to latent vectors, beside those from them, which have no adapters here.
    "minicpm3": ("minicpm3", shapes.MINICPM3 | {"q_lora_rank": None}, "lora_rank: 3, target_modules: 'q_proj|kv_a_proj_with_mqa|o_proj|gate_proj'"),
    # Frozen sinks beside adapters of attention, and frozen experts.
    "gpt_oss": ("gpt_oss", {"sliding_window": 7, **shapes.ROPE}, "lora_rank: 3, target_modules: 'q_proj|k_proj|v_proj|o_proj'"),
    # A factor of values behind adapters, and values of another width.
    "mimo_v2_flash": ("mimo_v2_flash", shapes.MIMO, "lora_rank: 3, target_modules: 'q_proj|k_proj|v_proj|o_proj'"),
    # The projections of linear attention, which files of Qwen3-Next hold key head by key head, and queries beside gates.
    "qwen3_next": ("qwen3_next", shapes.QWEN3_NEXT, "lora_rank: 3, target_modules: 'in_proj_qkvz|in_proj_ba|out_proj|q_proj|o_proj'"),
    "lfm2": ("lfm2", shapes.LFM2, "lora_rank: 3, target_modules: 'in_proj|out_proj|q_proj|w2'"),
    "phimoe": (
        "phimoe",
        {"router_jitter_noise": 0.2, "lm_head_bias": True, **shapes.ROPE},
        "lora_rank: 3, target_modules: 'q_proj|k_proj|v_proj|o_proj'",
    ),
    "ernie4_5_moe": ("ernie4_5_moe", shapes.ROPE, "lora_rank: 3, target_modules: 'q_proj|k_proj|v_proj|o_proj'"),
    "lfm2_moe": ("lfm2_moe", shapes.LFM2 | {"num_dense_layers": 1}, "lora_rank: 3, target_modules: 'in_proj|out_proj|v_proj'"),
    "qwen3_5_text": ("qwen3_5_text", shapes.QWEN3_NEXT, "lora_rank: 2, target_modules: 'in_proj_.*|out_proj|.*_proj'"),
    "llava": ("llava", shapes.ROPE, "lora_rank: 2, target_modules: '.*_proj'"),
    # Whole modules, the bias of one whose matrix is frozen, and a matrix that is adapted too.
    "beside": (
        "qwen2",
        shapes.ROPE,
        "lora_rank: 4, target_modules: '.*wo|.*w2', "
        "freeze_exclude: ['*norm.weight', 'lm_head*', '*_proj.bias', '*.0.mlp.down_proj.weight']",
    ),
    # The embedding is the head too.
    "tied": ("gpt2", {}, "lora_rank: 4, target_modules: c_attn, freeze_exclude: ['*wte*', '*c_attn.bias']"),
}
# The model_type, its keys, the linear layers and the parameters that are adapted, and further keys of LoraConfig, or `loraplus_lr_ratio`. Some
# adapt one parameter alone, or in some layers alone. In classes like Qwen2-MoE PEFT takes every module that is called gate_proj, up_proj or
# down_proj, also one of a shared expert, for the experts, so here Granite's alone is adapted.
BOTH = ["experts.gate_up_proj", "experts.down_proj"]
TIED = {"tie_word_embeddings": True, **shapes.ROPE}
PATTERNS = {"use_rslora": True, "rank_pattern": {"1.self_attn.q_proj": 5, "[qk]_proj": 2, "mlp.*": 1}, "alpha_pattern": {"layers.0.*": 4, "v_proj": 9}}
BESIDE = {
    "qwen3_moe_experts": ("qwen3_moe", {"router_aux_loss_coef": 0.0, **shapes.ROPE}, ["q_proj"], BOTH, {}),
    "gpt_oss_experts": ("gpt_oss", {"sliding_window": 7, **shapes.ROPE}, ["v_proj"], BOTH, {}),
    "mixtral_experts": ("mixtral", {"router_aux_loss_coef": 0.0, **shapes.ROPE}, [], ["experts.gate_up_proj"], {"use_rslora": True}),
    "granitemoeshared_experts": ("granitemoeshared", shapes.GRANITE | {"shared_intermediate_size": 56, **shapes.ROPE}, ["shared_mlp.input_linear"], BOTH, {}),
    "lfm2_moe_experts": ("lfm2_moe", shapes.LFM2 | {"num_dense_layers": 1}, ["in_proj"], ["experts.down_proj"], {}),
    "deepseek_v3_experts": ("deepseek_v3", shapes.LATENT, ["o_proj"], ["2.mlp.experts.down_proj", "experts.gate_up_proj"], {}),
    "qwen2_moe_experts": ("qwen2_moe", {"router_aux_loss_coef": 0.0, **shapes.ROPE}, ["o_proj"], BOTH, {}),
    "gemma4_experts": ("gemma4_text", shapes.GEMMA4 | {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3}, [], BOTH, {}),
    "patterns": ("qwen3", shapes.ROPE, "all-linear", [], PATTERNS),
    "patterns_gpt2": ("gpt2", {}, "all-linear", [], {"rank_pattern": {"c_proj": 6}, "alpha_pattern": {"0.attn.*": 1}}),
    "patterns_experts": ("qwen3_moe", {"router_aux_loss_coef": 0.0, **shapes.ROPE}, ["q_proj", "o_proj"], BOTH, {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"1.*": 3}}),
    "saved": ("llama", shapes.ROPE, ["q_proj", "down_proj"], [], {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "saved_embedding_of_tied": ("qwen2", TIED, ["o_proj"], [], {"modules_to_save": ["embed_tokens"]}),
    "saved_head_of_tied": ("llama", TIED, ["o_proj"], [], {"modules_to_save": ["lm_head", "norm"]}),
    "saved_both_of_tied": ("gpt2", {}, ["c_attn"], [], {"modules_to_save": ["wte", "lm_head"]}),
    "saved_ensured": ("qwen3", TIED, ["o_proj"], [], {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "dora": ("qwen2", shapes.ROPE, "all-linear", [], {"use_dora": True}),
    "dora_patterns": ("qwen3", TIED, ["q_proj", "v_proj", "down_proj", "gate_proj"], [], {"use_dora": True, "use_rslora": True, "rank_pattern": {"v_proj": 2}, "modules_to_save": ["norm"]}),
    "dora_gpt2": ("gpt2", {}, ["c_attn", "mlp.c_proj"], [], {"use_dora": True}),
    "dora_of_a_mixture": ("deepseek_v3", shapes.LATENT, ["q_a_proj", "o_proj"], [], {"use_dora": True}),
    "dora_loraplus": ("olmo2", shapes.ROPE, ["q_proj", "o_proj"], [], {"use_dora": True, "loraplus_lr_ratio": 4.0}),
    "loraplus": ("qwen2", shapes.ROPE, ["q_proj", "down_proj"], [], {"modules_to_save": ["norm", "lm_head"], "loraplus_lr_ratio": 4.0}),
    "loraplus_experts": ("gpt_oss", {"sliding_window": 7, **shapes.ROPE}, ["v_proj"], BOTH, {"loraplus_lr_ratio": 4.0}),
    "qwen3_5_moe_experts": ("qwen3_5_moe", shapes.QWEN3_NEXT | {"router_aux_loss_coef": 0.0}, [], BOTH, {}),
}
FOLDER_CONFIG = """
load_checkpoint: {folder}
model: {{ model_config: {{ seq_length: {length}, pet_config: {{ pet_type: lora, {adapters} }} }} }}
"""

BATCHES = 3


def run(*arguments):
    """What a command prints, without translating the ends of lines, which a model may write."""
    done = subprocess.run([str(argument) for argument in arguments], capture_output=True)
    if done.returncode != 0:
        sys.exit(done.stderr.decode())
    return done.stdout.decode("utf-8", "replace")


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
    config, evaluation = home / f"{name}.yaml", home / "evaluation.txt"
    text = TEXT.read_bytes()[:1000]
    evaluation.write_bytes(text)
    windows = evaluation_windows(text)
    data = CONFIG.format(text=TEXT, evaluation=evaluation, steps=STEPS, batches=BATCHES)
    folder, open_base = home / f"{name}_folder", AutoModelForCausalLM
    if name in CASES:
        kind, model, adapters = CASES[name]
        keys = f"{model}, pet_config: {{ pet_type: lora, random_base: True, {adapters} }}"
        config.write_text(MODEL.format(kind=kind, length=LENGTH, model=keys) + data)
    else:
        kind, keys, adapters = FOLDERS[name]
        open_base = type(shapes.make(kind, keys, folder))
        config.write_text(FOLDER_CONFIG.format(folder=folder, length=LENGTH, adapters=adapters) + data)
    run(gristmill, "train", config, f"--output_dir={home}")
    checkpoint = home / name / "checkpoint" / f"step_{STEPS:07}"
    lines = (home / name / "metrics.jsonl").read_text().splitlines()
    ours = json.loads(lines[-1])["eval_loss"]
    ours_text = run(gristmill, "generate", home / name, "--prompt", PROMPT, "--tokens", TOKENS, "--temperature", 0)
    base_folder, adapter = checkpoint, checkpoint / "adapter"
    if name in FOLDERS:
        base_folder, adapter = folder, home / f"{name}_adapter"
        run(gristmill, "export", checkpoint, folder, adapter)
    run(gristmill, "merge", base_folder, checkpoint, home / f"{name}_merged")

    base = open_base.from_pretrained(base_folder, dtype=torch.float32, attn_implementation="eager")
    without = loss(base, windows)
    adapted = PeftModel.from_pretrained(base, adapter).eval()
    merged = open_base.from_pretrained(home / f"{name}_merged", dtype=torch.float32, attn_implementation="eager")
    theirs, of_merged = loss(adapted, windows), loss(merged, windows)
    their_text = greedy(adapted).decode("utf-8", "replace")
    is_same_text = ours_text.rstrip("\n") == their_text.rstrip("\n")
    targets = sorted({key.rsplit(".", 1)[-1] for key in adapted.peft_config["default"].target_modules})
    print(
        f"{name}: base {without:.7f}; ours {ours:.7f}, PEFT {theirs:.7f} ({theirs - ours:+.1e}), merged {of_merged:.7f} "
        f"({of_merged - ours:+.1e}); greedy text {'equal' if is_same_text else 'DIFFERS'}; targets {', '.join(targets)}"
    )
    is_close = max(abs(theirs - ours), abs(of_merged - ours)) <= ALLOWED
    return is_close and is_same_text and without - theirs > 100 * ALLOWED


def train_beside(gristmill, name, home):
    kind, keys, modules, parameters, more = BESIDE[name]
    folder, adapter, ours, merged, text = (home / f"{name}_{of}" for of in ("base", "adapter", "ours", "merged", "text"))
    base = shapes.make(kind, keys, folder)
    ratio = more.get("loraplus_lr_ratio")
    keys = {key: value for key, value in more.items() if key != "loraplus_lr_ratio"}
    config = LoraConfig(r=3, lora_alpha=6, target_modules=modules, target_parameters=parameters, **keys)
    model = get_peft_model(base, config)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(adapter)
    text.write_bytes(shapes.TEXT)
    pet = {
        "pet_type": "lora", "lora_rank": 3, "lora_alpha": 6, "lora_dropout": 0, "adapter_path": str(adapter), "target_parameters": parameters,
        "target_modules": modules if isinstance(modules, str) else [f"{module}$" for module in modules], **more,
    }
    lines = {
        "output_dir": str(home), "run_name": name, "load_checkpoint": str(folder),
        "model": {"model_config": {"seq_length": shapes.WINDOW, "pet_config": pet}},
        "train_dataset": {"data_loader": {"type": "TextDataLoader", "dataset_files": [str(text)]}},
        "runner_config": {"epochs": STEPS_BESIDE, "batch_size": shapes.BATCH}, "runner_wrapper": {"use_clip_grad": False},
        "optimizer": {"type": "AdamW", "betas": shapes.BETAS, "eps": shapes.EPSILON, "weight_decay": 0.0},
        "lr_schedule": {"type": "ConstantWarmUpLR", "learning_rate": shapes.RATE},
        "callbacks": [{"type": "MFLossMonitor", "per_print_times": 1}, {"type": "CheckpointMonitor", "save_checkpoint_steps": STEPS_BESIDE}],
    }
    (home / f"{name}.yaml").write_text(json.dumps(lines))
    flags = ["--prompt", PROMPT, "--tokens", TOKENS, "--temperature", 0]
    texts = run(gristmill, "generate", folder, "--adapter", adapter, *flags), greedy(model).decode("utf-8", "replace")
    ends = [text.rstrip("\n").split("\x02")[0] for text in texts]  # ours stops at the token that ends texts
    is_same_text = ends[0] == ends[1]
    run(gristmill, "train", home / f"{name}.yaml", "--tier", "software")
    metrics = [json.loads(line) for line in (home / name / "metrics.jsonl").read_text().splitlines()]
    run(gristmill, "export", home / name, folder, ours)
    run(gristmill, "merge", folder, home / name, merged)
    losses = [line["loss"] for line in metrics if "loss" in line]
    model, theirs = model.double().eval(), []
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    numbers = {"betas": shapes.BETAS, "eps": shapes.EPSILON}
    if ratio is None:
        optimizer = torch.optim.AdamW(trained, lr=shapes.RATE, weight_decay=0.0, **numbers)
    else:
        optimizer = create_loraplus_optimizer(model, torch.optim.AdamW, lr=shapes.RATE, loraplus_lr_ratio=ratio, **numbers)
    for _ in range(STEPS_BESIDE):
        loss_now = shapes.loss_on(shapes.TEXT, model)
        optimizer.zero_grad()
        loss_now.backward()
        optimizer.step()
        theirs.append(loss_now.item())
    with torch.no_grad():
        last = shapes.loss_on(shapes.TEXT, model).item()
        opened = type(base).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        of_ours = shapes.loss_on(shapes.TEXT, PeftModel.from_pretrained(opened, ours).eval()).item()
        of_merged = shapes.loss_on(shapes.TEXT, type(base).from_pretrained(merged, dtype=torch.float32, attn_implementation="eager").eval()).item()
    pairs = [*zip(losses, theirs, strict=True), (of_ours, last), (of_merged, last)]
    apart = [abs(one - other) / other for one, other in pairs]
    print(
        f"{name}: {len(trained)} tensors; {theirs[0]:.4f} to {last:.4f}; first loss {apart[0]:.1e}, losses {max(apart[:-2]):.1e}, ours in PEFT "
        f"{apart[-2]:.1e}, merged {apart[-1]:.1e} apart; greedy text {'equal' if is_same_text else 'DIFFERS'}",
        flush=True,
    )
    return max(apart) <= ALLOWED and is_same_text and theirs[0] - last > 1000 * ALLOWED


def read_theirs(gristmill, home):
    base, adapter, merged = (home / f"theirs_{name}" for name in ("base", "adapter", "merged"))
    saved = ["model.norm", "lm_head", "k_proj"]
    config = LoraConfig(r=3, lora_alpha=7, use_rslora=True, target_modules=["q_proj", "down_proj"], modules_to_save=saved)
    model = get_peft_model(shapes.make("qwen2", shapes.ROPE, base), config)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    model.eval().save_pretrained(adapter)
    run(gristmill, "merge", base, adapter, merged)
    flags = ["--prompt", PROMPT, "--tokens", TOKENS, "--temperature", 0]
    ours = [run(gristmill, "generate", base, "--adapter", adapter, *flags), run(gristmill, "generate", merged, *flags)]
    theirs = greedy(model).decode("utf-8", "replace")
    is_same = [text.rstrip("\n") == theirs.rstrip("\n") for text in ours]
    print(f"theirs: greedy text of the adapter and of the merged model {is_same}")
    return all(is_same)


def main():
    gristmill = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as home:
        of = lambda name: (train_beside if name in BESIDE else compare)(gristmill, name, pathlib.Path(home))
        results = [of(name) for name in sys.argv[2:] or [*CASES, *FOLDERS, *BESIDE]]
        if not sys.argv[2:]:
            results.append(read_theirs(gristmill, pathlib.Path(home)))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
