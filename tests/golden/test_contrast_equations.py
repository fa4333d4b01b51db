"""NCE and MIL-NCE against the equations of arXiv 2104.11178 (2 and 3) and 1912.06430 (1), written out term by term."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vitrail.objective.contrast import nce_losses

TEMPERATURE = 0.07
NUM, WIDTH = 7, 5


def written_out(one: NDArray[np.float64], other: NDArray[np.float64], real: NDArray[np.bool_]) -> list[float]:
    """The loss of each sample, from all its pairs."""
    num, num_candidates = real.shape

    def weight(i: int, j: int, p: int) -> float:
        return float(np.exp(one[i] @ other[j, p] / TEMPERATURE))

    losses = []
    for i in range(num):
        positives = sum(weight(i, i, p) for p in range(num_candidates) if real[i, p])
        negatives = 0.0
        for j in range(num):
            for p in range(num_candidates):
                if j != i and real[j, p]:
                    negatives += weight(i, j, p)
                if j != i and real[i, p]:
                    negatives += weight(j, i, p)
        losses.append(-np.log(positives / (positives + negatives)) if positives else 0.0)
    return losses


def embeddings(num_candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(num_candidates)
    one = torch.randn(NUM, WIDTH, dtype=torch.float64)
    other = one[:, None] + torch.randn(NUM, num_candidates, WIDTH, dtype=torch.float64)
    return F.normalize(one, dim=-1).requires_grad_(), F.normalize(other, dim=-1).requires_grad_()


@pytest.mark.parametrize("num_candidates", [1, 4])
@pytest.mark.parametrize("missing", [False, True])
def test_the_losses_are_the_papers(num_candidates: int, missing: bool) -> None:
    one, other = embeddings(num_candidates)
    real = torch.rand(NUM, num_candidates) > 0.4 if missing else torch.ones(NUM, num_candidates, dtype=torch.bool)
    if missing:
        real[2] = False
    losses = nce_losses(one, other, real, first=0, num=NUM, temperature=TEMPERATURE)
    expected = written_out(one.detach().numpy(), other.detach().numpy(), real.numpy())
    assert losses.tolist() == pytest.approx(expected, abs=1e-6)
    losses.sum().backward()
    for embedding in (one, other):
        assert embedding.grad is not None
        assert bool(embedding.grad.isfinite().all())
    assert not bool(other.grad[~real].any()), "a missing candidate pulls and pushes nothing"  # type: ignore[index]
    if missing:
        assert losses[2] == 0
        assert bool(one.grad[2].any()) == bool(real.any()), "its other modality is still a negative of the others"  # type: ignore[index]


@pytest.mark.parametrize("num_candidates", [1, 3])
def test_rows_of_a_part_are_those_of_the_whole(num_candidates: int) -> None:
    """As on each of several processes, and in the blocks of an evaluation."""
    one, other = embeddings(num_candidates)
    real = torch.rand(NUM, num_candidates) > 0.3
    options = {"temperature": TEMPERATURE}
    whole = nce_losses(one, other, real, first=0, num=NUM, **options)  # type: ignore[arg-type]
    parts = [nce_losses(one, other, real, first=first, num=num, **options) for first, num in ((0, 3), (3, 0), (3, 4))]  # type: ignore[arg-type]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-12)


@pytest.mark.parametrize("has_text", [True, False])
def test_a_batch_of_one_has_no_loss(has_text: bool) -> None:
    one, other = (embedding[:1].detach().requires_grad_() for embedding in embeddings(3))
    real = torch.full((1, 3), has_text)
    losses = nce_losses(one, other, real, first=0, num=1, temperature=TEMPERATURE)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([0.0], abs=1e-12)
    assert bool(one.grad.isfinite().all() and other.grad.isfinite().all())  # type: ignore[union-attr]


def test_a_high_similarity_is_finite_at_a_low_temperature() -> None:
    one, other = (embedding.detach().float().requires_grad_() for embedding in embeddings(1))
    real = torch.ones(NUM, 1, dtype=torch.bool)
    losses = nce_losses(one, other, real, first=0, num=NUM, temperature=1e-3)
    losses.sum().backward()
    assert bool(losses.isfinite().all() and one.grad.isfinite().all())  # type: ignore[union-attr]


def test_bfloat16_does_not_round_the_similarities() -> None:
    one, other = (embedding.detach().float() for embedding in embeddings(2))
    real = torch.ones(NUM, 2, dtype=torch.bool)
    expected = nce_losses(one, other, real, first=0, num=NUM, temperature=TEMPERATURE)
    with torch.autocast("cpu", torch.bfloat16):
        losses = nce_losses(one, other, real, first=0, num=NUM, temperature=TEMPERATURE)
    assert losses.dtype == torch.float32
    assert torch.equal(losses, expected)
