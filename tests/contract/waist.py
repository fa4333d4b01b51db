"""Objectives and tasks that no recipe has yet: one that owns parameters, one with uneven units, one that is coupled."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from vitrail.batch import Fields
from vitrail.contract import Objective
from vitrail.metric.score import Metric, Score
from vitrail.objective.classify import Classify
from vitrail.request import make_splits, parse_request
from vitrail.run import directory
from vitrail.training import loop
from vitrail.training.task import Task
from vitrail.training.view import SilentView
from vitrail.training.world import World, init_world

MODEL = "vit_mu_patch4_8"
SHORT = (
    *("steps=6", "eval_every=3", "save_every=2", "batch_size=32", "ema=0.9", "precision=float32", "workers=0"),
    *("optimizer=adamw", "lr=0.003", "small_until=0.0", "warmup=0.0"),
)


class Decode(Objective):
    """Predicts the mean brightness of each cell with a decoder of its own; an image counts for 1, 2 or 3 of them."""

    READS = ("label",)
    METRIC = Metric("error", "squared error", higher=False)

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.decoder = nn.Sequential(nn.Linear(width, 16), nn.GELU(), nn.Linear(16, 1))
        self.register_buffer("num_calls", torch.zeros(()))

    @property
    def heads(self) -> tuple[nn.Module, ...]:
        return (self.decoder[2],)

    def units(self, fields: Fields) -> Tensor:
        return 1.0 + fields["label"] % 3

    def forward(self, model: Any, fields: Fields) -> Tensor:
        return self.losses(model, fields).sum(dim=1)

    def losses(self, model: Any, fields: Fields) -> Tensor:
        tokens = model.encode(model.tokenize(fields["image"]))
        predicted = self.decoder(tokens.cells)[..., 0].float()
        rows, columns = tokens.layout.grid
        bright = F.adaptive_avg_pool2d(fields["image"].mean(dim=1), (rows, columns)).flatten(1)
        counted = torch.arange(bright.shape[1], device=bright.device) < self.units(fields)[:, None]
        # A classifier's head must have a gradient too, or DDP waits for it.
        return (predicted - bright).square() * counted + 0.0 * model.classify(tokens).sum(dim=1, keepdim=True)

    def answers(self, model: Any, fields: Fields) -> Fields:
        return {"error": self.losses(model, fields).sum(dim=1), "units": self.units(fields)}

    def score(self, answers: Fields) -> Score:
        value = (answers["error"].double().sum() / answers["units"].double().sum()).item()
        return Score(self.METRIC, value, 0.0, value, len(answers["error"]))


class Pair(Objective):
    """Each image against the embeddings of all labels in the batch, over all processes."""

    READS = ("label",)
    METRIC = Metric("nce", "contrastive loss", higher=False)
    COUPLED = True

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10, 10)

    def losses(self, model: Any, fields: Fields) -> Tensor:
        images, words = model(fields["image"]).float(), self.words(fields["label"])
        own = torch.arange(len(images)) + self.rank * len(images)
        return F.cross_entropy(images @ self.gather(words).T, own, reduction="none")

    def forward(self, model: Any, fields: Fields) -> Tensor:
        return self.losses(model, fields)

    def answers(self, model: Any, fields: Fields) -> Fields:
        return {"logits": model(fields["image"]).float()}

    def score(self, answers: Fields) -> Score:
        value = answers["logits"].double().mean().item()
        return Score(self.METRIC, value, 0.0, value, len(answers["logits"]))


OBJECTIVES = {"decode": Decode, "pair": Pair, "classify": Classify}


def make_task(run: Path, data: str, words: tuple[str, ...], *, shard: bool = False, world: World | None = None) -> Task:
    """A task as `vitrail train` makes it, new or resumed."""
    world = world or init_world()
    request = parse_request(data, MODEL, None, "scratch", None, (*SHORT, *words), 0, None)
    if world.is_rank_zero:
        run.mkdir(parents=True, exist_ok=True)
    config = world.on_rank_zero(lambda: directory.stored_config(run)) or {"request": request.fields}
    splits = make_splits(request, SilentView(), world, config.setdefault("decisions", {}))
    if world.is_rank_zero:
        directory.write_config(run, config)
    return request.make_task(run, splits, SilentView(), world, config=config, shard=shard)


def train(
    run: str, data: str, objective: str, words: tuple[str, ...] = (), *, shard: bool = False, notes: str = ""
) -> dict[str, Any]:
    """Train one objective; return the loss of each step, and the digests of all that was trained."""
    task = make_task(Path(run), data, words, shard=shard)
    losses: list[float] = []
    original = loop.compute_gradients

    def watched(job: Any, batch: Any, step: int, stop: Any) -> Any:
        if notes:
            with Path(notes).open("a") as file:
                file.write(f"{job.run.name} {step}\n")
        result = original(job, batch, step, stop)
        losses.append(result[0])
        return result

    loop.compute_gradients = watched
    try:
        found = train_stages(task) if objective == "stages" else train_one(task, objective)
    finally:
        loop.compute_gradients = original
    return {"losses": losses, "bits": found}


def train_one(task: Task, name: str) -> str:
    """Train a fresh model with one objective."""
    model = task.new_model(num_classes=10)
    torch.manual_seed(1)
    objective = OBJECTIVES[name]()
    task.fit(model, objective)
    metrics = (task.folder / "metrics.jsonl").read_bytes() if task.world.is_rank_zero else b""
    return digest(metrics, model, objective)


def train_stages(task: Task) -> str:
    """A decoder first, then a classifier that starts from its encoder."""
    teacher, student = task.stage("teacher"), task.stage("student")
    first = task.new_model(num_classes=10)
    torch.manual_seed(1)
    objective = Decode()
    teacher.fit(first, objective)
    second = task.new_model(num_classes=10)
    second.load_state_dict(first.state_dict())
    student.fit(second)
    metrics = b"".join((stage.folder / "metrics.jsonl").read_bytes() for stage in (teacher, student))
    return digest(metrics, first, objective, second)


def digest(metrics: bytes, *modules: nn.Module) -> str:
    """One sum of the metrics and all tensors."""
    tensors = {
        f"{n}.{name}": value.contiguous() for n, m in enumerate(modules) for name, value in m.state_dict().items()
    }
    return hashlib.sha256(metrics + save(tensors)).hexdigest()


def train_in_fork(run: str, data: str, objective: str, words: tuple[str, ...], notes: str, result: str) -> None:
    """Train in a process that may be killed."""
    torch.set_num_threads(1)
    found = train(run, data, objective, words, notes=notes)
    Path(result).write_text(json.dumps(found))
