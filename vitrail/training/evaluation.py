"""Inference over a data source and its score, for any number of processes and uneven batches."""

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

ProgressCallback = Callable[[int, int], None]
Z_ONE_SIDED_95 = 1.645  # normal quantile of a one-sided test at 5 %
TEMPERATURES = tuple(10 ** (power / 20) for power in range(-30, 21))


class Outputs(NamedTuple):
    """The logits and labels of all images, in the order of the source."""

    logits: Float[Tensor, "n K"]
    labels: Int64[Tensor, " n"] | Float[Tensor, "n K"]
    indices: Int64[Tensor, " n"]
    names: tuple[str, ...]


class Score(NamedTuple):
    """Accuracy (mean average precision if multi-label), mean loss, and the number of images."""

    value: float
    loss: float
    n: int

    def better_than(self, other: Score | None) -> bool:
        """Whether this score is higher beyond its standard error, or within it and its loss is lower.

        The loss is less noisy on few images. A score whose loss is not finite is never better.
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
    model: nn.Module, loader: Loader, world: World, *, bfloat16: bool = False, progress: ProgressCallback | None = None
) -> Outputs:
    """Compute the model's outputs for all images of a loader; every process gets all of them."""
    was_training = model.training
    model.eval()
    rows, labels, indices = [], [], []
    names: list[str] = []
    num_done = 0
    # Not in inference mode: FSDP2 could not train the weights that it gathers there.
    with torch.no_grad(), torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16):
        for batch in loader.epoch():
            if len(batch.images) or world.size > 1:  # FSDP's collectives need empty batches too
                rows.append(model(batch.images.to(world.device)).float().cpu())
                labels.append(batch.labels)
                indices.append(batch.indices)
                names += batch.names
            num_done += len(batch.images)
            if progress is not None:
                progress(min(num_done * world.size, len(loader.source)), len(loader.source))
    model.train(was_training)
    parts = world.all_gather((rows, labels, indices))
    all_names = [name for part in world.all_gather(names) for name in part]
    logits, targets, positions = (
        torch.cat([tensor for part in parts for tensor in part[column]])
        if any(part[column] for part in parts)
        else torch.zeros(0)
        for column in range(3)
    )
    order = positions.argsort()
    return Outputs(logits[order], targets[order], positions[order], tuple(all_names[row] for row in order.tolist()))


def compute_score(outputs: Outputs, *, multi_label: bool) -> Score:
    """Compute top-1 accuracy, or mean average precision if multi-label."""
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
    """The loss of each image at the best temperature, so that under- or overconfidence does not count."""
    objective = Classify(multi_label=multi_label)
    candidates = [objective.losses(logits / temperature, labels).double() for temperature in TEMPERATURES]
    return min(candidates, key=lambda losses: losses.mean().item())


def paired_gain(before: Outputs, after: Outputs, *, multi_label: bool) -> tuple[float, float]:
    """The mean decrease of the calibrated loss on the same images, and its standard error."""
    assert torch.equal(before.indices, after.indices)
    gains = torch.sub(
        *(calibrated_losses(each.logits, each.labels, multi_label=multi_label) for each in (before, after))
    )
    return gains.mean().item(), gains.std().item() / max(1, len(gains)) ** 0.5
