"""The contrastive objective: over processes, in evaluation, and on modalities that have something in common."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.conftest import ROOT
from tests.contract.contrast_worker import JOBS, NUM, compute
from tests.contract.small_vatt import IMAGE, SOUND, new_contrast, new_fields, new_vatt
from vitrail.batch import Fields, split_fields
from vitrail.errors import SpecError
from vitrail.metric import retrieval
from vitrail.objective import contrast
from vitrail.objective.contrast import NO_TEXT, Contrast, hash_texts
from vitrail.training.learner import Learner
from vitrail.training.plan import check_parts
from vitrail.training.world import World

WORKER = Path(__file__).with_name("contrast_worker.py")
PATIENCE = 150.0
PAIR = {"outputs": (("image", "common"), ("sound", "common")), "pairs": ((0, 1),)}
TEXT_PAIR = {"outputs": (("image", "common"), ("text", "common")), "pairs": ((0, 1),), "text": "text"}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what two processes computed."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(WORKER), str(folder)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("shard", [False, True])
def test_two_processes_equal_one(job: str, shard: bool, two_ranks: Path) -> None:
    """In losses and gradients, with blocks that are shared, and texts that are missing; copied and sharded."""
    alone, together = compute(World(), **JOBS[job]), load_file(two_ranks / f"{job}-{shard}.safetensors")
    assert alone.keys() == together.keys()
    assert alone["losses"].shape == (NUM,)
    for name, expected in alone.items():
        assert torch.allclose(together[name], expected, rtol=0, atol=1e-6), name


def test_a_batch_is_never_split() -> None:
    model, fields = new_vatt().eval(), new_fields(6)
    objective = new_contrast(model)
    with torch.no_grad():
        parts = torch.cat([objective(model, part) for part in split_fields(fields, 2)])
        assert not torch.allclose(objective(model, fields), parts, atol=0.1)
    with pytest.raises(SpecError, match=r"compares the samples of a batch[\s\S]*accumulate=2"):
        check_parts(Learner(model, objective), 2)


def test_a_batch_of_one_and_of_none() -> None:
    model, fields = new_vatt(), new_fields(3)
    objective = new_contrast(model)
    one = objective(model, {name: tensor[:1] for name, tensor in fields.items()})
    assert one.tolist() == pytest.approx([0.0], abs=1e-6)
    assert objective(model, {name: tensor[:0] for name, tensor in fields.items()}).shape == (0,)


def test_the_loss_is_float32_under_autocast() -> None:
    model, fields = new_vatt(), new_fields(6)
    objective = new_contrast(model)
    expected = objective(model, fields)
    with torch.autocast("cpu", torch.bfloat16):
        losses = objective(model, fields)
        answers = objective.answers(model, fields)
    assert losses.dtype == answers["embedding"].dtype == torch.float32
    assert torch.allclose(losses, expected, rtol=0.1, atol=0.1)


def test_answers_do_not_depend_on_batches() -> None:
    """Nor do the score and the losses of samples, which compare all of them."""
    model, fields = new_vatt().eval(), new_fields(9, 3)
    objective = new_contrast(model)
    with torch.no_grad():
        whole = objective.answers(model, fields)
        parts = [objective.answers(model, part) for part in split_fields(fields, 10)]
    joined = {name: torch.cat([part[name] for part in parts]) for name in whole}
    assert torch.equal(joined["text"], whole["text"])
    assert objective.score(joined)[1:] == pytest.approx(objective.score(whole)[1:], abs=1e-5)
    assert torch.allclose(objective.sample_losses(joined), objective.sample_losses(whole), atol=1e-5)


def test_the_loss_of_an_evaluation_is_that_of_one_batch() -> None:
    model, fields = new_vatt().eval(), new_fields(6)
    objective = new_contrast(model)
    with torch.no_grad():
        losses = objective.sample_losses(objective.answers(model, fields))
        assert torch.allclose(losses, objective(model, fields), atol=1e-6)


def test_the_first_text_that_is_there_counts() -> None:
    model, fields = new_vatt().eval(), new_fields(7, 3)
    objective = new_contrast(model)
    with torch.no_grad():
        found = objective.answers(model, fields)
        texts = model.embed("text", fields["text"])["coarse"]
    assert found["embedding"].shape == (7, 4, 16)
    assert torch.allclose(found["embedding"][0, 3], texts[0, 1]), "its first is missing"
    assert torch.allclose(found["embedding"][1, 3], texts[1, 0])
    assert found["text"][0] == hash_texts(fields["text"][:1, 1], 0)
    assert (found["text"] == NO_TEXT).tolist() == [False] * 6 + [True]
    numbers = {score.metric.title: score.n for score in objective.monitor(found).scores}
    assert numbers == {"image to sound": 7, "sound to image": 7, "image to text": 6, "text to image": 6}


def test_hashes_of_texts() -> None:
    texts = torch.tensor([[5, 6, 7, 0], [5, 6, 7, 0], [6, 5, 7, 0], [5, 6, 0, 0], [0, 0, 0, 0], [5, 6, 7, 7]])
    found = hash_texts(texts, 0)
    assert found[0] == found[1]
    assert len(found.unique()) == 5
    assert found[4] == NO_TEXT
    assert torch.equal(hash_texts(texts[:5, :3], 0), found[:5]), "padding does not count"
    every = torch.cartesian_prod(torch.arange(1, 60), torch.arange(1, 60), torch.arange(0, 30))
    assert len(hash_texts(every, 0).unique()) == len(every)


def unit_vectors(angles: list[float]) -> Tensor:
    """In the plane, at these angles in degrees."""
    radians = torch.tensor(angles).deg2rad()
    return torch.stack([radians.cos(), radians.sin()], dim=1)


def plane(one: list[float], other: list[float], **more: Tensor) -> Fields:
    """Answers with two embeddings a sample."""
    return {"embedding": torch.stack([unit_vectors(one), unit_vectors(other)], dim=1), **more}


def test_recall_counts_both_directions() -> None:
    answers = plane([0, 90, 180, 200], [10, 80, 185, 90])
    objective = Contrast(**PAIR)  # type: ignore[arg-type]
    scores = {score.metric.name: score.value for score in objective.monitor(answers).scores}
    # The images at 90 and 200 find the sounds at 90 and 185; the sound at 90 finds the image at 90.
    assert scores == {"image_to_sound": 0.5, "sound_to_image": 0.75}
    score = objective.score(answers)
    assert score.value == 0.625
    assert score.metric == objective.metric
    assert score.metric.higher
    assert score.error == pytest.approx(torch.tensor([1.0, 0.5, 1.0, 0.0]).std().item() / 2)
    assert score.n == 4


def test_the_standard_error_is_that_of_samples() -> None:
    """Not of directions, which go wrong together."""
    hits = torch.tensor([True, True, False, True])
    both = [retrieval.Hits(hits, torch.ones(4, dtype=torch.bool))] * 2
    assert retrieval.mean_recall(both) == pytest.approx((0.75, 0.5 / 2))
    half = retrieval.Hits(torch.tensor([True, False, False, False]), torch.tensor([True, True, False, False]))
    assert retrieval.mean_recall([half])[0] == half.recall == 0.5
    assert retrieval.mean_recall([half, both[0]])[0] == pytest.approx((0.5 + 0.75) / 2)
    none = retrieval.Hits(torch.zeros(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool))
    assert retrieval.mean_recall([none, both[0]])[0] == 0.75


def test_the_same_label_or_text_is_a_hit() -> None:
    one, other = [0.0, 10.0, 180.0], [9.0, 0.0, 180.0]  # the first two find each other
    assert Contrast(**PAIR).score(plane(one, other)).value == pytest.approx(1 / 3)  # type: ignore[arg-type]
    labels = torch.tensor([4, 4, 2])
    assert Contrast(**PAIR).score(plane(one, other, label=labels)).value == 1.0  # type: ignore[arg-type]
    objective = Contrast(**TEXT_PAIR)  # type: ignore[arg-type]
    assert objective.score(plane(one, other, text=torch.tensor([8, 8, 9]))).value == 1.0
    assert objective.score(plane(one, other, text=torch.tensor([7, 8, 9]))).value == pytest.approx(1 / 3)
    missing = plane(one, other, text=torch.tensor([7, NO_TEXT, 9]))
    scores = {score.metric.title: (score.value, score.n) for score in objective.monitor(missing).scores}
    # A missing text is nobody's neighbour; its image may still be the wrong answer to another text.
    assert scores == {"image to text": (1.0, 2), "text to image": (0.5, 2)}


def test_a_broken_model_has_no_score() -> None:
    answers = plane([0.0, 10.0], [0.0, math.nan])
    assert math.isnan(Contrast(**PAIR).score(answers).loss)  # type: ignore[arg-type]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"embedding": nn.functional.normalize(torch.randn(50, 4, 16), dim=2), "text": torch.arange(50) // 2}
    objective = new_contrast(new_vatt())
    expected, losses = objective.score(answers), objective.sample_losses(answers)
    monkeypatch.setattr(retrieval, "BLOCK_ROWS", 7)
    monkeypatch.setattr(contrast, "BLOCK_ROWS", 7)
    assert objective.score(answers)[1:] == pytest.approx(expected[1:], abs=1e-6)
    assert torch.allclose(objective.sample_losses(answers), losses, atol=1e-5)


def toy_modalities(num: int, seed: int) -> Fields:
    """Images and sounds that are two views of the same few numbers, with noise."""
    maps, rng = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    factor = torch.randn(num, 6, generator=rng)
    sizes = {"image": (3, 16, 16), "sound": (1, 64)}
    views = {name: torch.randn(6, *size, generator=maps) for name, size in sizes.items()}
    return {
        name: torch.einsum("bk,k...->b...", factor, view) / 2 + 0.3 * torch.randn(num, *sizes[name], generator=rng)
        for name, view in views.items()
    }


@pytest.mark.parametrize("shared", [False, True])
def test_modalities_with_a_common_factor_align(shared: bool) -> None:
    """A few dozen steps; then a sound finds its image among 200, which chance does once in 200 times."""
    model = new_vatt(IMAGE, SOUND, shared=shared, drop_token_rate=0.25)
    objective = new_contrast(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def evaluate() -> float:
        with torch.no_grad():
            score = objective.score(objective.answers(model.eval(), toy_modalities(200, seed=1)))
        model.train()
        return score.value

    before = evaluate()
    for step in range(80):
        optimizer.zero_grad()
        objective(model, toy_modalities(64, seed=2 + step)).mean().backward()
        optimizer.step()
    assert before < 0.05
    assert evaluate() > 0.3
