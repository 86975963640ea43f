"""Conversations as transformers renders them, for tests/without_adapter/samples.rs: python rendered.py writes
rendered.json beside the templates. Run with transformers 4.57 or newer."""
import json
import pathlib

from transformers import PreTrainedTokenizerFast

folder = pathlib.Path(__file__).resolve().parent
tokenizer = PreTrainedTokenizerFast(
    tokenizer_file=str(folder.parent / "tokenizer.json"), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
)
lines = (folder / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
out = {}
for path in sorted(folder.glob("*.jinja")):
    template = path.read_text(encoding="utf-8")
    rendered = []
    for record in map(json.loads, lines):
        given = dict(tools=record.get("tools"), chat_template=template)
        texts = [
            tokenizer.apply_chat_template(record["messages"], tokenize=False, add_generation_prompt=asks, **given)
            for asks in (False, True)
        ]
        if path.stem == "generation":
            learned = tokenizer.apply_chat_template(
                record["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **given
            )
            texts.append([list(learned["input_ids"]), list(learned["assistant_masks"])])
        rendered.append(texts)
    out[path.stem] = rendered
(folder / "rendered.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
