"""Optimizers, and the learning rate and weight decay of each parameter.

AdamW (arXiv 1711.05101), SGD with momentum (the paper's choice for fine-tuning) and Muon (Jordan et al. 2024,
kellerjordan.github.io/posts/muon), which orthogonalises the update of each matrix. `torch.optim.Muon` accepts only
matrices; it helps most for the convolutions of a stem, flattened to matrices, so it is implemented here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.machine import CLEARLY, bfloat16_is_faster, fastest
from vitrail.training import shard
from vitrail.training.learner import OBJECTIVE, Learner

OptimizerName = Literal["adamw", "sgd", "muon"]
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NUM_ITERATIONS = 5
BATCH_ELEMENTS = 2**22  # of matrices orthogonalised together
MOMENTUM = {"sgd": 0.9, "muon": 0.95}
BETAS = (0.9, 0.99)
ADAM_LR_FRACTION = 0.15
"""With Muon, AdamW's learning rate for the other parameters, as a fraction of Muon's."""
BLOCK_PREFIX = re.compile(r"^(?:.*\.)?(?:blocks|stages)\.\d+\.(?:blocks\.\d+\.)?")


class Muon(torch.optim.Optimizer):
    """Momentum, then the nearest orthogonal matrix as the update; for matrices and convolutions.

    Matrices of the same shape are orthogonalised in a batch: a small model would otherwise be bound by call overhead.
    `dtype` is the number format of that iteration (see `choose_muon_dtype`).
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
        assert closure is None, "the loop computes the gradients"
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
            matrices = [shard.full_tensor(each).flatten(1) for each in nesterov]
            for parameter, matrix in zip(parameters, orthogonalise(matrices, self.dtype), strict=True):
                # Scaled so that each output of a tall matrix moves as far as one of a square matrix.
                scale = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                update = shard.distribute_like(matrix.view(parameter.shape), parameter)
                parameter.add_(update, alpha=-group["lr"] * scale)
        return None


