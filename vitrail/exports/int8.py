"""Eight bits: ranges learned from the user's pictures by NNCF, in the graph of whichever engine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from vitrail.exports.traced import quiet

NO_TELEMETRY = "NNCF_CI"


def quantize(model: Any, pixels: NDArray[Any], *, keep: Sequence[str]) -> Any:
    """A model of ONNX or OpenVINO with its matrix products in 8 bits, but for the nodes named in `keep`."""
    os.environ.setdefault(NO_TELEMETRY, "1")  # else it tells its makers, over the network
    import nncf

    with quiet():
        return nncf.quantize(
            model,
            nncf.Dataset([{"pixels": each[None]} for each in pixels]),
            subset_size=len(pixels),
            model_type=nncf.ModelType.TRANSFORMER,
            # Engines that part a node in two add to its name.
            ignored_scope=nncf.IgnoredScope(patterns=[rf"{re.escape(name)}(/.*)?" for name in keep]) if keep else None,
        )
