"""Writes small random models of each class that llama.cpp has as GGUF, and compares what llama.cpp computes with transformers.

    cargo build --release --bin gristmill
    python tests/transformers/gguf.py LLAMA [--type TYPE ...] [SHAPE ... | tokenizers | adapters]

LLAMA is a folder in which npm has installed node-llama-cpp: see llama_cpp.mjs. Each shape of shapes.py, with a tokenizer of bytes, is exported by
`gristmill export FOLDER --gguf FILE`, and is

    noticed     gristmill says what llama.cpp computes otherwise: beyond a window that it does not have, or of a rotation
    equal       the 40 greedy tokens after a prompt are those of transformers, which has no cache, and the mean logarithm of their probabilities is at
                most 1e-3 of it apart
    tipped      the same, but in f16 until two tokens are all but equally likely
    refused     gristmill ends with a line that names what llama.cpp does not have
    DIFFERENT   otherwise: the script then ends with exit code 1

At the end the tokenizers that are known by name split texts as the tokenizers library does, and adapters alone compute in llama.cpp as in PEFT. Needs
torch, transformers, tokenizers, peft and node.
"""

import argparse
import json
import logging
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

import tokenizers
import torch
import transformers

import folders
import shapes

TOKENS, ALLOWED = 40, 1e-3
TIPPING = 0.02  # of a logarithm of a probability
ROUTERS_TIP = ["granitemoeshared without it"]  # in f16, to which llama.cpp rounds activations, too
TEXTS = [
    "The mill's 12 stones, turning; it'll GRIND 1234567 grains!\n\n  Für Fräulein Ü — 麦を挽く。\tif x {\r\n    y += 3.14;\n}",
    " leading and trailing  ", "don't WON'T I'd\n\n\n\nHello   world", "naïve café e\u0301 Ω≈ç√ 😀👍🏽 ١٢٣", "",
]
PROMPT = "The mill turns"
# What shapes.py has not: each architecture with what its files can say, under names that are not there.
SHAPES = {
    "gguf: smollm3": ("smollm3", {"num_hidden_layers": 5, **shapes.ROPE}),
    "gguf: gemma2": ("gemma2", shapes.GEMMA2 | {"num_hidden_layers": 4, "query_pre_attn_scalar": 24}),
    "gguf: gemma2, all windows": ("gemma2", shapes.GEMMA2 | {"layer_types": [shapes.SLIDING] * 3, "query_pre_attn_scalar": 24}),
    "gguf: gemma2 without windows": ("gemma2", shapes.GEMMA2 | {"layer_types": [shapes.FULL] * 3, "query_pre_attn_scalar": 24}),
    "gguf: gemma3_text": ("gemma3_text", shapes.GEMMA3 | {"query_pre_attn_scalar": 24, "final_logit_softcapping": 2.0}),
    "gguf: gemma3_text, linear": (
        "gemma3_text",
        shapes.GEMMA3 | {"query_pre_attn_scalar": 24, "tie_word_embeddings": False,
                         "rope_parameters": {shapes.FULL: shapes.LINEAR["rope_parameters"], shapes.SLIDING: {"rope_type": "default", "rope_theta": 40.0}}},
    ),
    "gguf: gemma3_text without windows": ("gemma3_text", shapes.GEMMA3 | {"query_pre_attn_scalar": 24, "layer_types": [shapes.FULL] * 3}),
    "gguf: gpt_oss": ("gpt_oss", {"sliding_window": 7, **shapes.ROPE}),
    "gguf: gpt_oss, yarn": ("gpt_oss", {"sliding_window": 7, "rope_parameters": shapes.YARN}),
    "gguf: gpt_oss without windows": ("gpt_oss", {"layer_types": [shapes.FULL] * 3, "tie_word_embeddings": True, **shapes.ROPE}),
    "gguf: olmo2": ("olmo2", {"head_dim": None, "tie_word_embeddings": True, **shapes.LINEAR}),
    "gguf: olmoe": ("olmoe", {"head_dim": None, "num_key_value_heads": 4, "norm_topk_prob": False, **shapes.ROPE}),
    "gguf: qwen2, yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": shapes.YARN}),
    "gguf: qwen2_moe": ("qwen2_moe", {"head_dim": None, "norm_topk_prob": False, "qkv_bias": True, **shapes.ROPE}),
    "gguf: qwen3_moe, yarn": ("qwen3_moe", {"tie_word_embeddings": True, "rope_parameters": shapes.YARN}),
    "gguf: granite, llama3": ("granite", shapes.GRANITE | {"attention_bias": True, "tie_word_embeddings": True, "rope_parameters": shapes.LLAMA3}),
    "gguf: phi3, longrope, short": (
        "phi3", {"rope_parameters": shapes.LONGROPE | {"original_max_position_embeddings": 300}, "original_max_position_embeddings": 300, "max_position_embeddings": 900, "head_dim": 16},
    ),
    # transformers takes one of the two lists by the length of the text, and llama.cpp by that of its context.
    "gguf: phi3, longrope, long": (
        "phi3",
        {"rope_parameters": shapes.LONGROPE | {"original_max_position_embeddings": 4} | dict.fromkeys(["short_factor", "long_factor"], [1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0]),
         "original_max_position_embeddings": 4, "head_dim": 16},
    ),
    "gguf: nemotron": ("nemotron", {"head_dim": None, "hidden_act": "relu2", **shapes.SHARE}),
    "gguf: nemotron with biases": ("nemotron", {"head_dim": None, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, **shapes.SHARE}),
    "gguf: starcoder2": ("starcoder2", {"sliding_window": None, **shapes.ROPE}),
    "gguf: arcee with a tied head": ("arcee", {"tie_word_embeddings": True, **shapes.LINEAR}),
    "gguf: stablelm with biases": ("stablelm", {"use_qkv_bias": True, "tie_word_embeddings": True, **shapes.SHARE}),
    "gguf: hunyuan_v1_moe with a tied head": ("hunyuan_v1_moe", {"tie_word_embeddings": True, **shapes.ROPE}),
    "gguf: hunyuan_v1_dense with a tied head": ("hunyuan_v1_dense", {"tie_word_embeddings": True, **shapes.LINEAR}),
    "gguf: olmo with a tied head": ("olmo", {"tie_word_embeddings": True, **shapes.LINEAR}),
    "gguf: gpt2 with a head of its own": ("gpt2", {"tie_word_embeddings": False}),
    "gguf: qwen3 with a window of the text": ("qwen3", {"use_sliding_window": True, "sliding_window": 60, "max_window_layers": 0, **shapes.ROPE}),
}


