"""Samples as MindSpore Transformers 1.7.0 forms them, for tests/without_adapter/samples.rs.

Run by hand, with mindformers and tokenizers installed, in a folder of one's own:
    python original.py path/to/tests/data/samples
It writes tokenizer.json and original.json there.
"""
import json
import sys
import types

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

folder = sys.argv[1]

# Bytes as tokens, and Llama's special tokens.
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
words = {"<unk>": 0, "<s>": 1, "</s>": 2}
words.update({letter: number + 3 for number, letter in enumerate(alphabet)})
raw = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
raw.decoder = decoders.ByteLevel()
raw.add_special_tokens([AddedToken(token, special=True) for token in ("<unk>", "<s>", "</s>")])
raw.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)])
raw.save(f"{folder}/tokenizer.json", pretty=False)

# The packing handler needs a table only to return one.
datasets = types.ModuleType("datasets")
datasets.Dataset = types.SimpleNamespace(from_dict=lambda columns: columns)
sys.modules.setdefault("datasets", datasets)
from mindformers.dataset.handler.alpaca_handler import AlpacaInstructDataHandler
from mindformers.dataset.handler.packing_handler import PackingConfig, pack_examples, truncate_examples
from mindformers.dataset.keyword_gen_dataset import KeyWordGenDataset
from mindformers.models.glm2.glm2_tokenizer import ChatGLM2Tokenizer
from mindformers.models.tokenization_utils_fast import PreTrainedTokenizerFast


class Fast(PreTrainedTokenizerFast):
    build_prompt = ChatGLM2Tokenizer.build_prompt


tokenizer = Fast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<unk>")
out = {}

config = types.SimpleNamespace(max_source_length=32, max_target_length=30, ignore_pad_token_for_loss=True)
records = [json.loads(line) for line in open(f"{folder}/adgen.jsonl", encoding="utf-8") if line.strip()]
for version, form in ((2, KeyWordGenDataset._train_dataset_functionv2), (3, KeyWordGenDataset._train_dataset_functionv3)):
    rows = []
    for record in records:
        if version == 2:
            config.max_source_length = 64
        ids, labels = form(np.array(record["content"]), np.array(record["summary"]), config, tokenizer)
        rows.append([[int(i) for i in ids], [int(i) for i in labels]])
    out[f"adgen_{version}"] = rows
    config.max_source_length = 32

alpaca = AlpacaInstructDataHandler.__new__(AlpacaInstructDataHandler)
alpaca.tokenizer, alpaca.ignore_token_id, alpaca.pad_token_id = tokenizer, -100, 0
alpaca.use_legacy, alpaca.seq_length, alpaca.padding = False, 1 << 20, False
formed = [alpaca.process(record) for record in json.load(open(f"{folder}/alpaca.json", encoding="utf-8"))]
formed = [{key: [int(i) for i in row[key]] for key in ("input_ids", "labels")} for row in formed]
out["alpaca"] = [[row["input_ids"], row["labels"]] for row in formed]

# Rows of ready token ids, whose labels are the ids, as the packing handler expects them.
lengths = [3, 4, 2, 9, 6, 8]
ready = [{"input_ids": list(range(10, 10 + n)), "labels": [-100] + list(range(11, 10 + n))} for n in lengths]
packing = PackingConfig(seq_length=8, pad_token=0, output_columns=["input_ids", "labels", "actual_seq_len"])
packed = pack_examples([dict(row) for row in ready], packing)
out["pack"] = {key: packed[key] for key in packing.output_columns}
cut = truncate_examples({key: [row[key] for row in ready] for key in ("input_ids", "labels")}, packing)
out["truncate"] = {key: cut[key] for key in packing.output_columns}

with open(f"{folder}/original.json", "w", encoding="utf-8") as file:
    json.dump(out, file, separators=(",", ":"))
    file.write("\n")
