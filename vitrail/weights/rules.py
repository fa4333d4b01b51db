"""Rules that rename tensors in both directions, so that a format reads exactly what it writes.

A rule pairs patterns of native keys with patterns of foreign keys. `{a}` and `{b}` stand for numbers, `{a+1}` for
numbers that the other side counts from one, `{a+1:02}` for such numbers with two digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.errors import WeightsError

State = dict[str, Tensor]
Fields = Mapping[str, Any]
"""Fields of a model's specification as plain data; some formats need more than the tensors show."""

MAX_NORM_EPS = 1e-5  # up to here the outputs hardly change; formats without a config assume 1e-6


class TensorTransform(NamedTuple):
    """How tensors change when they are read (`read`) and when they are written (`write`)."""

    read: Callable[[list[Tensor]], list[Tensor]]
    write: Callable[[list[Tensor], Fields], list[Tensor]]


class Rule(NamedTuple):
    """Which native tensors correspond to which foreign ones, and how they are transformed."""

    native: tuple[str, ...]
    foreign: tuple[str, ...]
    transform: TensorTransform


def concat(num_parts: int) -> TensorTransform:
    """Several foreign tensors, concatenated into one native tensor."""
    return TensorTransform(lambda tensors: [torch.cat(tensors)], lambda tensors, _: list(tensors[0].chunk(num_parts)))


IDENTITY = TensorTransform(lambda tensors: tensors, lambda tensors, _: tensors)
TRANSPOSE = TensorTransform(lambda tensors: [t.mT for t in tensors], lambda tensors, _: [t.mT for t in tensors])


def rule(native: str | Sequence[str], foreign: str | Sequence[str], transform: TensorTransform = IDENTITY) -> Rule:
    """A rule from single patterns or lists of them."""
    ours, theirs = ((each,) if isinstance(each, str) else tuple(each) for each in (native, foreign))
    return Rule(ours, theirs, transform)


def layer(native: str, foreign: str | Sequence[str], transform: TensorTransform = IDENTITY) -> list[Rule]:
    """The rules for the weight and bias of a layer."""
    names = [foreign] if isinstance(foreign, str) else list(foreign)
    return [rule(f"{native}.{part}", [f"{name}.{part}" for name in names], transform) for part in ("weight", "bias")]


def require(fields: Fields, format_name: str, **required: Any) -> None:
    """Refuse a model that the format's own project would load but compute differently."""
    if fields.get("norm_eps", 0.0) > MAX_NORM_EPS:
        raise WeightsError(
            f"the {format_name} format has no place for norm_eps.", got=f"{fields['norm_eps']}.", hint="norm_eps=1e-6."
        )
    require_known_parts(fields, format_name)
    for field, value in required.items():
        if fields.get(field, value) != value:
            raise WeightsError(
                f"the {format_name} format has no place for {field}={fields[field]}.",
                hint=f"{field}={value}, or another format.",
            )


def require_known_parts(fields: Fields, format_name: str) -> None:
    """Refuse what no other project has: inputs other than images, attention other than full, ResNets with `mix`."""
    if "mix" in fields:
        raise WeightsError(
            f"the {format_name} format has none of these ResNets.",
            got=f"a ResNet with mix={fields['mix']['name']}.",
            hint="the run itself, which vitrail opens wherever it takes a model.",
        )
    num_dims, attention = len(fields.get("image_size", (0, 0))), fields.get("attention", "full")
    if num_dims != 2:
        raise WeightsError(
            f"the {format_name} format has only models of images.", got=f"a model of inputs of {num_dims} dimensions."
        )
    name = attention if isinstance(attention, str) else attention["name"]
    if name != "full":
        raise WeightsError(
            f"the {format_name} format has only full attention.", got=f"attention={name}.", hint="attention=full."
        )


def read(tensors: Mapping[str, Tensor], rules: Iterable[Rule], format_name: str) -> State:
    """Foreign tensors under native names. A tensor without a rule is an error; none is dropped."""
    table = [(each.foreign, each.native, each.transform.read) for each in rules]
    return _translate(tensors, table, f"this is not a {format_name} file that Vitrail can read")


def write(state: Mapping[str, Tensor], rules: Iterable[Rule], fields: Fields, format_name: str) -> State:
    """Native tensors under foreign names. A tensor that the format has no place for is an error; none is dropped."""
    table = [
        (each.native, each.foreign, lambda tensors, transform=each.transform: transform.write(tensors, fields))
        for each in rules
    ]
    return _translate(state, table, f"the {format_name} format has no place for some tensors of this model")


def _translate(
    source: Mapping[str, Tensor],
    table: Sequence[tuple[tuple[str, ...], tuple[str, ...], Callable[[list[Tensor]], list[Tensor]]]],
    message: str,
) -> State:
    result: State = {}
    remaining = set(source)
    for key in source:
        if key not in remaining:
            continue
        for ours, theirs, transform in table:
            match = _regex(ours[0]).fullmatch(key)
            numbers = match and {name: int(text) - _offset(ours[0], name) for name, text in match.groupdict().items()}
            if numbers is None:
                continue
            names = [_fill(pattern, numbers) for pattern in ours]
            if not remaining.issuperset(names):
                continue
            remaining.difference_update(names)
            transformed = transform([source[name] for name in names])
            for pattern, tensor in zip(theirs, transformed, strict=True):
                result[_fill(pattern, numbers)] = tensor.contiguous()
            break
    if remaining:
        shown = ", ".join(sorted(remaining)[:3])
        raise WeightsError(f"{message}.", got=f"{len(remaining)} tensors without a counterpart: {shown}.")
    return result


PLACEHOLDER = re.compile(r"\{(\w)(\+1)?(:02)?\}")


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts, last = [], 0
    for placeholder in PLACEHOLDER.finditer(pattern):
        parts += [re.escape(pattern[last : placeholder.start()]), rf"(?P<{placeholder[1]}>\d+)"]
        last = placeholder.end()
    return re.compile("".join(parts) + re.escape(pattern[last:]))


@cache
def _offset(pattern: str, name: str) -> int:
    return 1 if f"{{{name}+1" in pattern else 0


def _fill(pattern: str, numbers: Mapping[str, int]) -> str:
    def format_number(placeholder: re.Match[str]) -> str:
        return format(numbers[placeholder[1]] + (1 if placeholder[2] else 0), "02" if placeholder[3] else "d")

    return PLACEHOLDER.sub(format_number, pattern)
