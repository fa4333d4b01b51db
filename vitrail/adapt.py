"""Adapt weights to a model with other input channels, classes or positions.

Every change is reported in a sentence; any other difference is an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from vitrail.errors import WeightsError, unknown_name
from vitrail.nn.position import ResizeRule, resize_table
from vitrail.tokens import AXES, Layout, cut, format_size

HEADS = ("head.", "head_dist.")
ChannelRule = Literal["sum", "mean"]
# Common training sizes (square images). A position table's grid is looked up here, never guessed by a square root.
COMMON_SIDES = (
    *(8, 16, 20, 24, 28, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320, 336, 352),
    *(378, 384, 392, 416, 448, 480, 512, 518, 560, 576, 640, 672, 768, 896, 1024),
)


def adapt_channels(weight: Tensor, channels: int, rule: ChannelRule) -> Tensor:
    """Convert the first convolution's weight to another number of input channels.

    `sum` divides the sum of the old filters evenly among the new channels, so an image with equal channels (grey
    stored as RGB) gives the same features as before. `mean` sets each new channel to the mean of the old filters,
    so each filter keeps its scale.
    """
    if rule not in get_args(ChannelRule):
        raise unknown_name("channel rule", rule, get_args(ChannelRule))
    flat = weight.sum(dim=1, keepdim=True) / channels if rule == "sum" else weight.mean(dim=1, keepdim=True)
    return flat.expand(-1, channels, *[-1] * (weight.ndim - 2)).contiguous()


def infer_table_grid(
    num_rows: int, table: Layout, cell: tuple[int, ...], weights_grid: tuple[int, ...] | None
) -> tuple[int, ...]:
    """Return the grid of a file's position table: `weights_grid` if set, else the model's or a common square grid."""
    if weights_grid is not None:
        if math.prod(weights_grid) + table.prefix != num_rows or len(weights_grid) != len(table.grid):
            raise WeightsError(
                "weights_grid does not fit the position table.",
                got=f"{format_size(weights_grid)} cells and {table.prefix} prefix tokens for {num_rows} rows.",
            )
        return weights_grid
    sides = COMMON_SIDES if len(cell) == 2 else ()  # other inputs have no common sizes
    squares = [cut((side, side), cell) for side in sides if all(side % step == 0 for step in cell)]
    fitting = {grid for grid in [*squares, table.grid] if math.prod(grid) + table.prefix == num_rows}
    if len(fitting) == 1:
        return fitting.pop()
    candidates = " or ".join(map(format_size, sorted(fitting))) or "no common grid"
    raise WeightsError(
        "the grid of the file's position table cannot be inferred from its length.",
        got=f"{num_rows} rows, {table.prefix} of them for prefix tokens: {candidates}.",
        hint=f"weights_grid=({', '.join(AXES[len(table.grid)])}).",
    )


def adapt(
    state: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    *,
    first_weight: str,
    table: Layout | None,
    cell: tuple[int, ...],
    resize_rule: ResizeRule,
    channel_rule: ChannelRule,
    weights_grid: tuple[int, ...] | None,
) -> tuple[dict[str, Tensor], list[str]]:
    """Convert a file's tensors to those that the model expects; also return what was changed."""
    adapted, changes = dict(state), []
    weight, goal = adapted.get(first_weight), target[first_weight]
    if weight is not None and weight.ndim == goal.ndim and 0 < weight.shape[1] != goal.shape[1]:
        changes.append(f"input channels: {weight.shape[1]} to {goal.shape[1]} ({channel_rule} rule)")
        adapted[first_weight] = adapt_channels(weight, goal.shape[1], channel_rule)
    rows = adapted.get("pos_embed")
    # Other prefix tokens mean another model; check_fit reports that better than the table's length could.
    same_tokens = all((key in state) == (key in target) for key in ("cls_token", "dist_token", "reg_token"))
    if table is not None and rows is not None and rows.ndim == 3 and same_tokens:
        grid = infer_table_grid(rows.shape[1], table, cell, weights_grid)
        if grid != table.grid:
            changes.append(f"position table: {format_size(grid)} to {format_size(table.grid)} ({resize_rule} rule)")
            adapted["pos_embed"] = resize_table(rows, Layout(grid, table.prefix), table, resize_rule)
    heads = sorted(key for key in target if key.startswith(HEADS))
    if heads and not any(key.startswith(HEADS) for key in adapted):
        changes.append(f"new zero-initialised classifier for {target[heads[0]].shape[0]} classes")
        adapted.update({key: torch.zeros(target[key].shape) for key in heads})
    dtypes = {tensor.dtype for tensor in adapted.values() if tensor.is_floating_point()} - {torch.get_default_dtype()}
    if dtypes:
        changes.append(f"{' and '.join(sorted(map(str, dtypes)))} to {torch.get_default_dtype()}")
        adapted = {key: tensor.to(torch.get_default_dtype()) for key, tensor in adapted.items()}
    return adapted, changes


def check_fit(state: Mapping[str, Tensor], target: Mapping[str, Tensor], name: str) -> None:
    """Reject weights of another architecture, in one message."""
    missing = sorted(target.keys() - state.keys())
    unexpected = sorted(state.keys() - target.keys())
    common = sorted(target.keys() & state.keys())
    differing = [key for key in common if state[key].shape != target[key].shape or not state[key].is_floating_point()]
    if not (missing or unexpected or differing):
        return
    parts = [
        f"{len(keys)} {kind} ({keys[0]})" for kind, keys in (("missing", missing), ("unexpected", unexpected)) if keys
    ]
    if differing:
        first = differing[0]
        actual = f"{format_size(tuple(state[first].shape)) or 'a scalar'} of {state[first].dtype}"
        expected = format_size(tuple(target[first].shape))
        parts.append(f"{len(differing)} of another shape or dtype ({first}: {actual}, not {expected})")
    raise WeightsError(
        f"these weights do not match {name}.",
        got=f"tensors: {', '.join(parts)}.",
        hint="the name of the model that they belong to.",
    )