def orthogonalise(matrices: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """Approximate each matrix's nearest one with orthonormal rows or columns, in batches of the same shape."""
    batches: dict[tuple[int, int], list[int]] = {}
    for index, matrix in enumerate(matrices):
        rows, columns = sorted(matrix.shape)
        batches.setdefault((rows, columns), []).append(index)
    results: list[Tensor] = list(matrices)
    for (rows, columns), members in batches.items():
        at_once = max(1, BATCH_ELEMENTS // (rows * columns))
        for start in range(0, len(members), at_once):
            batch = members[start : start + at_once]
            tall = [matrices[index].shape[0] > rows for index in batch]
            wide = [
                matrices[index].T if transposed else matrices[index]
                for index, transposed in zip(batch, tall, strict=True)
            ]
            for index, transposed, result in zip(batch, tall, newton_schulz(torch.stack(wide), dtype), strict=True):
                results[index] = result.T if transposed else result
    return results


def newton_schulz(wide: Float[Tensor, "n rows columns"], dtype: torch.dtype) -> Float[Tensor, "n rows columns"]:
    """Bring the singular values of a batch of wide (or square) matrices near one, in five iterations."""
    a, b, c = NEWTON_SCHULZ
    x = wide.to(dtype)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(NUM_ITERATIONS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.to(wide.dtype)


def choose_muon_dtype(matrices: Sequence[Tensor]) -> torch.dtype:
    """Choose the number format that orthogonalises these matrices faster: float32 unless bfloat16 clearly is."""
    device = matrices[0].device
    if not bfloat16_is_faster(device):
        return torch.float32
    plain, short = (
        fastest(partial(orthogonalise, matrices, dtype), device) for dtype in (torch.float32, torch.bfloat16)
    )
    return torch.bfloat16 if plain > CLEARLY * short else torch.float32


def count_layers(names: Sequence[str]) -> dict[str, int]:
    """Number the layer of each parameter from the input: 0 for stem and positions, 1 for the first block, and so on.

    What follows the blocks (the final norm, the head, the objective) is the last layer.
    """
    depth, layers, last = 0, {}, ""
    for name in names:
        if name.startswith(OBJECTIVE):
            layers[name] = depth + (1 if last else 0)
            continue
        match = BLOCK_PREFIX.match(name)
        if match is not None and match[0] != last:
            depth, last = depth + 1, match[0]
        layers[name] = depth if match is not None else depth + (1 if last else 0)
    return layers


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter maps vectors to vectors: not a norm, bias, token or position table."""
    return parameter.ndim >= 2 and name.endswith("weight")


def find_muon_matrices(learner: Learner) -> list[Tensor]:
    """The matrices that Muon would update."""
    outer = find_outer_layers(learner)
    return [
        parameter.detach().flatten(1)
        for name, parameter in learner.named_weights()
        if parameter.requires_grad and is_matrix(name, parameter) and parameter not in outer
    ]


def find_outer_layers(learner: Learner) -> set[Tensor]:
    """The parameters of embeddings and heads, whose rows are looked up or read one by one: not for Muon."""
    embeddings = (module for module in learner.modules() if isinstance(module, nn.Embedding))
    return {parameter for module in (*embeddings, *learner.heads) for parameter in module.parameters()}


def find_embeddings(learner: Learner) -> set[Tensor]:
    """The tables of embeddings, which do not decay."""
    return {module.weight for module in learner.modules() if isinstance(module, nn.Embedding)}


def make_optimizers(
    learner: Learner,
    kind: OptimizerName,
    *,
    lr: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    muon_dtype: torch.dtype = torch.float32,
) -> list[torch.optim.Optimizer]:
    """Create the optimizers; each parameter group stores its peak learning rate as `peak`.

    `layer_decay` multiplies the learning rate once for each layer above (arXiv 2106.08254). Norms, biases, tokens,
    positions and embeddings have no weight decay. Muon updates all matrices but heads and embeddings, AdamW the rest.
    """
    named = [(name, parameter) for name, parameter in learner.named_weights() if parameter.requires_grad]
    layers = count_layers([name for name, _ in learner.named_weights()])
    outer, embeddings, top = find_outer_layers(learner), find_embeddings(learner), max(layers.values())
    groups: dict[tuple[bool, float, float], list[Tensor]] = {}
    for name, parameter in named:
        matrix = is_matrix(name, parameter) and parameter not in embeddings
        by_muon = kind == "muon" and matrix and parameter not in outer
        peak = lr * layer_decay ** (top - layers[name]) * (ADAM_LR_FRACTION if kind == "muon" and not by_muon else 1.0)
        decay = weight_decay if matrix and (by_muon or kind != "muon") else 0.0
        groups.setdefault((by_muon, peak, decay), []).append(parameter)
    param_groups = {
        by_muon: [
            {"params": parameters, "lr": peak, "peak": peak, "weight_decay": decay}
            for (muon, peak, decay), parameters in groups.items()
            if muon == by_muon
        ]
        for by_muon in (True, False)
    }
    optimizers: list[torch.optim.Optimizer] = (
        [Muon(param_groups[True], lr=lr, dtype=muon_dtype)] if param_groups[True] else []
    )
    if param_groups[False] and kind == "sgd":
        optimizers.append(torch.optim.SGD(param_groups[False], lr=lr, momentum=MOMENTUM["sgd"]))
    elif param_groups[False]:
        optimizers.append(torch.optim.AdamW(param_groups[False], lr=lr, betas=BETAS))
    return optimizers


def scale_lr(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> None:
    """Set each group's learning rate to this factor of its peak."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * factor


def get_state(optimizers: Sequence[torch.optim.Optimizer], learner: Learner) -> dict[str, Tensor]:
    """The state of the optimizers: tensors by parameter name and key."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in learner.named_weights()}
    return {
        f"{names[parameter]}:{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
        if value is not None
    }


def load_state(optimizers: Sequence[torch.optim.Optimizer], learner: Learner, tensors: dict[str, Tensor]) -> None:
    """Restore the state that `get_state` returned."""
    parameters = dict(learner.named_weights())
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
        # AdamW's step count stays on the CPU; everything else is on the device of its parameter.
        value = tensor.clone() if key == "step" else shard.distribute_like(tensor, parameter)
        owners[parameter].state[parameter][key] = value
