"""Trains a small model with MindSpore Transformers itself, on the CPU.

    python original.py FILE.yaml TEXT STEPS OUT

Writes OUT/init.npz, the initial weights under MindFormers' names, and OUT/steps.json, [loss, global norm] of each step. Tokens
are the bytes of TEXT; row b of the batch of step s is window s * batch_size + b, seq_length + 1 tokens long, and a window starts
at the last token of the one before it. The learning rate is constant; vectors are not decayed.

What the CPU has no kernels for is replaced by the same arithmetic (products and zeros as plain functions, the overflow register
by looking at the gradients), and parts that compute in float16 whatever `compute_dtype` says compute in float32.
"""

import json
import os
import sys
import types

import numpy as np
import yaml


def stand_in(name):
    """An empty module in place of an image library that the package imports and language models do not use."""
    sys.modules.setdefault(name, types.ModuleType(name))


stand_in("cv2")
import mindspore
from mindspore import Tensor, ops

mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
from mindformers.core.optim import AdamW
from mindformers.models import build_network
from mindformers.tools.register import MindFormerConfig
from mindformers.wrapper.wrapper import MFTrainOneStepCell


def use_plain_norms():
    """RMSNorm from its formula instead of the fused kernel."""
    for name, module in list(sys.modules.items()):
        if name.startswith("mindformers.") and hasattr(module, "check_rmsnorm_big_kernel_valid"):
            module.check_rmsnorm_big_kernel_valid = lambda *_, **__: False


def product(transposes_a, transposes_b):
    turned = lambda x, is_turned: x.swapaxes(-1, -2) if is_turned else x
    return lambda a, b: ops.matmul(turned(a, transposes_a), turned(b, transposes_b))


def replace(cell, key, function):
    getattr(cell, "_primitives", {}).pop(key, None)
    cell.__dict__.pop(key, None)
    object.__setattr__(cell, key, function)


def make_it_run(network):
    """Replaces what the CPU lacks, in every cell."""
    for _, cell in network.cells_and_names():
        if not hasattr(cell, "cast"):
            object.__setattr__(cell, "cast", lambda x, dtype: x.astype(dtype))
        for key, value in [*getattr(cell, "_primitives", {}).items(), *cell.__dict__.items()]:
            if type(value).__name__ == "BatchMatMul":
                replace(cell, key, product(value.transpose_a, value.transpose_b))
            elif key == "mul_mask":  # ChatGLM2's mask is uint8, in which -10000 wraps around to 240
                replace(cell, key, lambda mask, low: mask.astype(mindspore.float32) * low)
            elif key.startswith("zeros_op"):
                replace(cell, key, lambda shape, dtype: ops.zeros(shape, dtype))
            elif "dtype" in key.lower() and value == mindspore.float16:
                setattr(cell, key, mindspore.float32)


def optimizer(weights, config):
    is_vector = lambda p: p.ndim <= 1 or p.name.endswith(".bias")  # those of experts are stacked
    matrices = [p for p in weights if not is_vector(p)]
    vectors = [p for p in weights if is_vector(p)]
    groups = [{"params": matrices, "weight_decay": config["weight_decay"]}, {"params": vectors, "weight_decay": 0.0}]
    return AdamW(groups, learning_rate=config["learning_rate"], betas=tuple(config["betas"]), eps=config["eps"])


def step_cell(network, config):
    wrapper = {key: value for key, value in config["runner_wrapper"].items() if key not in ("type", "scale_sense")}
    scale = Tensor([float(config["runner_wrapper"]["scale_sense"])], mindspore.float32)
    cell = MFTrainOneStepCell(network, optimizer(network.trainable_params(), config["optimizer"]), scale_sense=scale, **wrapper)
    cell.set_train(True)
    is_finite = lambda gradients: all(np.isfinite(g.asnumpy()).all() for g in gradients)
    object.__setattr__(cell, "start_overflow_check", lambda _, sens: (Tensor(0), sens))
    object.__setattr__(cell, "get_overflow_status", lambda _, gradients: Tensor(not is_finite(gradients)))
    return cell


def inputs(arch, windows):
    """The columns that the model of `arch` takes."""
    ids, rows = np.array(windows), len(windows)
    if arch.startswith("ChatGLM"):
        return [ids[:, :-1], ids[:, 1:]]
    if arch.startswith("PanguAlpha"):  # positions and the mask of causal attention come from its data set
        tokens = ids.shape[1]
        return [ids, np.tile(np.arange(tokens), (rows, 1)), np.tile(np.tril(np.ones((tokens, tokens))), (rows, 1, 1))]
    return [ids]


def number(x):
    return float(np.asarray(x.asnumpy() if hasattr(x, "asnumpy") else x).reshape(-1)[0])


def main():
    path, text, steps, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    with open(path) as file:
        config = yaml.safe_load(file)
    model = config["model"]["model_config"]
    model["use_flash_attention"] = False  # has a kernel on NPUs only
    if "moe_config" in config:
        model["moe_config"] = config["moe_config"]
    model["batch_size"] = batch = config["runner_config"]["batch_size"]
    mindspore.set_seed(1)
    np.random.seed(1)
    use_plain_norms()
    network = build_network(MindFormerConfig(**config["model"]))
    network.set_train(True)
    make_it_run(network)
    os.makedirs(out, exist_ok=True)
    weights = {p.name: p.asnumpy().astype(np.float32) for p in network.trainable_params()}
    np.savez(os.path.join(out, "init.npz"), **weights)
    cell, length = step_cell(network, config), model["seq_length"]
    with open(text, "rb") as file:
        tokens = file.read()
    rows = []
    for step in range(steps):
        starts = [(step * batch + row) * length for row in range(batch)]
        windows = [list(tokens[start : start + length + 1]) for start in starts]
        columns = inputs(config["model"]["arch"]["type"], windows)
        loss, _, _, _, norm = cell(*(Tensor(column, mindspore.int32) for column in columns))[:5]
        rows.append([number(loss), number(norm)])
        print(step + 1, *rows[-1], flush=True)
    with open(os.path.join(out, "steps.json"), "w") as file:
        json.dump(rows, file)


main()
