"""How good is the model on pictures that it was not trained on? Right for any number of processes and uneven parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail.data.loader import Loader
from vitrail.metric.ranking import mean_average_precision
from vitrail.objective.classify import Classify
from vitrail.training.world import World

Progress = Callable[[int, int], None]
Z95 = 1.645  # the normal quantile of a one-sided test at 5 %
TEMPERATURES = tuple(10 ** (power / 20) for power in range(-30, 21))


class Outputs(NamedTuple):
    """The logits and labels of every picture, in the order of the source."""

    logits: Float[Tensor, "n K"]
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"]
    indices: Int64[Tensor, " n"]
    names: tuple[str, ...]


class Score(NamedTuple):
    """Accuracy (or, of several labels a picture, mean average precision), the mean loss, and of how many pictures."""

    value: float
    loss: float
    n: int

    def better_than(self, other: Score | None) -> bool:
        """Higher by more than chance, or not lower by more and with a lower loss, which a few pictures tell better.

        A loss that is not finite is never better.
        """
        if not np.isfinite(self.loss):
            return False
        if other is None:
            return True
        noise = (other.value * (1 - other.value) / max(1, other.n)) ** 0.5
        if abs(self.value - other.value) > noise:
            return self.value > other.value
        return self.loss < other.loss


def infer(
    model: nn.Module, loader: Loader, world: World, *, bfloat16: bool = False, progress: Progress | None = None
) -> Outputs:
    """The model's outputs for all pictures of a loader, the same on every process."""
    was_training = model.training
    model.eval()
    rows, labels, indices = [], [], []
    names: list[str] = []
    num_seen = 0
    # Not in inference mode: what FSDP2 puts together there could not be trained on afterwards.
    with torch.no_grad(), torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
        for batch in loader.epoch():
            if len(batch.images) or world.size > 1:  # with an empty part too: parts of a model work in step
                rows.append(model(batch.images.to(world.device)).float().cpu())
                labels.append(batch.labels)
                indices.append(batch.indices)
                names += batch.names
            num_seen += len(batch.images)
            if progress is not None:
                progress(min(num_seen * world.size, len(loader.source)), len(loader.source))
    model.train(was_training)
    parts = world.all_gather((rows, labels, indices))
    called = [name for part in world.all_gather(names) for name in part]
    logits, targets, places = (
        torch.cat([tensor for part in parts for tensor in part[column]])
        if any(part[column] for part in parts)
        else torch.zeros(0)
        for column in range(3)
    )
    order = places.argsort()
    return Outputs(logits[order], targets[order], places[order], tuple(called[place] for place in order.tolist()))


def score_of(outputs: Outputs, *, multi_label: bool) -> Score:
    """The score of outputs: top-1 accuracy, or mean average precision where pictures have several labels."""
    num = len(outputs.logits)
    if not num:
        return Score(0.0, float("nan"), 0)
    loss = Classify(multi_label=multi_label).losses(outputs.logits, outputs.labels).double().mean().item()
    if not bool(outputs.logits.isfinite().all()):
        return Score(0.0, float("nan"), num)
    if multi_label:
        return Score(mean_average_precision(outputs.logits.numpy(), outputs.labels.bool().numpy()), loss, num)
    hits = outputs.logits.argmax(dim=1) == outputs.labels
    return Score(hits.double().mean().item(), loss, num)


def calibrated_losses(
    logits: Float[Tensor, "n K"], labels: Int64[Tensor, " n"] | Float[Tensor, "n K"], *, multi_label: bool
) -> Float[Tensor, " n"]:
    """The loss of each picture at the temperature that suits best: being less sure of itself is no fault here."""
    objective = Classify(multi_label=multi_label)
    at_each = [objective.losses(logits / heat, labels).double() for heat in TEMPERATURES]
    return min(at_each, key=lambda losses: losses.mean().item())


def paired_gain(before: Outputs, after: Outputs, *, multi_label: bool) -> tuple[float, float]:
    """How much lower the calibrated loss is on average over the same pictures, and the standard error of that."""
    assert torch.equal(before.indices, after.indices)
    gains = torch.sub(
        *(calibrated_losses(each.logits, each.labels, multi_label=multi_label) for each in (before, after))
    )
    return gains.mean().item(), gains.std().item() / max(1, len(gains)) ** 0.5