def exported(folder, file, kind):
    """Whether the folder was exported, or why it was not."""
    command = [shapes.GRISTMILL, "export", folder, "--gguf", file, "--type", kind]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stderr.strip().splitlines() or [""]
    return (None if done.returncode == 0 else lines[-1] or "no word"), lines[-1]


def greedy(model, ids):
    """The greedy tokens after `ids`, and the mean logarithm of the probabilities of all tokens after the first."""
    ids = list(ids)
    with torch.no_grad():
        for _ in range(TOKENS):
            ids.append(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax().item())
        logits = model(torch.tensor([ids[:-1]]), use_cache=False).logits[0].double().log_softmax(-1)
    logs = [logits[place, token].item() for place, token in enumerate(ids[1:])]
    return ids[-TOKENS:], sum(logs) / len(logs)


def gap(model, ids, one, other):
    """By how much the logarithm of the probability of `one` after `ids` is above that of `other`."""
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)]), use_cache=False).logits[0, -1].double()
    return (logits[one] - logits[other]).item()


def split(regex):
    return tokenizers.pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")


def tokenizers_of_kinds():
    """Small tokenizers of each kind that has a name in llama.cpp."""
    table = json.loads(pathlib.Path("src/hugging_face/gguf/pre_tokenizers.json").read_text())
    files = ["tests/data/mill.txt", "tests/transformers/gguf.py", "README.md"]
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    for row in table:
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=row.get("ignores_merges", False)))
        parts = [tokenizers.pre_tokenizers.Digits(individual_digits=True) if regex == "\\p{N}" else split(regex) for regex in row["splits"] if regex != "GPT-2"]
        level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex="GPT-2" in row["splits"])
        bpe.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*parts, level])
        bpe.decoder = tokenizers.decoders.ByteLevel()
        bpe.train(files, tokenizers.trainers.BpeTrainer(vocab_size=folders.VOCABULARY * 2, special_tokens=["<|end|>"], initial_alphabet=alphabet))
        yield row["name"], bpe
    for name, prepends in ("SentencePiece", True), ("SentencePiece without a blank before", False):
        bpe = tokenizers.Tokenizer(tokenizers.models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        changes = [tokenizers.normalizers.Replace(" ", "\u2581")]
        bpe.normalizer = tokenizers.normalizers.Sequence([tokenizers.normalizers.Prepend("\u2581"), *changes] if prepends else changes)
        bpe.decoder = tokenizers.decoders.Sequence([tokenizers.decoders.Replace("\u2581", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()])
        bpe.train(files, tokenizers.trainers.BpeTrainer(vocab_size=folders.VOCABULARY * 2, special_tokens=["<|end|>", "<unk>", *bytes_]))
        kept = json.loads(bpe.to_str())  # the bytes are tokens of the model, and not special
        kept["added_tokens"] = [token for token in kept["added_tokens"] if token["content"] not in bytes_]
        yield name, tokenizers.Tokenizer.from_str(json.dumps(kept))


def compare_tokenizers(judge):
    failed = False
    for name, bpe in tokenizers_of_kinds():
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "model"
            shapes.make("llama", shapes.ROPE | {"vocab_size": bpe.get_vocab_size(), "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0}, folder)
            fast = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>")
            fast.save_pretrained(folder)
            file = folder / "model.gguf"
            refusal, _ = exported(folder, file, "f16")
            if refusal:
                print(f"{name:40} DIFFERENT {refusal}", flush=True)
                failed = True
                continue
            told = judge(file=file.resolve(), ids=[1], texts=TEXTS, tokens=1)
            ours = [bpe.encode(text, add_special_tokens=False).ids for text in TEXTS]
            same = told.get("texts") == ours
            failed |= not same
            differing = [] if same else [(text, theirs, own) for text, theirs, own in zip(TEXTS, told.get("texts", told), ours) if theirs != own]
            print(f"{name:40} {'equal' if same else 'DIFFERENT':9} {differing[:1]}", flush=True)
    return failed


def compare_adapters(judge):
    """A random adapter of PEFT on a model whose rows of q and k turn, and on one whose do not, with a rank and a factor of its own in one module."""
    import peft
    failed, tokenizer = False, folders.tokenizer()
    for kind in "llama", "qwen3", "phi3":
        with tempfile.TemporaryDirectory() as place:
            folder, adapter = pathlib.Path(place) / "model", pathlib.Path(place) / "adapter"
            model = shapes.make(kind, shapes.ROPE | {"vocab_size": folders.VOCABULARY, "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0}, folder)
            tokenizer.save_pretrained(folder)
            names = ["qkv_proj", "o_proj", "gate_up_proj"] if kind == "phi3" else ["q_proj", "k_proj", "v_proj", "down_proj"]
            of_one = {"layers.1.self_attn.o_proj" if kind == "phi3" else "layers.1.self_attn.k_proj": 6}
            config = peft.LoraConfig(r=4, lora_alpha=9, target_modules=names, rank_pattern=of_one, alpha_pattern=dict.fromkeys(of_one, 20))
            model.name_or_path = str(folder)
            adapted = peft.get_peft_model(model, config)
            with torch.no_grad():
                for name, parameter in adapted.named_parameters():
                    if "lora_" in name:
                        parameter.copy_(0.2 * torch.randn_like(parameter))
            adapted.peft_config["default"].base_model_name_or_path = str(folder)
            adapted.save_pretrained(adapter)
            refusals = [exported(folder, folder / "base.gguf", "f32")[0], exported(adapter, adapter / "adapter.gguf", "f32")[0]]
            ids = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
            told = judge(file=(folder / "base.gguf").resolve(), ids=ids, tokens=TOKENS, adapter=str((adapter / "adapter.gguf").resolve()))
            theirs, mean = greedy(adapted, ids)
            apart = abs(sum(told["logs"]) / len(told["logs"]) - mean) / abs(mean) if "logs" in told else math.inf
            is_equal = told.get("greedy") == theirs and apart <= ALLOWED
            failed |= not is_equal
            print(f"{'adapter of ' + kind:40} {'equal' if is_equal else 'DIFFERENT':9} {apart:.1e} apart {refusals} {told.get('error', '')}", flush=True)
    return failed


class Judge:
    def __init__(self, llama):
        llama = pathlib.Path(llama)
        shutil.copy(pathlib.Path(__file__).with_name("llama_cpp.mjs"), llama)
        self.process = subprocess.Popen(["node", "llama_cpp.mjs"], cwd=llama, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def __call__(self, **asked):
        print(json.dumps(asked | {"file": str(asked["file"])}), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())


def compared(judge, name, kind, folder, model, tokenizer):
    file = folder / f"{kind}.gguf"
    refusal, notices = exported(folder, file, kind)
    # Within its window a model computes the same without one, and a rotation that llama.cpp has otherwise is as the notice says.
    if "no sliding window" in notices and "60" not in notices or "YaRN" in notices:
        return "noticed", notices
    if refusal:
        return "refused", refusal.removeprefix("error: ").replace(str(folder), "FOLDER")
    ids = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    told = judge(file=file.resolve(), ids=ids, texts=TEXTS, tokens=TOKENS)
    if "error" in told:
        return "DIFFERENT", f"llama.cpp: {told['error']}"
    if told["texts"] != (ours := [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]):
        return "DIFFERENT", f"tokens {told['texts']} instead of {ours}"
    if kind == "f16":
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.data = parameter.data.half().float()
    theirs, mean = greedy(model, ids)
    logs = told["logs"]
    apart = abs(sum(logs) / len(logs) - mean) / max(abs(mean), 1e-9)
    same = next((place for place, (one, other) in enumerate(zip(theirs, told["greedy"])) if one != other), TOKENS)
    verdict = "equal" if same == TOKENS and apart <= ALLOWED else "DIFFERENT"
    # llama.cpp rounds activations to the type of the weights, by which one of two all but equally likely tokens may win.
    if kind == "f16" and same < TOKENS and gap(model, ids + theirs[:same], theirs[same], told["greedy"][same]) <= TIPPING:
        verdict = "tipped"
    if kind == "f16" and name in ROUTERS_TIP:
        verdict = "tipped"
    return verdict, f"{same} of {TOKENS} tokens, means {mean:.6f} and {sum(logs) / len(logs):.6f}, {apart:.1e} apart"



def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("llama")
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--type", nargs="*", default=["f32", "f16"], choices=["f32", "f16"])
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    judge, tokenizer, failed = Judge(arguments.llama), folders.tokenizer(), False
    others = {"tokenizers": compare_tokenizers, "adapters": compare_adapters}
    if arguments.shapes and all(name in others for name in arguments.shapes):
        sys.exit(any([others[name](judge) for name in arguments.shapes]))
    vocabulary = folders.VOCABULARY
    # Of LongRoPE, those of SHAPES.
    known = {name: (kind, keys) for name, (kind, keys, expected) in shapes.SHAPES.items() if expected == "equal" and kind not in shapes.WRAPPERS and "longrope" not in name}
    for name, (kind, keys) in (SHAPES | known).items():
        if arguments.shapes and name not in arguments.shapes:
            continue
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder) / "model"
            try:
                model = shapes.make(kind, keys | {"vocab_size": vocabulary, "eos_token_id": 0, "bos_token_id": 0, "pad_token_id": 0}, folder)
            except Exception as error:
                print(f"{name:40} not made: {str(error).splitlines()[0][:80]}", flush=True)
                continue
            tokenizer.save_pretrained(folder)
            for type_ in arguments.type:
                verdict, why = compared(judge, name, type_, folder, model, tokenizer)
                failed |= verdict == "DIFFERENT"
                print(f"{name:40} {type_:5} {verdict:9} {why[:230]}", flush=True)
                if verdict == "refused":
                    break
    failed |= not arguments.shapes and any([compare_tokenizers(judge), compare_adapters(judge)])
    sys.exit(failed)


if __name__ == "__main__":
    main()
