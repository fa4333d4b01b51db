"""The graph in ONNX, from which ONNX Runtime and OpenVINO both start, and which node came from which layer."""

from __future__ import annotations

import ast
import copy
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitrail.errors import ExportError, brief
from vitrail.exports.graph import Graph

SCOPES = "pkg.torch.onnx.name_scopes"
LARGEST_BATCH = 4096
WHOLE = 1_800_000_000  # bytes that one file of ONNX can hold, with some to spare


def dynamic_shapes(graph: Graph, *, dynamic: bool) -> dict[str, Any]:
    """Any number of pictures; with `dynamic` of any size that the patches divide."""
    shapes: dict[int, Any] = {0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH)}
    if dynamic:
        first = 1 if graph.takes == "uint8" else 2
        cell = graph.model.spec.stem.cell if hasattr(graph.model.spec, "stem") else (1, 1)
        for axis, (name, side) in enumerate(zip(("rows", "columns"), cell, strict=True)):
            # A side of one cell would be a kind of its own to the tracer.
            number = torch.export.Dim(name, min=2, max=2**15)
            shapes[first + axis] = side * number if side > 1 else number
    return {"pixels": shapes}


def example(graph: Graph) -> torch.Tensor:
    """What the graph is traced with: two pictures, for of one the tracer would conclude that there is always one."""
    return graph.example(2, graph.model.preprocess.size)


class Traced:
    """A graph to be written, in whatever format; its ONNX form is made once, when it is first wanted."""

    def __init__(self, graph: Graph, *, dynamic: bool = False) -> None:
        self.graph, self.dynamic = graph, dynamic

    @cached_property
    def proto(self) -> Any:
        """The ONNX model."""
        return to_onnx(self.graph, dynamic=self.dynamic)

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """The names of its nodes that multiply by the weights of each layer."""
        return nodes_by_layer(self.proto, self.graph.model)

    def nodes(self, layers: Sequence[str]) -> list[str]:
        """The nodes of these layers."""
        return [node for layer in layers for node in self.layers.get(layer, ())]


def to_onnx(graph: Graph, *, dynamic: bool = False) -> Any:
    """The ONNX model."""
    with quiet():
        try:
            program = torch.onnx.export(
                graph,
                (example(graph),),
                dynamo=True,
                input_names=["pixels"],
                output_names=["logits", "confidence"],
                dynamic_shapes=dynamic_shapes(graph, dynamic=dynamic),
                verbose=False,
            )
        except Exception as error:
            raise ExportError(
                "this model cannot be written as ONNX.", got=brief(error), hint="--format pt2, or without --dynamic."
            ) from error
    assert program is not None
    return program.model_proto


def save(proto: Any, path: Path) -> None:
    """Write an ONNX model; one of more than two gigabytes keeps its weights in a file beside it."""
    import onnx

    large = sum(len(tensor.raw_data) for tensor in proto.graph.initializer) > WHOLE
    if large:  # which empties the model that is given
        proto = copy.deepcopy(proto)
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)  # to which it would be added
    onnx.save(proto, path, save_as_external_data=large, location=f"{path.name}.data" if large else None)


def nodes_by_layer(proto: Any, model: nn.Module) -> dict[str, list[str]]:
    """The names of the nodes that multiply by the weights of each linear and convolutional layer."""
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    found: dict[str, list[str]] = {}
    for node in proto.graph.node:
        if node.op_type not in {"MatMul", "Gemm", "Conv"}:
            continue
        scopes = next((each.value for each in node.metadata_props if each.key == SCOPES), "[]")
        for scope in ast.literal_eval(scopes):
            if scope.removeprefix("model.") in layers:
                found.setdefault(scope.removeprefix("model."), []).append(node.name)
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Without what exporters say to those who wrote them."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "nncf", "torch.export")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
