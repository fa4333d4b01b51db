"""Fitting weights to a model that differs from the one they come from: channels, classes, positions.

Every change is told in a sentence; whatever else differs is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from vitrail.errors import WeightsError, unknown_name
from vitrail.nn.position import ResizeRule, resize_table
from vitrail.tokens import Layout, by, cut

HEADS = ("head.", "head_dist.")
ChannelRule = Literal["sum", "mean"]
# Sides of square pictures that models are trained on; a table's grid is looked up here, never guessed from a root.
COMMON_SIDES = (
    *(
        8,
        16,
        20,
        24,
        28,
        32,
        48,
        64,
        80,
        96,
        112,
        128,
        144,
        160,
        176,
        192,
        208,
        224,
        240,
        256,
        288,
        320,
        336,
        352,
        378,
        384,
    ),
    *(392, 416, 448, 480, 512, 518, 560, 576, 640, 672, 768, 896, 1024),
)


def adapt_channels(weight: Tensor, channels: int, rule: ChannelRule) -> Tensor:
    """The first convolution for another number of input channels.

    `sum` shares the sum of the old filters among the new channels, so that a picture whose channels are all equal
    (grey shown as RGB, say) gives the same features as before. `mean` gives each new channel the mean of the old
    filters, so that each filter keeps its scale.
    """
    if rule not in get_args(ChannelRule):
        raise unknown_name("channel rule", rule, get_args(ChannelRule))
    flat = weight.sum(dim=1, keepdim=True) / channels if rule == "sum" else weight.mean(dim=1, keepdim=True)
    return flat.expand(-1, channels, *[-1] * (weight.ndim - 2)).contiguous()


def table_grid(num_rows: int, table: Layout, cell: tuple[int, ...], told: tuple[int, int] | None) -> tuple[int, ...]:
    """The grid that a file's position table was learned on: as told, else the model's own or a common square one."""
    if told is not None:
        if told[0] * told[1] + table.prefix != num_rows:
            raise WeightsError(
                "weights_grid does not fit the position table.",
                got=f"{by(told)} cells and {table.prefix} prefix tokens for {num_rows} rows.",
            )
        return told
    squares = [cut((side, side), cell) for side in COMMON_SIDES if all(side % step == 0 for step in cell)]
    fitting = {grid for grid in [*squares, table.grid] if math.prod(grid) + table.prefix == num_rows}
    if len(fitting) == 1:
        return fitting.pop()
    candidates = " or ".join(map(by, sorted(fitting))) or "no common grid"
    raise WeightsError(
        "the grid of the file's position table cannot be told from its length.",
        got=f"{num_rows} rows, {table.prefix} of them for prefix tokens: {candidates}.",
        hint="weights_grid=(rows, columns).",
    )


def adapt(
    state: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    *,
    first_weight: str,
    table: Layout | None,
    cell: tuple[int, ...],
    resize_rule: ResizeRule,
    channel_rule: ChannelRule,
    weights_grid: tuple[int, int] | None,
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors that the model wants, made from those that the file has, and what had to be changed."""
    fitted, changes = dict(state), []
    weight, goal = fitted.get(first_weight), wanted[first_weight]
    if weight is not None and weight.ndim == goal.ndim and 0 < weight.shape[1] != goal.shape[1]:
        changes.append(f"input channels {weight.shape[1]} to {goal.shape[1]}, by the {channel_rule} rule")
        fitted[first_weight] = adapt_channels(weight, goal.shape[1], channel_rule)
    rows = fitted.get("pos_embed")
    # With other prefix tokens it is another model, which check_fit tells better than its table's length would.
    same_tokens = all((key in state) == (key in wanted) for key in ("cls_token", "dist_token", "reg_token"))
    if table is not None and rows is not None and rows.ndim == 3 and same_tokens:
        grid = table_grid(rows.shape[1], table, cell, weights_grid)
        if grid != table.grid:
            changes.append(f"positions {by(grid)} to {by(table.grid)}, by the {resize_rule} rule")
            fitted["pos_embed"] = resize_table(rows, Layout(grid, table.prefix), table, resize_rule)
    heads = sorted(key for key in wanted if key.startswith(HEADS))
    if heads and not any(key.startswith(HEADS) for key in fitted):
        changes.append(f"a new classifier of zeros for {wanted[heads[0]].shape[0]} classes")
        fitted.update({key: torch.zeros(wanted[key].shape) for key in heads})
    dtypes = {tensor.dtype for tensor in fitted.values() if tensor.is_floating_point()} - {torch.get_default_dtype()}
    if dtypes:
        changes.append(f"{' and '.join(sorted(map(str, dtypes)))} to {torch.get_default_dtype()}")
        fitted = {key: tensor.to(torch.get_default_dtype()) for key, tensor in fitted.items()}
    return fitted, changes


def check_fit(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], name: str) -> None:
    """Refuse weights of another architecture, in one message."""
    missing = sorted(wanted.keys() - state.keys())
    surplus = sorted(state.keys() - wanted.keys())
    shared = sorted(wanted.keys() & state.keys())
    differing = [key for key in shared if state[key].shape != wanted[key].shape or not state[key].is_floating_point()]
    if not (missing or surplus or differing):
        return
    parts = [
        f"{len(keys)} {kind} ({keys[0]})" for kind, keys in (("missing", missing), ("unexpected", surplus)) if keys
    ]
    if differing:
        first = differing[0]
        shapes = f"{by(tuple(state[first].shape)) or 'a number'} of {state[first].dtype}"
        parts.append(f"{len(differing)} of another kind ({first}: {shapes}, not {by(tuple(wanted[first].shape))})")
    raise WeightsError(
        f"these weights are not those of {name}.",
        got=f"tensors: {', '.join(parts)}.",
        hint="the name of their own model.",
    )
