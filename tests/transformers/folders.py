"""Makes the small Hugging Face folders of tests/data/folders and what transformers computes with them.

    python tests/transformers/folders.py

Random models of six families, saved by `save_pretrained`; losses.json has of each the loss of tests/data/mill.txt by windows of WINDOW
bytes, each after the byte before it and the first after a line feed, in float64, and the losses of five steps of AdamW on the first
BATCH of them, in float32. tests/processes/folders.rs holds gristmill's against them. Needs torch and transformers, and runs from the
root of the repository.
"""

import json
import logging
import pathlib
import shutil

import torch
import transformers

import shapes

FOLDERS = pathlib.Path("tests/data/folders")
WINDOW, BATCH, STEPS, RATE = 48, 4, 5, 3e-3
TINY = {"vocab_size": 128, "hidden_size": 16, "num_hidden_layers": 2, "head_dim": 8, "max_position_embeddings": WINDOW, "n_positions": WINDOW, "intermediate_size": 20, "moe_intermediate_size": 12,
        "n_embd": 16, "n_layer": 2, "n_inner": 20, "kv_lora_rank": 8, "q_lora_rank": 12, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
FAMILIES = {
    "llama": ("llama", {"rope_parameters": shapes.LLAMA3}),
    "mistral": ("mistral", {"sliding_window": 7, **shapes.ROPE}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True, **shapes.ROPE}),
    "qwen3_moe": ("qwen3_moe", {"router_aux_loss_coef": 0.0, **shapes.ROPE}),
    "deepseek_v3": ("deepseek_v3", shapes.LATENT),
    "gpt2": ("gpt2", {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}),
}
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


def training(model):
    model, tokens = model.float().train(), torch.tensor(TEXT[: WINDOW * BATCH + 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        logits = model(tokens[:-1].view(BATCH, WINDOW), use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    shapes.KEYS |= TINY
    shutil.rmtree(FOLDERS, ignore_errors=True)
    losses = {}
    for name, (kind, keys) in FAMILIES.items():
        model = shapes.make(kind, keys, FOLDERS / name)
        (FOLDERS / name / "generation_config.json").unlink(missing_ok=True)
        (FOLDERS / name / "model.safetensors").chmod(0o644)
        losses[name] = {"evaluation": evaluation(model), "training": training(model)}
    (FOLDERS / "losses.json").write_text(json.dumps(losses, indent=1) + "\n")


if __name__ == "__main__":
    main()
