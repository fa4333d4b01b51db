"""torch.export: the graph for users who have PyTorch but not Vitrail."""

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
from vitrail.exports.tracing import Tracer, dynamic_shapes, example, quiet

PACKAGES = ("torch",)
PRECISIONS = ("fp32", "bf16")


def write(
    tracer: Tracer,
    path: Path,
    precision: str,
    metadata: dict[str, Any],
    *,
    pixels: NDArray[Any],
    float_layers: Sequence[str],
) -> None:
    """Write the program."""
    del pixels, float_layers  # there is no int8 here
    graph = tracer.graph
    if precision == "bf16":
        graph = copy.deepcopy(graph)
        graph.model.bfloat16()
    with quiet():
        try:
            program = torch.export.export(
                graph, (example(graph),), dynamic_shapes=dynamic_shapes(graph, dynamic=tracer.dynamic)
            )
        except Exception as error:
            raise ExportError("this model cannot be traced.", got=brief(error), hint="without --dynamic.") from error
        torch.export.save(program, path, extra_files={FACTS: json.dumps(metadata)})
