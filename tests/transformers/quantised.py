"""Writes tests/data/nf4.tsv: rows of weights, and what bitsandbytes makes of them on a CPU.

    pip install torch bitsandbytes
    python tests/transformers/quantised.py > tests/data/nf4.tsv

A line is a row of 128: its values and, of both blocks of 64, scales, codes and dequantised values, all in hexadecimal;
floats by their bits.
"""

import bitsandbytes
import torch
from bitsandbytes import functional


def rows():
    torch.manual_seed(0)
    ordinary = torch.randn(2, 128) * 0.02
    edges = torch.randn(128) * 1e-3
    edges[:64] = 0.0
    midpoints = torch.linspace(-1, 1, 128)
    levels = functional.get_4bit_type("nf4", device="cpu")
    midpoints[:15] = (levels[1:] + levels[:-1]) / 2
    midpoints[15] = 1.0
    return torch.stack([*ordinary, edges, midpoints])


def bits(floats):
    return " ".join(f"{word & 0xFFFFFFFF:x}" for word in floats.contiguous().view(torch.int32).flatten().tolist())


print(f"# bitsandbytes {bitsandbytes.__version__}: values, scales, codes, dequantised values")
for row in rows():
    packed, state = functional.quantize_4bit(row, blocksize=64, quant_type="nf4")
    pairs = packed.flatten().tolist()
    codes = " ".join(f"{code:x}" for pair in pairs for code in (pair >> 4, pair & 15))
    dequantised = functional.dequantize_4bit(packed, state)
    print("\t".join([bits(row), bits(state.absmax), codes, bits(dequantised)]))
