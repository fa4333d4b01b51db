"""Renaming rules that work in both directions, so that what one format writes is exactly what it reads.

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
Facts = Mapping[str, Any]
"""What a specification says of the model, as plain data; some formats need more than the tensors tell."""

LARGEST_EPS = 1e-5  # of a normalisation that makes no difference worth telling; formats without a config assume 1e-6


class Form(NamedTuple):
    """How tensors change shape on the way in (`read`) and on the way out (`write`)."""

    read: Callable[[list[Tensor]], list[Tensor]]
    write: Callable[[list[Tensor], Facts], list[Tensor]]


class Rule(NamedTuple):
    """These native tensors are those foreign ones, in another form."""

    native: tuple[str, ...]
    foreign: tuple[str, ...]
    form: Form


def joined(parts: int) -> Form:
    """Several tensors there are one tensor here, one below the other."""
    return Form(lambda tensors: [torch.cat(tensors)], lambda tensors, _: list(tensors[0].chunk(parts)))


SAME = Form(lambda tensors: tensors, lambda tensors, _: tensors)
TRANSPOSED = Form(lambda tensors: [t.mT for t in tensors], lambda tensors, _: [t.mT for t in tensors])


def rule(native: str | Sequence[str], foreign: str | Sequence[str], form: Form = SAME) -> Rule:
    """A rule from single patterns or lists of them."""
    ours, theirs = ((each,) if isinstance(each, str) else tuple(each) for each in (native, foreign))
    return Rule(ours, theirs, form)


def layer(native: str, foreign: str | Sequence[str], form: Form = SAME) -> list[Rule]:
    """The rules for a layer whose weight and bias are called so on both sides."""
    names = [foreign] if isinstance(foreign, str) else list(foreign)
    return [rule(f"{native}.{part}", [f"{name}.{part}" for name in names], form) for part in ("weight", "bias")]


def require(facts: Facts, format_name: str, **wanted: Any) -> None:
    """Refuse a model that the format's own project would load and compute differently."""
    if facts.get("norm_eps", 0.0) > LARGEST_EPS:
        raise WeightsError(
            f"the {format_name} format has no place for norm_eps.", got=f"{facts['norm_eps']}.", hint="norm_eps=1e-6."
        )
    for field, value in wanted.items():
        if facts.get(field, value) != value:
            raise WeightsError(
                f"the {format_name} format has no place for {field}={facts[field]}.",
                got=f"a model with {field}={facts[field]}.",
                hint=f"{field}={value}, or another format.",
            )


def read(tensors: Mapping[str, Tensor], rules: Iterable[Rule], format_name: str) -> State:
    """Foreign tensors under their native names; a tensor that no rule knows is an error, never dropped."""
    flipped = [(known.foreign, known.native, known.form.read) for known in rules]
    return _translate(tensors, flipped, f"this is not a {format_name} file that Vitrail knows")


def write(state: Mapping[str, Tensor], rules: Iterable[Rule], facts: Facts, format_name: str) -> State:
    """Native tensors under their foreign names; what the format has no place for is an error, never dropped."""
    table = [(known.native, known.foreign, lambda found, form=known.form: form.write(found, facts)) for known in rules]
    return _translate(state, table, f"the {format_name} format has no place for some tensors of this model")


def _translate(
    source: Mapping[str, Tensor],
    table: Sequence[tuple[tuple[str, ...], tuple[str, ...], Callable[[list[Tensor]], list[Tensor]]]],
    complaint: str,
) -> State:
    result: State = {}
    left = set(source)
    for key in source:
        if key not in left:
            continue
        for ours, theirs, change in table:
            match = _regex(ours[0]).fullmatch(key)
            numbers = match and {name: int(text) - _offset(ours[0], name) for name, text in match.groupdict().items()}
            if numbers is None:
                continue
            names = [_fill(pattern, numbers) for pattern in ours]
            if not left.issuperset(names):
                continue
            left.difference_update(names)
            changed = change([source[name] for name in names])
            for pattern, tensor in zip(theirs, changed, strict=True):
                result[_fill(pattern, numbers)] = tensor.contiguous()
            break
    if left:
        shown = ", ".join(sorted(left)[:3])
        raise WeightsError(f"{complaint}.", got=f"{len(left)} tensors without a counterpart: {shown}.")
    return result


PLACEHOLDER = re.compile(r"\{(\w)(\+1)?(:02)?\}")


@cache
def _regex(pattern: str) -> re.Pattern[str]:
    parts, last = [], 0
    for hole in PLACEHOLDER.finditer(pattern):
        parts += [re.escape(pattern[last : hole.start()]), rf"(?P<{hole[1]}>\d+)"]
        last = hole.end()
    return re.compile("".join(parts) + re.escape(pattern[last:]))


@cache
def _offset(pattern: str, name: str) -> int:
    return 1 if f"{{{name}+1" in pattern else 0


def _fill(pattern: str, numbers: Mapping[str, int]) -> str:
    def number(hole: re.Match[str]) -> str:
        return format(numbers[hole[1]] + (1 if hole[2] else 0), "02" if hole[3] else "d")

    return PLACEHOLDER.sub(number, pattern)
