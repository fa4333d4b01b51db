"""What every model, every classifier and every objective provides; the contract tests hold each entry to it.

A model maps tensors to a tensor and says which fields of a batch it takes. An objective maps a model and the fields of
a batch to a loss per sample, and scores the answers on validation data. Training knows nothing else about them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, cast

import torch
from jaxtyping import Float
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from vitrail import plug
from vitrail.batch import Fields, count_rows
from vitrail.errors import ShapeError
from vitrail.metric.score import Metric, Score
from vitrail.nn.dot_product import check_heads
from vitrail.nn.embedding import TextPosition
from vitrail.nn.rotary import Rotary, check_rotary
from vitrail.spec import PartialFraction, SizeNd, Spec
from vitrail.tokens import Layout, Tokens

if TYPE_CHECKING:  # networks know nothing of data, except in these types
    from vitrail.about import About
    from vitrail.calibration import Calibration
    from vitrail.data.transform import Preprocess


class ImageSpec(Spec):
    """What the specifications of all classifiers declare."""

    image_size: SizeNd
    channels: PositiveInt
    num_classes: NonNegativeInt
    if TYPE_CHECKING:  # a field of some, a property of others

        @property
        def width(self) -> int:
            """The width of the pooled features."""

    @property
    def takes(self) -> tuple[str, ...]:
        """The fields of a batch that a model of this specification takes."""
        return ("image",)

    @property
    def cell(self) -> tuple[int, ...]:
        """The part of an input that a token stands for, whose sides divide those of inputs; ones if any size does."""
        return (1,) * len(self.image_size)

    @property
    def layout(self) -> Layout:
        """The layout of the tokens of an input of `image_size`."""
        raise NotImplementedError


class Model(nn.Module):
    """A network with named steps: `tokenize`, `encode`, `forward`."""

    TAKES: tuple[str, ...] = ()
    """The fields of a batch that `forward` takes, in order; some models have their own by specification."""
    spec: Spec
    about: About
    """Name, preprocessing, labels and calibration: what travels with the weights."""
    tokenize: Callable[..., Tokens]
    encode: Callable[..., Tokens]
    """A model with a tower for each modality takes the name of one first, here and in `tokenize`."""
    flops: Callable[[], int]

    def __init__(self) -> None:
        super().__init__()
        self.about = plug.import_from("vitrail.about", "About")()

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The output layers, which Muon leaves to AdamW and LoRA trains in full."""
        return ()


