"""A causal language model as transformers has it: GPT-2 with learned positions, GPT-NeoX with rotary ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einops import rearrange
from torch import Tensor

from vitrail.weights.rules import State

GPT2 = {
    "norm1": "ln_1",
    "attn.qkv": "attn.c_attn",
    "attn.proj": "attn.c_proj",
    "norm2": "ln_2",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
NEOX = {
    "norm1": "input_layernorm",
    "attn.qkv": "attention.query_key_value",
    "attn.proj": "attention.dense",
    "norm2": "post_attention_layernorm",
    "mlp.fc1": "mlp.dense_h_to_4h",
    "mlp.fc2": "mlp.dense_4h_to_h",
}


def write_causal_lm(state: Mapping[str, Tensor], spec: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
    """The tensors under transformers' names, and its config.json."""
    return (_gpt2 if spec["position"] == "learned" else _neox)(state, spec)


def _gpt2(state: Mapping[str, Tensor], spec: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
    tensors = {
        "transformer.wte.weight": state["embed.weight"],
        "transformer.wpe.weight": state["embed.positions.weight"],
        "transformer.ln_f.weight": state["norm.weight"],
        "transformer.ln_f.bias": state["norm.bias"],
    }
    for block, layer, kind, tensor in _blocks(state, GPT2):
        transposed = tensor.T if tensor.ndim == 2 else tensor  # GPT-2 stores its matrices the other way round
        tensors[f"transformer.h.{block}.{layer}.{kind}"] = transposed.contiguous()
    return tensors, {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_positions": spec["context"],
        "n_embd": spec["width"],
        "n_layer": spec["depth"],
        "n_head": spec["heads"],
        "n_inner": spec["hidden"],
        "activation_function": "gelu",
        "layer_norm_epsilon": spec["norm_eps"],
        "resid_pdrop": spec["dropout_rate"],
        "embd_pdrop": spec["dropout_rate"],
        "attn_pdrop": 0.0,
        **_common(spec),
    }


def _neox(state: Mapping[str, Tensor], spec: Mapping[str, Any]) -> tuple[State, dict[str, Any]]:
    tensors = {
        "gpt_neox.embed_in.weight": state["embed.weight"],
        "gpt_neox.final_layer_norm.weight": state["norm.weight"],
        "gpt_neox.final_layer_norm.bias": state["norm.bias"],
    }
    for block, layer, kind, original in _blocks(state, NEOX):
        tensor = original
        if layer == NEOX["attn.qkv"]:  # queries, keys and values of a head stand together
            tensor = rearrange(original, "(three H E) ... -> (H three E) ...", three=3, H=spec["heads"])
        tensors[f"gpt_neox.layers.{block}.{layer}.{kind}"] = tensor.contiguous()
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    return tensors, {
        "model_type": "gpt_neox",
        "architectures": ["GPTNeoXForCausalLM"],
        "max_position_embeddings": spec["context"],
        "hidden_size": spec["width"],
        "num_hidden_layers": spec["depth"],
        "num_attention_heads": spec["heads"],
        "intermediate_size": spec["hidden"],
        "hidden_act": "gelu",
        "rotary_pct": 1.0,
        "rope_parameters": rotary,
        "use_parallel_residual": False,
        "layer_norm_eps": spec["norm_eps"],
        "hidden_dropout": spec["dropout_rate"],
        "attention_dropout": 0.0,
        **_common(spec),
    }


def _common(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {"vocab_size": spec["vocab"], "pad_token_id": spec["pad"], "tie_word_embeddings": True, "dtype": "float32"}


def _blocks(state: Mapping[str, Tensor], names: Mapping[str, str]) -> list[tuple[str, str, str, Tensor]]:
    """The tensors of all blocks: the number of the block, the layer's name there, weight or bias, the tensor."""
    found = []
    for name, tensor in state.items():
        if name.startswith("blocks."):
            _, block, rest = name.split(".", 2)
            layer, _, kind = rest.rpartition(".")
            found.append((block, names[layer], kind, tensor))
    return found
