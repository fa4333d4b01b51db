"""Traces the model to ONNX, which ONNX Runtime and OpenVINO both start from, and maps its nodes to layers."""

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
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vitrail.errors import ExportError, brief
from vitrail.exports.graph import Graph
from vitrail.exports.sensitivity import quantizable_layers

if TYPE_CHECKING:  # imported where it is used
    import onnx

SCOPES = "pkg.torch.onnx.name_scopes"
MAX_BATCH = 4096
MAX_FILE_BYTES = 1_800_000_000  # an ONNX file holds two gigabytes; this leaves a margin


def dynamic_shapes(graph: Graph, *, dynamic: bool) -> dict[str, Any]:
    """Any batch size; with `dynamic` also any image size that the patch size divides."""
    shapes: dict[int, Any] = {0: torch.export.Dim("batch", min=1, max=MAX_BATCH)}
    if dynamic:
        first = 1 if graph.input_dtype == "uint8" else 2
        for axis, (name, side) in enumerate(zip(("rows", "columns"), graph.model.spec.cell, strict=True)):
            # The tracer specializes dimensions of size one.
            number = torch.export.Dim(name, min=2, max=2**15)
            shapes[first + axis] = side * number if side > 1 else number
    return {"pixels": shapes}


def example(graph: Graph) -> torch.Tensor:
    """The input for tracing: two images, since the tracer would specialize a batch of one."""
    return graph.example(2, graph.model.preprocess.size)


class Tracer:
    """A graph to export in any format; it is traced to ONNX once, on first use."""

    def __init__(self, graph: Graph, *, dynamic: bool = False) -> None:
        self.graph, self.dynamic = graph, dynamic

    @cached_property
    def onnx_model(self) -> onnx.ModelProto:
        """The ONNX model."""
        return to_onnx(self.graph, dynamic=self.dynamic)

    @cached_property
    def layers(self) -> dict[str, list[str]]:
        """For each layer, the names of the ONNX nodes that multiply by its weights."""
        return nodes_by_layer(self.onnx_model, self.graph.model)

    def nodes(self, layers: Sequence[str]) -> list[str]:
        """The ONNX nodes of these layers."""
        return [node for layer in layers for node in self.layers.get(layer, ())]


def to_onnx(graph: Graph, *, dynamic: bool = False) -> onnx.ModelProto:
    """Trace a graph to an ONNX model."""
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
                "this model cannot be exported to ONNX.", got=brief(error), hint="--format pt2, or without --dynamic."
            ) from error
    assert program is not None
    return program.model_proto


def save(onnx_model: onnx.ModelProto, path: Path) -> None:
    """Write an ONNX model; one of more than two gigabytes stores its weights in a file beside it."""
    import onnx

    large = sum(len(tensor.raw_data) for tensor in onnx_model.graph.initializer) > MAX_FILE_BYTES
    if large:
        onnx_model = copy.deepcopy(onnx_model)  # saving external data empties the model in memory
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)  # saving would append to it
    onnx.save(onnx_model, path, save_as_external_data=large, location=f"{path.name}.data" if large else None)


def nodes_by_layer(onnx_model: onnx.ModelProto, model: nn.Module) -> dict[str, list[str]]:
    """For each linear and convolutional layer, the names of the nodes that multiply by its weights."""
    layers = quantizable_layers(model)
    nodes: dict[str, list[str]] = {}
    for node in onnx_model.graph.node:
        if node.op_type not in {"MatMul", "Gemm", "Conv"}:
            continue
        scopes = next((each.value for each in node.metadata_props if each.key == SCOPES), "[]")
        for scope in ast.literal_eval(scopes):
            if scope.removeprefix("model.") in layers:
                nodes.setdefault(scope.removeprefix("model."), []).append(node.name)
    return nodes


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters' warnings, logs and prints."""
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
