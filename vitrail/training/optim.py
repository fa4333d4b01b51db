"""The optimizers, and which parameter is moved by which, how fast and with how much decay.

AdamW (arXiv 1711.05101), SGD with momentum (the paper's choice for fine-tuning) and Muon (Jordan et al. 2024,
kellerjordan.github.io/posts/muon), which makes each matrix's step orthogonal. `torch.optim.Muon` takes matrices only;
the convolutions of a stem, seen as matrices, are where it helps most, so it is written out here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.machine import PAYS, bfloat16_is_faster, fastest
from vitrail.training import shard

Kind = Literal["adamw", "sgd", "muon"]
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
BATCH_ELEMENTS = 2**22  # of matrices that are orthogonalised at once
MOMENTUM = {"sgd": 0.9, "muon": 0.95}
BETAS = (0.9, 0.99)
ADAM_SHARE = 0.15
"""With Muon, the learning rate of AdamW for what is no matrix, as a share of Muon's."""
NUMBERED = re.compile(r"^(?:.*\.)?(?:blocks|stages)\.\d+\.(?:blocks\.\d+\.)?")


class Muon(torch.optim.Optimizer):
    """Momentum, then the nearest orthogonal matrix to it as the step; for matrices and convolutions.

    Matrices of one shape are orthogonalised together: a small model would otherwise spend its time on calls. `dtype` is
    the number format of that iteration, whichever is faster on this machine (`faster_dtype`).
    """

    def __init__(
        self, params: Iterable[Any], *, lr: float, weight_decay: float = 0.0, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.dtype = dtype

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step for every parameter that has a gradient."""
        assert closure is None, "the loop computes the gradient itself"
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
            momenta = [self.state[parameter]["momentum_buffer"] for parameter in parameters]
            torch._foreach_mul_(momenta, MOMENTUM["muon"])
            torch._foreach_add_(momenta, gradients)
            nesterov = torch._foreach_add(gradients, momenta, alpha=MOMENTUM["muon"])  # noqa: SLF001 - the public optimizers use it too
            torch._foreach_mul_(parameters, 1.0 - group["lr"] * group["weight_decay"])
            matrices = [shard.whole(each).flatten(1) for each in nesterov]
            for parameter, matrix in zip(parameters, orthogonalise(matrices, self.dtype), strict=True):
                # A tall matrix has more outputs: its step is as large in each of them as a square one's.
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                step = shard.like(matrix.view(parameter.shape), parameter)
                parameter.add_(step, alpha=-group["lr"] * scale)
        return None


def orthogonalise(matrices: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Each matrix's nearest one with orthonormal rows or columns, approximately; those of one shape in one batch."""
    batches: dict[tuple[int, int], list[int]] = {}
    for place, matrix in enumerate(matrices):
        rows, columns = sorted(matrix.shape)
        batches.setdefault((rows, columns), []).append(place)
    results: list[Tensor] = list(matrices)
    for (rows, columns), members in batches.items():
        at_once = max(1, BATCH_ELEMENTS // (rows * columns))
        for start in range(0, len(members), at_once):
            places = members[start : start + at_once]
            tall = [matrices[place].shape[0] > rows for place in places]
            wide = [
                matrices[place].T if turned else matrices[place] for place, turned in zip(places, tall, strict=True)
            ]
            for place, turned, result in zip(places, tall, newton_schulz(torch.stack(wide), dtype), strict=True):
                results[place] = result.T if turned else result
    return results


def newton_schulz(wide: Float[Tensor, "n rows columns"], dtype: torch.dtype) -> Float[Tensor, "n rows columns"]:
    """Bring all singular values of a batch of matrices, none taller than wide, near one in five iterations."""
    a, b, c = NEWTON_SCHULZ
    x = wide.to(dtype)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.to(wide.dtype)


def faster_dtype(matrices: Sequence[Tensor]) -> torch.dtype:
    """The number format in which these matrices are orthogonalised faster; float32 unless bfloat16 clearly is."""
    device = matrices[0].device
    if not bfloat16_is_faster(device):
        return torch.float32
    plain, short = (
        fastest(partial(orthogonalise, matrices, dtype), device) for dtype in (torch.float32, torch.bfloat16)
    )
    return torch.bfloat16 if plain > PAYS * short else torch.float32


def layer_of(names: Sequence[str]) -> dict[str, int]:
    """How deep each parameter lies, counted from the input: stem and positions 0, the first block 1, and so on.

    What follows the blocks (the last norm, the head) counts as one more.
    """
    depth, layers, last = 0, {}, ""
    for name in names:
        match = NUMBERED.match(name)
        if match is not None and match[0] != last:
            depth, last = depth + 1, match[0]
        layers[name] = depth if match is not None else depth + (1 if last else 0)
    return layers


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter maps vectors to vectors: not a norm, bias, token or position table."""
    return parameter.ndim >= 2 and name.endswith("weight")


def matrices_of(model: nn.Module) -> list[Tensor]:
    """The matrices that Muon would move."""
    return [
        parameter.detach().flatten(1)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and moved_by_muon(name, parameter)
    ]


def moved_by_muon(name: str, parameter: Tensor) -> bool:
    """Whether Muon moves a parameter: a matrix, but not the head's."""
    return is_matrix(name, parameter) and not name.startswith("head")


def make_optimizers(
    model: nn.Module,
    kind: Kind,
    *,
    lr: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    muon_dtype: torch.dtype = torch.float32,
) -> list[torch.optim.Optimizer]:
    """The optimizers of a model's parameters; each group remembers its peak learning rate as `peak`.

    With `layer_decay` below one, a layer learns so many times slower than the one above it (arXiv 2106.08254). Norms,
    biases, tokens and positions have no weight decay. Muon moves the matrices but for the head, AdamW the rest.
    """
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    layers = layer_of([name for name, _ in model.named_parameters()])
    top = max(layers.values())
    groups: dict[tuple[bool, float, float], list[Tensor]] = {}
    for name, parameter in named:
        matrix = is_matrix(name, parameter)
        by_muon = kind == "muon" and moved_by_muon(name, parameter)
        peak = lr * layer_decay ** (top - layers[name]) * (ADAM_SHARE if kind == "muon" and not by_muon else 1.0)
        decay = weight_decay if matrix and (by_muon or kind != "muon") else 0.0
        groups.setdefault((by_muon, peak, decay), []).append(parameter)
    made = {
        by_muon: [
            {"params": parameters, "lr": peak, "peak": peak, "weight_decay": decay}
            for (muon, peak, decay), parameters in groups.items()
            if muon == by_muon
        ]
        for by_muon in (True, False)
    }
    optimizers: list[torch.optim.Optimizer] = [Muon(made[True], lr=lr, dtype=muon_dtype)] if made[True] else []
    if made[False] and kind == "sgd":
        optimizers.append(torch.optim.SGD(made[False], lr=lr, momentum=MOMENTUM["sgd"]))
    elif made[False]:
        optimizers.append(torch.optim.AdamW(made[False], lr=lr, betas=BETAS))
    return optimizers


def set_rate(optimizers: Sequence[torch.optim.Optimizer], share: float) -> None:
    """Each group at this share of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share


def read_state(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """What the optimizers remember, each tensor under its parameter's name."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}:{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def write_state(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Let the optimizers remember what was read from them once."""
    parameters = dict(model.named_parameters())
    for optimizer in optimizers:
        optimizer.state.clear()
    owners = {
        parameter: optimizer
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    for name, tensor in tensors.items():
        parameter_name, _, key = name.rpartition(":")
        parameter = parameters[parameter_name]
        # AdamW keeps its count of steps on the CPU; everything else lives where its parameter does.
        value = tensor.clone() if key == "step" else shard.like(tensor, parameter)
        owners[parameter].state[parameter][key] = value
