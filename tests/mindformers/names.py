"""MindFormers' weights under the names and in the layouts of transformers.

A converter takes the weights as a dictionary of arrays, and the configuration of the model.
"""

import re

import numpy as np

LLAMA = {
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
    "attention_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "tok_embeddings.embedding_weight": "embed_tokens.weight",
    "norm_out": "norm",
}


def llama(weights, _):
    def renamed(name):
        for old, new in LLAMA.items():
            name = name.replace(old, new)
        return name

    return {renamed(name): value for name, value in weights.items()}


# Blocks of GPT-2, Bloom and PanguAlpha, but for q, k and v. Its products are x @ weight, like GPT-2's.
BLOCK = {
    "layernorm1.gamma": "input_layernorm.weight",
    "layernorm1.beta": "input_layernorm.bias",
    "layernorm2.gamma": "post_attention_layernorm.weight",
    "layernorm2.beta": "post_attention_layernorm.bias",
    "attention.projection.weight": "self_attention.dense.weight",
    "attention.projection.bias": "self_attention.dense.bias",
    "output.mapping.weight": "mlp.dense_h_to_4h.weight",
    "output.mapping.bias": "mlp.dense_h_to_4h.bias",
    "output.projection.weight": "mlp.dense_4h_to_h.weight",
    "output.projection.bias": "mlp.dense_4h_to_h.bias",
}
GPT2 = {
    "input_layernorm": "ln_1",
    "post_attention_layernorm": "ln_2",
    "self_attention.dense": "attn.c_proj",
    "mlp.dense_h_to_4h": "mlp.c_fc",
    "mlp.dense_4h_to_h": "mlp.c_proj",
}


def blocks(weights, prefix):
    """(number, {name within the block: array}) of each block below `prefix`."""
    found = {}
    for name, value in weights.items():
        if match := re.fullmatch(re.escape(prefix) + r"blocks\.(\d+)\.(.*)", name):
            found.setdefault(int(match[1]), {})[match[2]] = value
    return sorted(found.items())


def heads_of(block, kind):
    """q, k and v of a block."""
    return [block[f"attention.dense{number}.{kind}"] for number in (1, 2, 3)]


def experts(block, prefix, up, down):
    """The router of a block, and the products and biases of its experts, which are stacked there."""
    out = {f"{prefix}.gate.weight": block["output.router.dense.weight"]}
    for theirs, name in (("mapping", up), ("projection", down)):
        stacks = [block[f"output.ffn.{theirs}.{kind}"] for kind in ("weight", "bias")]
        for number in range(len(stacks[0])):
            out[f"{prefix}.experts.{number}.{name}.weight"] = stacks[0][number]
            out[f"{prefix}.experts.{number}.{name}.bias"] = stacks[1].reshape(len(stacks[0]), -1)[number]
    return out


def gpt2(weights, _):
    out = {
        "wte.weight": weights["backbone.embedding.word_embedding.embedding_table"],
        "wpe.weight": weights["backbone.embedding.position_embedding.embedding_table"],
        "ln_f.weight": weights["backbone.layernorm.gamma"],
        "ln_f.bias": weights["backbone.layernorm.beta"],
    }
    for number, block in blocks(weights, "backbone."):
        for old, new in BLOCK.items():
            layer, kind = new.rsplit(".", 1)
            if old in block:
                out[f"h.{number}.{GPT2[layer]}.{kind}"] = block[old]
        if "output.router.dense.weight" in block:
            out.update(experts(block, f"h.{number}.mlp", "c_fc", "c_proj"))
        out[f"h.{number}.attn.c_attn.weight"] = np.concatenate([part.T for part in heads_of(block, "weight")], 1)
        out[f"h.{number}.attn.c_attn.bias"] = np.concatenate(heads_of(block, "bias"))
    return out


def bloom(weights, config):
    out = {
        "word_embeddings.weight": weights["embedding.word_embedding.embedding_table"],
        "word_embeddings_layernorm.weight": weights["embedding.norm.gamma"],
        "word_embeddings_layernorm.bias": weights["embedding.norm.beta"],
        "ln_f.weight": weights["ln_f.gamma"],
        "ln_f.bias": weights["ln_f.beta"],
    }

    def interleaved(parts):
        """q, k and v of head 0, then of head 1, and so on."""
        by_head = [part.reshape(config["num_heads"], -1, *part.shape[1:]) for part in parts]
        joined = np.concatenate(by_head, 1)
        return joined.reshape(-1, *joined.shape[2:])

    for number, block in blocks(weights, ""):
        for old, new in BLOCK.items():
            out[f"h.{number}.{new}"] = block[old].T
        for kind in ("weight", "bias"):
            out[f"h.{number}.self_attention.query_key_value.{kind}"] = interleaved(heads_of(block, kind))
    return out


PANGU = {**GPT2, "self_attention.dense": "attn.out_proj"}


def pangualpha(weights, config):
    out = {
        "transformer.wte.weight": weights["backbone.embedding.word_embedding.embedding_table"],
        "transformer.wpe.weight": weights["backbone.embedding.position_embedding.embedding_table"],
        "transformer.wqe.weight": weights["backbone.top_query_embedding.embedding_table"],
        "transformer.ln_f.weight": weights["backbone.layernorm.gamma"],
        "transformer.ln_f.bias": weights["backbone.layernorm.beta"],
    }
    top = "backbone.top_query_layer."
    last = {name.removeprefix(top): value for name, value in weights.items() if name.startswith(top)}
    for number, block in [*blocks(weights, "backbone."), (config["num_layers"] - 1, last)]:
        for old, new in BLOCK.items():
            layer, kind = new.rsplit(".", 1)
            out[f"transformer.h.{number}.{PANGU[layer]}.{kind}"] = block[old].T
        for kind in ("weight", "bias"):
            for part, rows in zip("qkv", heads_of(block, kind)):
                out[f"transformer.h.{number}.attn.{part}_proj.{kind}"] = rows
    return out


def chatglm2(weights, config):
    layer = {"self_attention.dense": "self_attn.o_proj", "mlp.dense_h_to_4h": "mlp.gate_up_proj", "mlp.dense_4h_to_h": "mlp.down_proj"}
    whole = {
        "transformer.embedding.embedding_weight": "model.embed_tokens.weight",
        "transformer.encoder.final_layernorm.weight": "model.norm.weight",
        "transformer.output_layer.weight": "lm_head.weight",
    }
    width = config["kv_channels"]
    queries, keys = config["num_attention_heads"] * width, config["multi_query_group_num"] * width
    out = {}
    for name, value in weights.items():
        match = re.fullmatch(r"transformer\.encoder\.layers\.(\d+)\.(.*)\.(weight|bias)", name)
        if not match:
            out[whole[name]] = value
        elif match[2] == "self_attention.query_key_value":
            for part, rows in zip("qkv", np.split(value, [queries, queries + keys])):
                out[f"model.layers.{match[1]}.self_attn.{part}_proj.{match[3]}"] = rows
        else:
            out[f"model.layers.{match[1]}.{layer.get(match[2], match[2])}.{match[3]}"] = value
    return out


CONVERTERS = {
    "LlamaForCausalLM": llama,
    "GPT2LMHeadModel": gpt2,
    "BloomLMHeadModel": bloom,
    "PanguAlphaHeadModel": pangualpha,
    "ChatGLM2ForConditionalGeneration": chatglm2,
}