class Classifier(Model):
    """An image model with a linear head: `forward` is `classify(encode(tokenize(image)))`."""

    TAKES: tuple[str, ...] = ("image",)
    spec: ImageSpec
    encode: Callable[[Tokens], Tokens]
    pool: Callable[[Tokens], Float[Tensor, "B D"]]
    replace_head: Callable[[int], None]
    head: nn.Module

    @property
    def first_weight(self) -> str:
        """The name of the weight that is applied to the input channels."""
        raise NotImplementedError

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The classifier."""
        return (self.head,)

    def classify(self, tokens: Tokens) -> Float[Tensor, "B K"]:
        """Compute the logits."""
        return self.head(self.pool(tokens))

    def classify_each(self, tokens: Tokens) -> tuple[Float[Tensor, "B K"], ...]:
        """Compute the logits of each head; a distilled model has two."""
        return (self.classify(tokens),)

    def forward(self, image: Float[Tensor, "B C *size"], *more: Float[Tensor, "B C *size"]) -> Float[Tensor, "B K"]:
        return self.classify(self.encode(self.tokenize(image, *more)))

    def explain(self, image: Any, **options: Any) -> Any:
        """Show what the model looks at in an image; see `vitrail.explain`."""
        return plug.import_from("vitrail.inspection.explanation", "explain")(self, image, **options)

    @property
    def name(self) -> str:
        """The name in the catalogue; empty for a model built from a specification."""
        return self.about.name

    @property
    def preprocess(self) -> Preprocess:
        """How an image becomes the model's input."""
        if self.TAKES != ("image",):
            raise ShapeError(
                "this works for models of images only.",
                got=f"a model that takes {' and '.join(self.TAKES)}.",
                hint="vitrail predict or evaluate for clips.",
            )
        if self.about.preprocess is None:
            raise ShapeError(
                "images have one or three channels, so this model has no preprocessing for them.",
                got=f"a model of {self.spec.channels} channels.",
                hint="tensors as its input.",
            )
        return cast("Preprocess", self.about.preprocess)

    @preprocess.setter
    def preprocess(self, preprocess: Preprocess) -> None:
        self.describe(preprocess=preprocess)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the outputs; empty if unknown."""
        return self.about.labels

    @labels.setter
    def labels(self, labels: Sequence[str]) -> None:
        self.describe(labels=tuple(labels))

    @property
    def calibration(self) -> Calibration:
        """How outputs become probabilities."""
        return self.about.calibration

    @calibration.setter
    def calibration(self, calibration: Calibration) -> None:
        self.describe(calibration=calibration)

    @property
    def changes(self) -> tuple[str, ...]:
        """What was adapted when the weights were loaded."""
        return self.about.changes

    def describe(self, **fields: Any) -> None:
        """Change what is known about the model."""
        self.about = replace(self.about, **fields)


class PatchClassifier(Classifier):
    """A classifier whose tokens are the cells of a grid, so that patches of an image can be hidden from it."""

    cell_positions: Callable[[tuple[int, ...]], Float[Tensor, "N D"]]
    """From a grid to the positions that `tokenize` adds to its cells; zeros if there are none."""


class TokenSpec(Spec):
    """What the specifications of all models of text declare."""

    vocab: PositiveInt = 256
    """The number of different tokens."""
    context: PositiveInt = 256
    """The number of tokens that it sees at once."""
    pad: NonNegativeInt = 0
    """The id of padding, which is never attended to."""
    width: PositiveInt = 192
    depth: PositiveInt = 6
    heads: PositiveInt = 3
    hidden: PositiveInt = 768
    position: TextPosition = "rotary"
    dropout_rate: PartialFraction = 0.0
    norm_eps: PositiveFloat = 1e-5

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        check_heads(self.width, self.heads)
        check_rotary(self.position, self.width, self.heads)
        return self

    @property
    def layout(self) -> Layout:
        """The layout of a full context."""
        return Layout(grid=(self.context,))

    def new_rotary(self) -> Rotary | None:
        """What rotates queries and keys in all layers, where positions are rotary."""
        if self.position != "rotary":
            return None
        return Rotary(num_places=self.context, width=self.width // self.heads)


class TokenModel(Model):
    """A model of text: token ids in, logits for each token of the vocabulary out."""

    spec: TokenSpec
    encode: Callable[[Tokens], Tokens]
    logits: Callable[[Tensor], Tensor]
    """From encoded or decoded tokens to logits."""


class Monitoring(NamedTuple):
    """What an evaluation shows besides its score."""

    scores: tuple[Score, ...] = ()
    problem: str | None = None
    """What is wrong with the model, if anything; training then goes back to an earlier checkpoint."""


class Objective(nn.Module):
    """What training minimises; it may own parameters, such as a decoder or a projection."""

    READS: ClassVar[tuple[str, ...]] = ()
    """The fields of a batch that it reads, besides those that the model takes."""
    METRIC: ClassVar[Metric]
    COMPARES: ClassVar[str] = "loss"
    """What `sample_losses` returns, in words."""
    COUPLED: ClassVar[bool] = False
    """Whether the loss of a sample depends on the others, so that a batch must not be split into parts."""

    rank: int = 0
    """The number of this process among those that train together."""
    gather: Callable[[Tensor], Tensor] = staticmethod(lambda features: features)
    """Concatenates the features of all processes in the order of ranks, with gradients; for coupled objectives.

    Training sets it once all processes are connected: before, speed is measured by one of them alone.
    """

    @property
    def metric(self) -> Metric:
        """What `score` measures."""
        return self.METRIC

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """Its own output layers."""
        return ()

    @property
    def frozen(self) -> tuple[nn.Module, ...]:
        """Modules that it computes with and does not train, such as a teacher: neither its own nor in checkpoints."""
        return ()

    def units(self, fields: Fields) -> Float[Tensor, " B"]:
        """What each sample counts for in the mean loss: 1, its tokens, its masked tokens; known before `forward`."""
        return torch.ones(count_rows(fields))

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """Compute what evaluation keeps of each sample."""
        raise NotImplementedError

    def interpret(self, outputs: Tensor, fields: Fields) -> Fields:
        """Turn the outputs of a model into answers, for an objective whose answers need nothing else."""
        raise NotImplementedError

    def score(self, answers: Fields) -> Score:
        """Score the answers for all samples."""
        raise NotImplementedError

    def monitor(self, answers: Fields) -> Monitoring:  # noqa: ARG002 - for those that have more to say
        """Look at the answers of an evaluation once more: further scores, and whether the model is broken."""
        return Monitoring()

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """The loss of each sample, to compare two models on the same samples."""
        raise NotImplementedError
