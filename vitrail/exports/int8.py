"""8-bit quantization with NNCF: ranges are calibrated on the user's images, in the graph of either engine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from vitrail.exports.tracing import quiet

NO_TELEMETRY = "NNCF_CI"


def quantize(graph: Any, pixels: NDArray[Any], *, float_nodes: Sequence[str]) -> Any:
    """An ONNX or OpenVINO model with its matrix products in 8 bits, except for the nodes in `float_nodes`."""
    os.environ.setdefault(NO_TELEMETRY, "1")  # it would report usage over the network
    import nncf

    # Engines that split a node in two append to its name.
    patterns = [rf"{re.escape(name)}(/.*)?" for name in float_nodes]
    with quiet():
        return nncf.quantize(
            graph,
            nncf.Dataset([{"pixels": each[None]} for each in pixels]),
            subset_size=len(pixels),
            model_type=nncf.ModelType.TRANSFORMER,
            ignored_scope=nncf.IgnoredScope(patterns=patterns) if patterns else None,
        )
