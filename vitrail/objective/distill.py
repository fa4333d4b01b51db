"""Distillation: learn from labels and from a teacher's predictions (DeiT, Touvron et al., arXiv 2012.12877).

`hard` takes the teacher's prediction as a second label, `soft` its probabilities at a temperature (Hinton et al., arXiv
1503.02531). A student with a distillation token learns the labels with the class token's head and the teacher with the
other; otherwise one head learns both. The teacher belongs neither to the parameters nor to checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields
from vitrail.metric.score import Metric, Score

Distillation = Literal["hard", "soft"]
TeacherFn = Callable[[Tensor], Tensor]
"""From a batch of the student's images to logits for the student's classes."""


class Distill(contract.Objective):
    """`labels` is the objective without a teacher; it also scores. `weight` is the teacher's share of the loss."""

    READS = ("label",)
    labels: Any

    def __init__(
        self,
        labels: contract.Objective,
        teacher: TeacherFn,
        *,
        distillation: Distillation = "hard",
        weight: float = 0.5,
        temperature: float = 3.0,
    ) -> None:
        super().__init__()
        assert not isinstance(teacher, nn.Module), "a module would be trained and stored"
        self.labels, self.teacher = labels, teacher
        self.distillation, self.weight, self.temperature = distillation, weight, temperature

    @property
    def metric(self) -> Metric:
        """That of the labels."""
        return self.labels.metric

    @property
    def frozen(self) -> tuple[nn.Module, ...]:
        """The teacher, unless it is another function."""
        model = getattr(self.teacher, "model", None)
        return (model,) if isinstance(model, nn.Module) else ()

    def forward(self, model: nn.Module, fields: Fields) -> Float[Tensor, " B"]:
        assert isinstance(model, contract.Classifier)
        each = model.classify_each(model.encode(model.tokenize(fields["image"])))
        with torch.no_grad():
            taught = self.teacher(fields["image"]).float()
        label_losses = self.labels.losses(each[0].float(), fields["label"])
        return (1 - self.weight) * label_losses + self.weight * self.imitate(each[-1].float(), taught)

    def imitate(self, logits: Float[Tensor, "B K"], taught: Float[Tensor, "B K"]) -> Float[Tensor, " B"]:
        """How far the student's prediction is from the teacher's."""
        if self.distillation == "hard":
            return F.cross_entropy(logits, taught.argmax(dim=1), reduction="none")
        t = self.temperature
        divergence = F.kl_div(
            F.log_softmax(logits / t, dim=1), F.log_softmax(taught / t, dim=1), reduction="none", log_target=True
        )
        return t * t * divergence.sum(dim=1)

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """Those of the labels; the teacher is not asked."""
        return self.labels.answers(model, fields)

    def interpret(self, outputs: Tensor, fields: Fields) -> Fields:
        """As for the labels."""
        return self.labels.interpret(outputs, fields)

    def score(self, answers: Fields) -> Score:
        """Score by the labels."""
        return self.labels.score(answers)

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """As for the labels."""
        return self.labels.sample_losses(answers)


Objective = Distill
