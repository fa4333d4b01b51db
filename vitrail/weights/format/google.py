"""Google's npz files: ViT, AugReg and hybrids (vision_transformer), BiT (big_transfer), and big_vision's pooling head.

Flax stores kernels as [in, out] or [rows, columns, in, out], and attention kernels split by heads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.weights import rules
from vitrail.weights.rules import IDENTITY, TRANSPOSE, Fields, Rule, State, TensorTransform, rule

SUFFIXES = (".npz",)
PREFIXES = ("opt/target/", "params/")  # of full training states

CONV = TensorTransform(
    lambda tensors: [t.permute(3, 2, 0, 1) for t in tensors],
    lambda tensors, _: [t.permute(2, 3, 1, 0) for t in tensors],
)
# Old hybrids store group norms as [1, 1, 1, C], newer ones as [C].
VECTOR = TensorTransform(lambda tensors: [t.reshape(-1) for t in tensors], lambda tensors, _: tensors)
OUT_PROJECTION = TensorTransform(  # theirs [H, E, D], ours [D, H E]
    lambda tensors: [t.flatten(0, 1).mT for t in tensors],
    lambda tensors, fields: [torch.unflatten(t.mT, 0, (fields["heads"], -1)) for t in tensors],
)


def fuse_heads(num_parts: int) -> TensorTransform:
    """Their kernels [D, H, E] (or biases [H, E]) of q, k and v, fused into our matrix [num_parts H E, D]."""

    def read(tensors: list[Tensor]) -> list[Tensor]:
        return [torch.cat([t.flatten(-2).mT if t.ndim == 3 else t.flatten() for t in tensors])]

    def write(tensors: list[Tensor], fields: Fields) -> list[Tensor]:
        return [torch.unflatten(t.movedim(0, -1), -1, (fields["heads"], -1)) for t in tensors[0].chunk(num_parts)]

    return TensorTransform(read, write)


def dense(native: str, foreign: str, kernel: TensorTransform = TRANSPOSE) -> list[Rule]:
    """The rules for a layer with kernel and bias."""
    return [rule(f"{native}.weight", f"{foreign}/kernel", kernel), rule(f"{native}.bias", f"{foreign}/bias")]


def norm(
    native: str, foreign: str, names: tuple[str, str] = ("scale", "bias"), transform: TensorTransform = IDENTITY
) -> list[Rule]:
    """The rules for a normalisation with scale and bias."""
    return [
        rule(f"{native}.weight", f"{foreign}/{names[0]}", transform),
        rule(f"{native}.bias", f"{foreign}/{names[1]}", transform),
    ]


def attention(native: str, fused: tuple[tuple[str, tuple[str, ...]], ...], foreign: str) -> list[Rule]:
    """The rules for the input projections, fused natively as `fused` says, and for the output projection."""
    into = [
        rule(f"{native}.{ours}.{part}", [f"{foreign}/{name}/{theirs}" for name in names], fuse_heads(len(names)))
        for ours, names in fused
        for part, theirs in (("weight", "kernel"), ("bias", "bias"))
    ]
    out = [
        rule(f"{native}.proj.weight", f"{foreign}/out/kernel", OUT_PROJECTION),
        rule(f"{native}.proj.bias", f"{foreign}/out/bias"),
    ]
    return into + out


BLOCK, UNIT, BIT_UNIT = "Transformer/encoderblock_{a}", "block{a+1}/unit{b+1}", "resnet/block{a+1}/unit{b+1:02}"
STAGE = "patch_embed.backbone.stages.{a}.blocks.{b}"
GAMMA_BETA = ("gamma", "beta")
VIT = [
    rule("cls_token", "cls"),
    rule("pos_embed", "Transformer/posembed_input/pos_embedding"),
    *dense("patch_embed.proj", "embedding", CONV),
    *norm("blocks.{a}.norm1", f"{BLOCK}/LayerNorm_0"),
    *attention("blocks.{a}.attn", (("qkv", ("query", "key", "value")),), f"{BLOCK}/MultiHeadDotProductAttention_1"),
    *norm("blocks.{a}.norm2", f"{BLOCK}/LayerNorm_2"),
    *dense("blocks.{a}.mlp.fc1", f"{BLOCK}/MlpBlock_3/Dense_0"),
    *dense("blocks.{a}.mlp.fc2", f"{BLOCK}/MlpBlock_3/Dense_1"),
    *norm("norm", "Transformer/encoder_norm"),
    *dense("pre_logits.fc", "pre_logits"),
    *dense("head", "head"),
    # attention pooling
    rule("attn_pool.latent", "MAPHead_0/probe"),
    *attention("attn_pool", (("q", ("query",)), ("kv", ("key", "value"))), "MAPHead_0/MultiHeadDotProductAttention_0"),
    *norm("attn_pool.norm", "MAPHead_0/LayerNorm_0"),
    *dense("attn_pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
    *dense("attn_pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    # the ResNet of hybrids
    rule("patch_embed.backbone.stem.conv.weight", "conv_root/kernel", CONV),
    *norm("patch_embed.backbone.stem.norm", "gn_root", transform=VECTOR),
    *[rule(f"{STAGE}.conv{i}.weight", f"{UNIT}/conv{i}/kernel", CONV) for i in (1, 2, 3)],
    *[each for i in (1, 2, 3) for each in norm(f"{STAGE}.norm{i}", f"{UNIT}/gn{i}", transform=VECTOR)],
    rule(f"{STAGE}.downsample.conv.weight", f"{UNIT}/conv_proj/kernel", CONV),
    *norm(f"{STAGE}.downsample.norm", f"{UNIT}/gn_proj", transform=VECTOR),
]
BIT = [
    rule("stem.conv.weight", "resnet/root_block/standardized_conv2d/kernel", CONV),
    *[
        rule(f"stages.{{a}}.blocks.{{b}}.conv{i}.weight", f"{BIT_UNIT}/{letter}/standardized_conv2d/kernel", CONV)
        for i, letter in enumerate("abc", start=1)
    ],
    *[
        each
        for i, letter in enumerate("abc", start=1)
        for each in norm(f"stages.{{a}}.blocks.{{b}}.norm{i}", f"{BIT_UNIT}/{letter}/group_norm", GAMMA_BETA)
    ],
    rule("stages.{a}.blocks.{b}.downsample.conv.weight", f"{BIT_UNIT}/a/proj/standardized_conv2d/kernel", CONV),
    *norm("norm", "resnet/group_norm", GAMMA_BETA),
    *dense("head.fc", "resnet/head/conv2d", CONV),
]
# R+Ti/16 has only the root, which timm names differently; the other tensors show which of the two it is.
ROOT_ONLY = [
    rule("patch_embed.backbone.conv.weight", "conv_root/kernel", CONV),
    *norm("patch_embed.backbone.norm", "gn_root", transform=VECTOR),
]


def recognise(keys: Collection[str]) -> bool:
    """Whether tensors with these names are in this format."""
    return any(key.endswith(("embedding/kernel", "root_block/standardized_conv2d/kernel")) for key in keys)


def read(tensors: Mapping[str, Tensor]) -> State:
    """The tensors under native names."""
    for prefix in PREFIXES:
        if all(key.startswith(prefix) for key in tensors):
            tensors = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    root_only = "conv_root/kernel" in tensors and "block1/unit1/conv1/kernel" not in tensors
    return rules.read(tensors, (ROOT_ONLY if root_only else []) + VIT + BIT, "google")


def write(state: Mapping[str, Tensor], fields: Fields) -> State:
    """The tensors under this format's names."""
    num_bfloat16 = sum(tensor.dtype == torch.bfloat16 for tensor in state.values())
    if num_bfloat16:
        raise WeightsError(
            "npz files cannot store bfloat16.",
            got=f"{num_bfloat16} such tensors.",
            hint="--to timm or another safetensors format.",
        )
    rules.require(fields, "google", position="learned")
    family_rules = BIT if "stem.conv.weight" in state else ROOT_ONLY + VIT
    return rules.write(state, family_rules, fields, "google")
