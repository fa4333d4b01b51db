"""torch.export: the graph for whoever has PyTorch, but not Vitrail."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from vitrail.engine.runtime.pt2 import FACTS
from vitrail.errors import ExportError, brief
from vitrail.exports.traced import Traced, dynamic_shapes, example, quiet

PACKAGES = ("torch",)
PRECISIONS = ("fp32", "bf16")


def write(
    traced: Traced, path: Path, precision: str, facts: dict[str, Any], *, pixels: NDArray[Any], keep: Sequence[str]
) -> None:
    """Write the program."""
    del pixels, keep  # nothing is learned from pictures here
    graph = traced.graph
    if precision == "bf16":
        graph = copy.deepcopy(graph)
        graph.model.bfloat16()
    with quiet():
        try:
            program = torch.export.export(
                graph, (example(graph),), dynamic_shapes=dynamic_shapes(graph, dynamic=traced.dynamic)
            )
        except Exception as error:
            raise ExportError("this model cannot be traced.", got=brief(error), hint="without --dynamic.") from error
        torch.export.save(program, path, extra_files={FACTS: json.dumps(facts)})
