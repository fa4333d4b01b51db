"""How long the next candidate of a search will take and how fast it will be, estimated from the steps before it."""

from __future__ import annotations

from typing import NamedTuple

from vitrail.exports.build import Build, BuildContext
from vitrail.exports.proof import MIN_SECONDS, speed_cost
from vitrail.exports.sensitivity import NUM_IMAGES, quantizable_layers

# Only until they are measured here: how the time per image changes from fp32, and what steps cost in PyTorch passes.
EXPECTED_GAIN = {"fp32": 1.0, "bf16": 0.7, "int8": 0.5}
CALIBRATION_PASSES = 3  # per calibration image, in NNCF
SENSITIVITY_PASSES = 2  # per layer and image, since rounding takes as long as computing


class Attempt(NamedTuple):
    """A format and precision to try, and how many layers of it stay in float."""

    format: str
    precision: str
    num_float: int = 0

    @property
    def name(self) -> str:
        """Format and precision."""
        return f"{self.format} {self.precision}"

    @property
    def description(self) -> str:
        """The name with the number of layers in float."""
        return f"{self.name} with {self.num_float} layers in float" if self.num_float else self.name


class CostEstimator:
    """Estimates seconds from what was measured so far."""

    def __init__(self, context: BuildContext, speed_seconds: float) -> None:
        self.context, self.speed_seconds = context, min(speed_seconds, MIN_SECONDS)
        self.write_seconds: dict[tuple[str, str], float] = {}
        self.seconds_per_image: dict[tuple[str, str], float] = {}

    def record(self, build: Build) -> None:
        """Record what a build took."""
        self.write_seconds[build.format, build.precision] = build.write_seconds
        self.seconds_per_image[build.format, build.precision] = build.seconds_per_image

    def gain(self, precision: str, *, unmeasured: float) -> float:
        """The time per image relative to fp32 in the same format: the best measured so far, else `unmeasured`."""
        fp32 = {name: seconds for (name, each), seconds in self.seconds_per_image.items() if each == "fp32"}
        ratios = [
            seconds / max(fp32[name], 1e-9)
            for (name, each), seconds in self.seconds_per_image.items()
            if each == precision and name in fp32
        ]
        return min(ratios, default=unmeasured)

    def estimate_seconds_per_image(self, attempt: Attempt, *, unmeasured: float | None = None) -> float:
        """The speed of an attempt: its own if measured, else that of its format in fp32 times its precision's gain."""
        measured = self.seconds_per_image.get((attempt.format, attempt.precision))
        if measured is not None:
            return measured
        unmeasured = EXPECTED_GAIN[attempt.precision] if unmeasured is None else unmeasured
        fp32 = self.seconds_per_image.get((attempt.format, "fp32"), self.context.seconds_per_image)
        return fp32 * self.gain(attempt.precision, unmeasured=unmeasured)

    def estimate(self, attempt: Attempt) -> float:
        """Writing an attempt, comparing it with PyTorch, and timing it at the end."""
        # No gain is assumed here: a precision that the processor lacks may gain nothing.
        compare = len(self.context.logits) * self.estimate_seconds_per_image(attempt, unmeasured=1.0)
        rank = self.estimate_ranking() if attempt.num_float else 0.0
        return self._estimate_writing(attempt) + rank + compare + self.estimate_timing(1)

    def _estimate_writing(self, attempt: Attempt) -> float:
        measured = self.write_seconds.get((attempt.format, attempt.precision))
        if measured is not None:
            return measured
        same_precision = [seconds for (_, each), seconds in self.write_seconds.items() if each == attempt.precision]
        if attempt.precision == "int8" and same_precision:
            return max(same_precision)
        fp32 = self.write_seconds.get((attempt.format, "fp32"), max(self.write_seconds.values(), default=0.0))
        num_calibration = len(self.context.images.calibration_pixels) if attempt.precision == "int8" else 0
        return fp32 + CALIBRATION_PASSES * num_calibration * self.context.seconds_per_image

    def estimate_ranking(self) -> float:
        """Ranking the layers by sensitivity, unless that was done."""
        if "sensitive_layers" in self.context.__dict__:
            return 0.0
        num_layers = len(quantizable_layers(self.context.tracer.graph.model))
        return SENSITIVITY_PASSES * num_layers * NUM_IMAGES * self.context.seconds_per_image

    def estimate_timing(self, num_models: int) -> float:
        """Timing models in turns at the end."""
        return num_models * speed_cost(self.speed_seconds, self.context.seconds_per_image)
