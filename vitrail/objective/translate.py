"""Text to text: predict each token of the target from the source and the target so far."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields
from vitrail.metric.score import Metric, Score
from vitrail.metric.tokens import losses_per_token, score_tokens

ACCURACY = Metric("token_accuracy", "accuracy on next tokens", is_fraction=True)


class Translate(contract.Objective):
    """Cross-entropy of each next target token, given the true ones before it; `pad` does not count.

    `target` begins with a token that is not predicted. `label_smoothing` is for training (arXiv 1706.03762, section
    5.4): answers and scores are without it. The score is the accuracy, which follows BLEU more closely than the loss.
    """

    METRIC = ACCURACY
    COMPARES = "loss per token"

    def __init__(self, *, pad: int = 0, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.pad, self.label_smoothing = pad, label_smoothing

    def units(self, fields: Fields) -> Float[Tensor, " B"]:
        """The number of predicted tokens."""
        return (fields["target"][:, 1:] != self.pad).sum(dim=1).float()

    def forward(self, model: nn.Module, fields: Fields) -> Float[Tensor, " B"]:
        logits, expected = self.predict(model, fields)
        return self._losses(logits, expected, self.label_smoothing)

    def predict(self, model: nn.Module, fields: Fields) -> tuple[Float[Tensor, "B N V"], Tensor]:
        """The logits of each next token, and the true ones."""
        target = fields["target"]
        return model(fields["source"], target[:, :-1]).float(), target[:, 1:]

    def _losses(self, logits: Tensor, expected: Tensor, smoothing: float) -> Float[Tensor, " B"]:
        losses = F.cross_entropy(
            logits.flatten(0, 1),
            expected.flatten(),
            ignore_index=self.pad,
            label_smoothing=smoothing,
            reduction="none",
        )
        return losses.view(expected.shape).sum(dim=1)

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """The loss of each sample, the number of its tokens, and how many are predicted correctly."""
        logits, expected = self.predict(model, fields)
        correct = ((logits.argmax(dim=2) == expected) & (expected != self.pad)).sum(dim=1)
        return {"loss": self._losses(logits, expected, 0.0), "correct": correct, "units": self.units(fields)}

    def score(self, answers: Fields) -> Score:
        """Score by the accuracy."""
        return score_tokens(ACCURACY, answers)

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """The mean loss of each sample."""
        return losses_per_token(answers)


Objective = Translate
