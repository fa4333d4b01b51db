"""What all objectives with hidden patches share: the loss per hidden patch, and a look at the features.

Validation images are hidden in part for the loss, and shown as they are for their features: nearest neighbours and a
linear model on them, if there are labels, say what a loss on pixels does not.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields
from vitrail.metric.features import linear_accuracy, neighbour_accuracy, relative_spread
from vitrail.metric.score import Metric, Score, fraction_error
from vitrail.metric.tokens import losses_per_token, score_tokens

LOSS = Metric("masked_loss", "loss on hidden patches", higher=False)
NEIGHBOURS = Metric("knn", "nearest neighbours", is_fraction=True)
LINEAR = Metric("linear", "linear model", is_fraction=True)
MAX_PROBED = 1000  # samples
MIN_SPREAD = 1e-5  # below, all images have the same features
NUM_ERRORS = 4.0  # standard errors above chance that were reached before a fall to chance is a collapse


class MaskedImage(contract.Objective):
    """Predicts hidden patches; `predict` and `compare` are up to the method."""

    METRIC = LOSS
    READS = ("hidden", "shown")
    COMPARES = "loss per hidden patch"
    best_probe: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("best_probe", torch.zeros(()))  # in checkpoints, so that a rollback restores it

    def predict(self, model: contract.Classifier, fields: Fields) -> Float[Tensor, "B M F"]:
        """Compute the prediction for each hidden patch."""
        raise NotImplementedError

    def compare(self, predicted: Float[Tensor, "B M F"], fields: Fields) -> Float[Tensor, "B M"]:
        """The loss of each hidden patch."""
        raise NotImplementedError

    def draw(self, predicted: Float[Tensor, "B M F"], fields: Fields) -> Float[Tensor, "B M P Q C"]:
        """The predicted patches as pixels, in the model's normalisation."""
        raise NotImplementedError

    def units(self, fields: Fields) -> Float[Tensor, " B"]:
        """The number of hidden patches."""
        hidden = fields["hidden"]
        return torch.full((len(hidden),), float(hidden.shape[1]), device=hidden.device)

    def forward(self, model: nn.Module, fields: Fields) -> Float[Tensor, " B"]:
        assert isinstance(model, contract.Classifier)
        return self.compare(self.predict(model, fields).float(), fields).sum(dim=1)

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """The loss of each image and the number of its hidden patches; its features, and its label if there is one."""
        assert isinstance(model, contract.Classifier)
        features = model.pool(model.encode(model.tokenize(fields["image"])))
        found = {"loss": self(model, fields), "units": self.units(fields), "features": features.float()}
        return {**found, **{name: fields[name] for name in ("label",) if name in fields}}

    def score(self, answers: Fields) -> Score:
        """Score by the loss."""
        return score_tokens(LOSS, answers)

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """The mean loss of each image."""
        return losses_per_token(answers)

    def monitor(self, answers: Fields) -> contract.Monitoring:
        """Score the features, and find out whether they have collapsed."""
        scores = probe_features(answers)
        spread = relative_spread(answers["features"][:MAX_PROBED].double().numpy())
        at = f" ({scores[0].metric.title} {scores[0].text})" if scores else ""
        if spread < MIN_SPREAD:
            return contract.Monitoring(scores, f"the features of all images have become the same{at}")
        if scores:
            # The better of both: nearest neighbours alone fluctuate on few images.
            now, best, labels = (
                max(each.value for each in scores),
                self.best_probe.item(),
                answers["label"][:MAX_PROBED],
            )
            baseline = labels.bincount().max().item() / len(labels)
            error = fraction_error(baseline, len(labels))
            if now < baseline + error and best > baseline + NUM_ERRORS * error:
                probes = ", ".join(f"{each.metric.title} {each.text}" for each in scores)
                problem = f"the features have collapsed: {probes}, no better than chance, after {LINEAR.format(best)}"
                return contract.Monitoring(scores, problem)
            self.best_probe.fill_(max(best, now))
        return contract.Monitoring(scores)


def probe_features(answers: Fields) -> tuple[Score, ...]:
    """The accuracy of nearest neighbours and of a linear model; none without classes."""
    labels = answers.get("label")
    if labels is None or labels.ndim != 1 or labels.is_floating_point() or not bool((labels != labels[:1]).any()):
        return ()
    features, classes = answers["features"][:MAX_PROBED].double().numpy(), labels[:MAX_PROBED].numpy()
    if not bool(torch.from_numpy(features).isfinite().all()):
        return ()
    values = {NEIGHBOURS: neighbour_accuracy(features, classes), LINEAR: linear_accuracy(features, classes)}
    num = len(features)
    return tuple(Score(metric, value, fraction_error(value, num), 0.0, num) for metric, value in values.items())
