"""The model and its objective as one module: what DDP, FSDP2, torch.compile, optimizers, EMA and checkpoints see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from vitrail.batch import Fields
from vitrail.contract import Objective

MODEL, OBJECTIVE = "model.", "objective."


class Learner(nn.Module):
    """`forward` computes the loss of each sample or, for evaluation, the answer to each."""

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        self.train(model.training)

    def forward(self, fields: Fields, evaluating: bool = False) -> Any:
        if evaluating:
            return self.objective.answers(self.model, fields)
        return self.objective(self.model, fields)

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        """The output layers of both."""
        return (*getattr(self.model, "heads", ()), *self.objective.heads)

    @property
    def frozen(self) -> tuple[nn.Module, ...]:
        """What the objective computes with and does not train."""
        return self.objective.frozen

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """All parameters by the names that checkpoints use: the model's own, and those of the objective with a prefix.

        A tied parameter comes once.
        """
        return ((stored_name(name), parameter) for name, parameter in self.named_parameters())

    def tensors(self) -> dict[str, Tensor]:
        """All parameters and buffers by the names that checkpoints use; a tied tensor comes once."""
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for name, tensor in self.state_dict(keep_vars=True).items():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[stored_name(name)] = tensor.detach()
        return found


def stored_name(name: str) -> str:
    """The name of a tensor in checkpoints."""
    return name.removeprefix(MODEL)
