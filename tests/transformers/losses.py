"""Losses of conversations under the templates of others, by transformers and by gristmill.

    SOURCE_DATE_EPOCH=1751500800 python losses.py FOLDER [NAME...]

FOLDER has the templates that `templates.py` has copied, of which those that are named count, or all. Each of them writes each
conversation of tests/data/samples/chat/table whose learned spans `templates.json` knows; transformers computes the mean loss of the tokens
in these spans under a small random model with the tokenizer of tests/data/folders/qwen2, and so does `gristmill eval --chat-template`. It ends with how many
pairs of a template and a conversation were compared, and the largest difference; one of 1e-3 or more is an error. Needs torch and
transformers, and target/release/gristmill; runs from the root of the repository.
"""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers

import templates

SMALL = pathlib.Path("tests/data/folders/qwen2")
MODEL = pathlib.Path(tempfile.mkdtemp())
torch.manual_seed(0)
config = transformers.AutoConfig.from_pretrained(SMALL, max_position_embeddings=4096, dtype="float32", initializer_range=0.3)
model = transformers.AutoModelForCausalLM.from_config(config)
model.save_pretrained(MODEL)
for name in ["tokenizer.json", "tokenizer_config.json"]:
    shutil.copy(SMALL / name, MODEL)
tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
templates.NAMES.clear()
templates.NAMES.update(tokenizer.special_tokens_map)  # as gristmill knows them


def expected(text, spans):
    encoding = tokenizer(text, add_special_tokens=False)
    ids, learned = encoding["input_ids"], set()
    for start, end in spans:
        first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
        learned.update(range(first, last + 1))
    targets = [id if at in learned else -100 for at, id in enumerate(ids)]
    if len(ids) > model.config.max_position_embeddings or all(target < 0 for target in targets[1:]):
        return None
    with torch.no_grad():
        return model(torch.tensor([ids]), labels=torch.tensor([targets])).loss.item()


def found(template, record):
    with tempfile.TemporaryDirectory() as folder:
        data = pathlib.Path(folder, "conversation.jsonl")
        data.write_text(json.dumps(record) + "\n", encoding="utf-8")
        command = ["target/release/gristmill", "eval", MODEL, data, "--chat-template", template, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        return json.loads(done.stdout)["loss"] if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


folder, compared, largest, faults = pathlib.Path(sys.argv[1]), 0, 0.0, []
names = sys.argv[2:] or sorted(path.stem for path in folder.glob("*.jinja"))
for name in names:
    path = folder / f"{name}.jinja"
    template = path.read_text(encoding="utf-8")
    for record in templates.records:
        wanted = [message.get("weight", 1) for message in record["messages"]]
        messages = [templates.decoded(message) for message in record["messages"]]
        try:
            text = templates.rendered(template, messages, record.get("tools"))[0]
            spans = templates.spans(template, messages, record.get("tools"), wanted)
        except Exception:  # the template refuses the conversation
            continue
        want = expected(text, spans) if spans else None
        if want is None:
            continue
        got = found(path, record)
        compared += 1
        if isinstance(got, str) or abs(got - want) >= 1e-3:
            faults.append(f"{name}, {record['form']}: {got}, transformers {want}")
        else:
            largest = max(largest, abs(got - want))
print(f"{compared} pairs, the largest difference {largest:.1e}")
sys.exit("\n".join(faults) or 0)
