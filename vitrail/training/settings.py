"""What a user may set of a training run, each recipe with defaults of its own."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator

from vitrail import spec
from vitrail.data.augment import Augment
from vitrail.errors import SpecError
from vitrail.training.optim import Kind
from vitrail.training.schedule import Schedule

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0, le=1e9)]
LENGTHS = ("epochs", "steps", "minutes")


class Common(spec.Spec):
    """What every recipe knows: the time, the seed, the pictures."""

    minutes: Positive | None = None
    """The time that the whole command may take."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    class_weights: bool = False
    """Whether rare classes count for more in the loss."""
    val_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """The part of the training pictures that is held out where the data has no validation split."""
    cache_gb: NonNegativeFloat = 4.0
    """The room for decoded pictures on the disk; 0 for none."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Threads that decode pictures; None for one a core."""
    on_error: Literal["error", "skip"] = "error"
    """A picture that cannot be read ends the run, or is left out and named."""


class Settings(Common):
    """The length, the optimizer, the augmentation and the safety of a run of the loop."""

    epochs: Positive | None = None
    steps: PositiveInt | None = None
    """One of epochs, steps and minutes says how long; the schedule ends at zero exactly then."""
    batch_size: PositiveInt = 128
    """Pictures a step, over all processes together."""
    accumulate: PositiveInt | None = None
    """Parts that a batch is taken in, one after the other; None for as few as fit in memory."""
    optimizer: Kind = "adamw"
    lr: Positive = 1e-3
    """The peak learning rate; with Muon, that of the matrices."""
    weight_decay: NonNegativeFloat = 0.05
    layer_decay: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """How much slower each layer learns than the one above it."""
    schedule: Schedule = "cosine"
    warmup: Share = 0.05
    """The share of the run over which the learning rate rises."""
    clip: NonNegativeFloat = 1.0
    """The largest norm of the gradient; 0 for any."""
    ema: Share = 0.0
    """The decay of the average of the weights that is judged and kept; 0 for none."""
    label_smoothing: Share = 0.0
    balanced: bool = False
    """Whether all classes are shown equally often."""
    augment: Augment = Augment()
    small_side: Annotated[float, Field(gt=0.0, le=1.0)] = 0.75
    """The side of the smaller pictures that the run begins with, as a share of the model's own."""
    small_until: Share = 0.0
    """The share of the run that is spent on them; 0 for none."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto` is bfloat16 where the hardware has it and it is measured to be faster."""
    compile: Literal["auto", "on", "off"] = "auto"
    """Whether torch.compile is used; `auto` tries it in runs that are long enough to earn it back."""
    eval_every: PositiveInt | None = None
    """Steps; None for about ten times a run, at most a twentieth of its time."""
    save_every: PositiveInt | None = None
    """Steps; None for every evaluation. Every five minutes in any case."""
    patience: PositiveInt | None = None
    """Evaluations without a better score after which the run ends early; None for never."""
    tensorboard: bool = False
    """Whether events for TensorBoard are written too."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        told = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(told) > 1:
            raise SpecError(
                "a run has one length.",
                got=", ".join(f"{name}={getattr(self, name)}" for name in told) + ".",
                hint=f"{told[0]} alone.",
            )
        return self

    def with_length(self, **fields: Any) -> Self:
        """The same settings with another length."""
        return self.override({**dict.fromkeys(LENGTHS), **fields})
