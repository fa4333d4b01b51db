"""Google's npz files: ViT, AugReg and hybrids (vision_transformer), BiT (big_transfer), and big_vision's pooling head.

Flax keeps kernels as [in, out] or [rows, columns, in, out], and attention kernels split by heads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from vitrail.errors import WeightsError
from vitrail.weights import rules
from vitrail.weights.rules import SAME, TRANSPOSED, Facts, Form, Rule, State, rule

SUFFIXES = (".npz",)
PREFIXES = ("opt/target/", "params/")  # of training states saved whole

CONV = Form(
    lambda tensors: [t.permute(3, 2, 0, 1) for t in tensors],
    lambda tensors, _: [t.permute(2, 3, 1, 0) for t in tensors],
)
# Old hybrids keep their group norms as [1, 1, 1, C], newer ones as [C].
VECTOR = Form(lambda tensors: [t.reshape(-1) for t in tensors], lambda tensors, _: tensors)
HEADS_OUT = Form(  # [H, E, D] there, [D, H E] here
    lambda tensors: [t.flatten(0, 1).mT for t in tensors],
    lambda tensors, facts: [torch.unflatten(t.mT, 0, (facts["heads"], -1)) for t in tensors],
)


def heads_in(parts: int) -> Form:
    """Kernels [D, H, E] (or biases [H, E]) for each of q, k and v there, one matrix [parts H E, D] here."""

    def read(tensors: list[Tensor]) -> list[Tensor]:
        return [torch.cat([t.flatten(-2).mT if t.ndim == 3 else t.flatten() for t in tensors])]

    def write(tensors: list[Tensor], facts: Facts) -> list[Tensor]:
        return [torch.unflatten(t.movedim(0, -1), -1, (facts["heads"], -1)) for t in tensors[0].chunk(parts)]

    return Form(read, write)


def dense(native: str, foreign: str, kernel: Form = TRANSPOSED) -> list[Rule]:
    """A layer with kernel and bias."""
    return [rule(f"{native}.weight", f"{foreign}/kernel", kernel), rule(f"{native}.bias", f"{foreign}/bias")]


def norm(native: str, foreign: str, names: tuple[str, str] = ("scale", "bias"), form: Form = SAME) -> list[Rule]:
    """A normalisation with scale and bias."""
    return [
        rule(f"{native}.weight", f"{foreign}/{names[0]}", form),
        rule(f"{native}.bias", f"{foreign}/{names[1]}", form),
    ]


def attention(native: str, fused: tuple[tuple[str, tuple[str, ...]], ...], foreign: str) -> list[Rule]:
    """Projections into heads, fused here as the first argument says, and the projection out of them."""
    into = [
        rule(f"{native}.{ours}.{part}", [f"{foreign}/{name}/{theirs}" for name in names], heads_in(len(names)))
        for ours, names in fused
        for part, theirs in (("weight", "kernel"), ("bias", "bias"))
    ]
    out = [
        rule(f"{native}.proj.weight", f"{foreign}/out/kernel", HEADS_OUT),
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
    # the hybrids' ResNet
    rule("patch_embed.backbone.stem.conv.weight", "conv_root/kernel", CONV),
    *norm("patch_embed.backbone.stem.norm", "gn_root", form=VECTOR),
    *[rule(f"{STAGE}.conv{i}.weight", f"{UNIT}/conv{i}/kernel", CONV) for i in (1, 2, 3)],
    *[known for i in (1, 2, 3) for known in norm(f"{STAGE}.norm{i}", f"{UNIT}/gn{i}", form=VECTOR)],
    rule(f"{STAGE}.downsample.conv.weight", f"{UNIT}/conv_proj/kernel", CONV),
    *norm(f"{STAGE}.downsample.norm", f"{UNIT}/gn_proj", form=VECTOR),
]
BIT = [
    rule("stem.conv.weight", "resnet/root_block/standardized_conv2d/kernel", CONV),
    *[
        rule(f"stages.{{a}}.blocks.{{b}}.conv{i}.weight", f"{BIT_UNIT}/{letter}/standardized_conv2d/kernel", CONV)
        for i, letter in enumerate("abc", start=1)
    ],
    *[
        known
        for i, letter in enumerate("abc", start=1)
        for known in norm(f"stages.{{a}}.blocks.{{b}}.norm{i}", f"{BIT_UNIT}/{letter}/group_norm", GAMMA_BETA)
    ],
    rule("stages.{a}.blocks.{b}.downsample.conv.weight", f"{BIT_UNIT}/a/proj/standardized_conv2d/kernel", CONV),
    *norm("norm", "resnet/group_norm", GAMMA_BETA),
    *dense("head.fc", "resnet/head/conv2d", CONV),
]
# R+Ti/16 has the root alone, and timm calls it so; which of the two names it is shows in the other tensors.
ROOT_ONLY = [
    rule("patch_embed.backbone.conv.weight", "conv_root/kernel", CONV),
    *norm("patch_embed.backbone.norm", "gn_root", form=VECTOR),
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


def write(state: Mapping[str, Tensor], facts: Facts) -> State:
    """The tensors under this format's names."""
    odd = {key: str(tensor.dtype) for key, tensor in state.items() if tensor.dtype == torch.bfloat16}
    if odd:
        raise WeightsError(
            "npz files have no bfloat16.",
            got=f"{len(odd)} such tensors.",
            hint="--to timm or another safetensors format.",
        )
    rules.require(facts, "google", position="learned")
    known = BIT if "stem.conv.weight" in state else ROOT_ONLY + VIT
    return rules.write(state, known, facts, "google")
