"""Writes the data sets of this folder with MindSpore, and rows.json with what MindSpore reads from them.

Made with mindspore 2.7.1 (pip install mindspore==2.7.1 "numpy<2"), in this folder: python make.py

Header and pages have the smallest sizes that MindSpore accepts; most of the files is zeros."""
import json
import os

import numpy as np
from mindspore.dataset import MindDataset
from mindspore.mindrecord import FileWriter

WINDOW = 16


def write(name, shards, schema, rows, index=None):
    writer = FileWriter(name, shards, overwrite=True)
    writer.set_header_size(1 << 14)
    writer.set_page_size(1 << 15)
    writer.add_schema(schema, "tokens")
    if index:
        writer.add_index(index)
    writer.write_raw_data(rows)
    writer.commit()


def windows(text):
    """Windows of 17 bytes, each of which starts with the last one of the window before."""
    count = (len(text) - 1) // WINDOW
    return [np.frombuffer(text, np.uint8)[i * WINDOW:i * WINDOW + WINDOW + 1] for i in range(count)]


def labelled(number, length):
    """A prompt and an answer, padded: ids of every width, 0 as padding, and -100 as what the loss skips."""
    ids = np.zeros(WINDOW + 1, np.int32)
    ids[:length] = [1, 127, 128, 32767, 32768, 70000, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12][:length]
    ids[0] = number + 1
    labels = np.where((np.arange(WINDOW + 1) >= 4) & (ids != 0), ids, -100)
    return {"input_ids": ids, "labels": labels.astype(np.int64), "attention_mask": (ids != 0).astype(np.int32),
            "loss_mask": (np.arange(WINDOW + 1) % 3 != 0).astype(np.int32), "name": f"row {number}", "number": number,
            "weight": np.full(2, 0.5, np.float32), "filling": bytes(10000)}


text = open("../mill.txt", "rb").read()[:WINDOW * 13 + 1]
rows = [{"input_ids": window.astype(np.int32)} for window in windows(text)]
write("shards.mindrecord", 2, {"input_ids": {"type": "int32", "shape": [-1]}}, rows)

array = lambda kind: {"type": kind, "shape": [-1]}
schema = {"input_ids": array("int32"), "labels": array("int64"), "attention_mask": array("int32"), "loss_mask": array("int32"),
          "name": {"type": "string"}, "number": {"type": "int32"}, "weight": array("float32"), "filling": {"type": "bytes"}}
# 10,000 bytes a row, so that the fourth row starts a second page.
write("columns.mindrecord", 1, schema, [labelled(i, 17 - 3 * i) for i in range(5)], ["name", "number"])

wanted = {}
for file, columns in [("shards.mindrecord0", ["input_ids"]),
                      ("columns.mindrecord", ["input_ids", "labels", "attention_mask", "loss_mask"])]:
    data = MindDataset(file, columns_list=columns, shuffle=False)
    wanted[file] = [{c: row[c].tolist() for c in columns} for row in data.create_dict_iterator(1, output_numpy=True)]
with open("rows.json", "w") as out:
    out.write("{\n" + ",\n".join(f'"{file}": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]" for file, rows in wanted.items()) + "\n}\n")
for file in os.listdir("."):
    # MindSpore reads by the index beside a data file; Gristmill does not read it.
    os.remove(file) if file.endswith(".db") else os.chmod(file, 0o644)
