"""Parquet files for tests/without_adapter/samples.rs and records.rs: python write_parquet.py writes them beside it (pyarrow 18.1)."""
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

folder = pathlib.Path(__file__).resolve().parent
rows = [
    {"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8], "source": "a"},
    {"input_ids": [9, 10], "labels": [-100, 10], "source": None},
]
schema = pa.schema([("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int64())), ("source", pa.string())])
for codec in ("none", "snappy", "zstd"):
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{codec}.parquet", compression=codec)

# Each row gets the keys of all rows, as null where it has them not.
records = [json.loads(line) for line in (folder / "tools.jsonl").read_text(encoding="utf-8").splitlines()]
pq.write_table(pa.Table.from_pylist(records), folder / "tools.parquet", compression="snappy")
