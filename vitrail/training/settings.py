"""The settings of a training run; each recipe has its own defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from vitrail.errors import SpecError
from vitrail.spec import FinitePositive, OpenFraction, PartialFraction, PositiveFraction, Spec
from vitrail.training.optim import OptimizerName
from vitrail.training.schedule import Schedule

LENGTHS = ("epochs", "steps", "minutes")


class CommonSettings(Spec):
    """The settings of every recipe: time, seed, data."""

    minutes: FinitePositive | None = None
    """The time for the whole command."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    class_weights: bool = False
    """Whether rare classes have more weight in the loss."""
    val_share: OpenFraction = 0.1
    """The fraction of the training data held out if there is no validation split."""
    cache_gb: NonNegativeFloat = 4.0
    """The limit of the cache of decoded files on disk; 0 for no cache."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Decoding threads; None for one per core."""
    on_error: Literal["error", "skip"] = "error"
    """Whether an unreadable file ends the run, or is skipped and reported."""


class Settings(CommonSettings):
    """The settings of the training loop: length, optimizer, evaluation, checkpoints."""

    epochs: FinitePositive | None = None
    steps: PositiveInt | None = None
    """The length is set by one of epochs, steps and minutes; the schedule then reaches zero."""
    batch_size: PositiveInt = 128
    """Samples per step, over all processes together."""
    accumulate: PositiveInt | None = None
    """Parts per batch (gradient accumulation); None for as few as fit in memory."""
    optimizer: OptimizerName = "adamw"
    lr: FinitePositive = 1e-3
    """The peak learning rate; with Muon, that for matrices."""
    weight_decay: NonNegativeFloat = 0.05
    layer_decay: PositiveFraction = 1.0
    """The learning rate of each layer relative to the layer above it."""
    schedule: Schedule = "cosine"
    warmup: PartialFraction = 0.05
    """The fraction of the run over which the learning rate rises."""
    clip: NonNegativeFloat = 1.0
    """The maximum gradient norm; 0 for no clipping."""
    sam: FinitePositive | None = None
    """The radius of sharpness-aware minimisation, such as 0.05; None for none. A step takes twice as long."""
    ema: PartialFraction = 0.0
    """The decay of the EMA of the weights, which is evaluated and saved; 0 for no EMA."""
    balanced: bool = False
    """Whether to sample all classes equally often."""
    small_side: PositiveFraction = 0.75
    """The side of the smaller inputs at the start of the run, as a fraction of the model's input size."""
    small_until: PartialFraction = 0.0
    """The fraction of the run that uses them; 0 for none."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 if it is measured to be faster on this machine."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether to use torch.compile; `auto` tries it in long runs and uses it if it is faster."""
    eval_every: PositiveInt | None = None
    """Steps; None for about ten evaluations per run, in at most a twentieth of its time."""
    save_every: PositiveInt | None = None
    """Steps; None for every evaluation. In any case every five minutes."""
    patience: PositiveInt | None = None
    """Evaluations without improvement after which the run ends early; None for never."""
    tensorboard: bool = False
    """Whether to write TensorBoard events too."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) > 1:
            raise SpecError(
                "a run has one length.",
                got=", ".join(f"{name}={getattr(self, name)}" for name in lengths) + ".",
                hint=f"{lengths[0]} alone.",
            )
        return self

    def with_length(self, **fields: Any) -> Self:
        """Return the same settings with another length."""
        return self.override({**dict.fromkeys(LENGTHS), **fields})
