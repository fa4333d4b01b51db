"""Evaluation: the answers of a model for a whole data source, for any number of processes and uneven batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from vitrail.batch import Fields
from vitrail.contract import Objective
from vitrail.data.loader import Loader
from vitrail.training.world import World

ProgressCallback = Callable[[int, int], None]
Z_ONE_SIDED_95 = 1.645  # normal quantile of a one-sided test at 5 %
EVALUATION_SEED = 0x5EED


@dataclass(frozen=True)
class Answers:
    """What an objective keeps of all samples, in the order of the source."""

    fields: Fields
    indices: Int64[Tensor, " n"]
    names: tuple[str, ...]

    def __getitem__(self, name: str) -> Tensor:
        return self.fields[name]

    @property
    def num(self) -> int:
        """The number of samples."""
        return len(self.indices)


def infer(
    learner: nn.Module,
    loader: Loader,
    world: World,
    *,
    bfloat16: bool = False,
    progress: ProgressCallback | None = None,
) -> Answers:
    """Compute the answers for all samples of a loader; every process gets all of them.

    Each batch has its own seed, so that an objective that draws at random, draws the same every time.
    """
    was_training = learner.training
    learner.eval()
    parts: list[Fields] = []
    indices: list[Tensor] = []
    names: list[str] = []
    num_done = 0
    # Not in inference mode: FSDP2 could not train the weights that it gathers there.
    with (
        torch.random.fork_rng(devices=()),
        torch.no_grad(),
        torch.autocast(world.device.type, torch.bfloat16, enabled=bfloat16),
    ):
        for number, batch in enumerate(loader.epoch()):
            if batch.num or world.size > 1:  # FSDP's collectives need empty batches too
                torch.manual_seed(EVALUATION_SEED + number * world.size + world.rank)
                answers = learner(batch.to(world.device).fields, evaluating=True)
                parts.append({name: tensor.cpu() for name, tensor in answers.items()})
                indices.append(batch.indices)
                names += batch.names
            num_done += batch.num
            if progress is not None:
                progress(min(num_done * world.size, len(loader.source)), len(loader.source))
    learner.train(was_training)
    return _gather(world, parts, indices, names)


def _gather(world: World, parts: list[Fields], indices: list[Tensor], names: list[str]) -> Answers:
    """Gather the answers of all processes, in the order of the source."""
    gathered = world.all_gather((parts, indices, names))
    all_parts = [part for each in gathered for part in each[0]]
    all_names = [name for each in gathered for name in each[2]]
    positions = torch.cat([tensor for each in gathered for tensor in each[1]] or [torch.zeros(0, dtype=torch.int64)])
    order = positions.argsort()
    fields = {
        name: torch.cat([part[name] for part in all_parts])[order] for name in (all_parts[0] if all_parts else ())
    }
    return Answers(fields, positions[order], tuple(all_names[row] for row in order.tolist()))


def paired_gain(before: Answers, after: Answers, objective: Objective) -> tuple[float, float]:
    """The mean decrease of the loss on the same samples, and its standard error."""
    assert torch.equal(before.indices, after.indices)
    gains = torch.sub(*(objective.sample_losses(each.fields) for each in (before, after)))
    return gains.mean().item(), gains.std().item() / max(1, len(gains)) ** 0.5


def describe_gain(what: str, gain: float, noise: float) -> str:
    """A decrease in words: calibrated loss lower by 0.138 +- 0.037."""
    return f"{what} {'lower' if gain >= 0 else 'higher'} by {abs(gain):.3f} +- {noise:.3f}"
