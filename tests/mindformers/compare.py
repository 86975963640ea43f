"""Compares ten steps of MindSpore Transformers with ten of ours, from the same weights, on the same tokens.

    python -m venv original && original/bin/pip install mindspore==2.7.1 "numpy<2" pyyaml safetensors transformers==4.51.3 \\
        datasets==2.18.0 pyarrow sentencepiece ftfy regex tqdm jieba rouge-chinese nltk astunparse tensorboardX tiktoken mindpet
    original/bin/pip install --no-deps mindformers==1.3.2
    cargo build --release --example train_gpt
    original/bin/python tests/mindformers/compare.py [NAME ...]

NAME is a file of tests/mindformers/models without `.yaml`; all of them by default. Prints the largest difference in loss and the
largest relative difference in global norm, and exits with 1 if one is above 1e-4. Needs no NPU, and nothing needs it: what it
found is in README.md's table of types.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import yaml
from safetensors.numpy import save_file

from names import CONVERTERS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TEXT = ROOT / "LICENSE-APACHE"
STEPS = 10
ALLOWED = 1e-4


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def original(path, folder):
    run([sys.executable, HERE / "original.py", path, TEXT, str(STEPS), folder], folder)
    with open(path) as file:
        model = yaml.safe_load(file)["model"]
    weights = dict(np.load(folder / "init.npz"))
    converted = CONVERTERS[model["arch"]["type"]](weights, model["model_config"])
    save_file({name: np.ascontiguousarray(value) for name, value in converted.items()}, folder / "init.safetensors")
    return json.loads((folder / "steps.json").read_text())


def ours(path, folder):
    loader = "--train_dataset.data_loader."
    flags = [f"{loader}type=TextDataLoader", f"{loader}dataset_dir={TEXT}", f"{loader}shuffle=False", "--runner_config.epochs=1"]
    weights = ["--load_checkpoint", folder / "init.safetensors", "--output_dir", folder]
    run([ROOT / "target/release/examples/train_gpt", path, *weights, *flags], folder)
    records = map(json.loads, (folder / path.stem / "metrics.jsonl").read_text().splitlines())
    return [[record["loss"], record["global_norm"]] for record in records if "loss" in record][:STEPS]


def main():
    names = sys.argv[1:] or sorted(path.stem for path in (HERE / "models").glob("*.yaml"))
    is_close = True
    for name in names:
        path = HERE / "models" / f"{name}.yaml"
        with tempfile.TemporaryDirectory() as folder:
            theirs = np.array(original(path, Path(folder)))
            mine = np.array(ours(path, Path(folder)))
        loss = abs(mine[:, 0] - theirs[:, 0]).max()
        norm = abs(mine[:, 1] / theirs[:, 1] - 1).max()
        is_close &= loss <= ALLOWED and norm <= ALLOWED
        print(f"{name:12} loss {loss:.1e}  norm {norm:.1e}", flush=True)
    sys.exit(not is_close)


main()
