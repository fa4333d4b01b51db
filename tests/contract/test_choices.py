"""What a run chooses automatically for its time: image size, model, torch.compile, whether to scan the data."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tests.conftest import fill
from tests.contract.small_images import table_of, write_folder
from vitrail import create_model, load, save_weights
from vitrail.data.prepare.image import ImagePreparation
from vitrail.data.transform import Preprocess, scale_size
from vitrail.kind.classification import check_source
from vitrail.objective.classify import Classify
from vitrail.training import throughput
from vitrail.training.learner import Learner
from vitrail.training.recipe.image.splits import make_image_splits
from vitrail.training.settings import Settings
from vitrail.training.task import Task
from vitrail.training.view import SilentView
from vitrail.training.world import World
from vitrail.verbs.train import train

FAST = ("batch_size=12", "precision=float32", "cache_gb=0.0")


class RecordingView(SilentView):
    """Records remarks."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_folder(tmp_path / "data")
    return tmp_path / "data"


def decisions(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text())["decisions"]


@pytest.mark.parametrize(
    ("factor", "size"), [(1.0, (224, 160)), (0.75, (160, 112)), (0.5, (112, 80)), (0.01, (16, 16))]
)
def test_smaller_images_are_whole_cells(factor: float, size: tuple[int, int]) -> None:
    model = create_model("vit_mu_patch16_224", image_size=(224, 160))
    assert scale_size(model.spec.image_size, model.spec.layout.grid, factor) == size


@pytest.mark.parametrize(
    ("name", "side"),
    [("vit_nano_conv4_32", 24), ("resnet26_32", 32), ("perceiver_nano_28", 28), ("resnetv2_50x1_bit", 160)],
)
def test_networks_of_few_cells_and_of_pixels_start_at_full_size(name: str, side: int) -> None:
    model = create_model(name)
    prepare = ImagePreparation(preprocess=Preprocess(size=model.spec.image_size))
    assert prepare.reduced(0.75, model.spec.layout.grid).preprocess.size == (side, side)


@pytest.mark.parametrize(("speed", "size"), [(1e6, 224), (24.0, 144), (1.0, 112)])
def test_a_short_run_uses_smaller_images(
    speed: float, size: int, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs of 33 images in 1.2 seconds need 55 images per second."""
    save_weights(fill(create_model("vit_mu_patch16_224", num_classes=5), 0.2), tmp_path / "model.safetensors")
    monkeypatch.setattr(Task, "measure_speed", lambda task, model: speed)
    monkeypatch.setattr(Task, "seconds_left", lambda task: 1.2)
    view = RecordingView()
    options: dict[str, Any] = {"weights": tmp_path / "model.safetensors", "recipe": "finetune", "settings": FAST}
    train(images, **options, minutes=0.001, run=tmp_path / "run", view=view)
    assert load(tmp_path / "run").spec.image_size == (size, size)
    assert any(f"{size} x {size} pixels instead of 224" in line for line in view.said) == (size < 224)
    train(images, **options, model="vit_mu_patch16_224", minutes=0.001, run=tmp_path / "named")
    assert load(tmp_path / "named").spec.image_size == (224, 224), "what the user chose is not changed"


def test_a_long_run_from_scratch_uses_a_larger_model(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task, "measure_speed", lambda task, model: 1e6 if model.spec.width < 300 else 1e-3)
    train(images, recipe="scratch", minutes=0.01, run=tmp_path / "run", settings=FAST)
    assert decisions(tmp_path / "run")["model"] == load(tmp_path / "run").name == "vit_tiny_conv4_32"


def test_a_choice_is_made_once_for_a_run(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"recipe": "scratch", "minutes": 0.01, "run": tmp_path / "run", "settings": FAST}
    train(images, **options)
    (tmp_path / "run" / "result.json").unlink()
    monkeypatch.setattr(Task, "measure_speed", None)
    before = decisions(tmp_path / "run")
    train(images, **options)
    assert decisions(tmp_path / "run") == before
    assert before.keys() >= {"model", "scanned", "plan"}


def test_speed_is_measured_and_leaves_no_trace() -> None:
    model, labels = create_model("vit_mu_patch4_gap_16", num_classes=3), torch.arange(3).repeat(20)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    larger = create_model("vit_mu_patch4_gap_16", num_classes=3, image_size=64, depth=8)
    few, many = (
        throughput.measure_cost(
            Learner(each, Classify()),
            {"image": torch.randn(60, 3, side, side), "label": labels},
            World(),
            bfloat16=False,
        )
        for each, side in ((model, 16), (larger, 64))
    )
    assert few.samples_per_second(1) > many.samples_per_second(1) > 0
    assert 10 * few.bytes_per_sample < many.bytes_per_sample
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_machine_without_a_compiler_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda model, **_: refuse)
    learner = Learner(create_model("vit_mu_patch4_gap_16", num_classes=3), Classify())
    fields = {"image": torch.randn(6, 3, 16, 16), "label": torch.arange(6) % 3}
    assert not throughput.compile_is_faster(learner, fields, World(), bfloat16=False)


def test_torch_compile_is_tried_only_in_long_runs(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"recipe": "scratch", "model": "vit_mu_patch4_gap_16", "settings": (*FAST, "steps=2")}
    view = RecordingView()
    train(images, **options, run=tmp_path / "short", view=view)
    monkeypatch.setattr("vitrail.training.plan.MIN_COMPILE_SECONDS", 0.0)
    tried = []
    monkeypatch.setattr(
        throughput, "compile_is_faster", lambda *args, **options: tried.append(len(args[1]["image"])) or False
    )
    train(images, **options, run=tmp_path / "long", view=view)
    assert tried == [12]
    assert [line for line in view.said if "torch.compile" in line] == ["Trying torch.compile, because the run is long."]


def test_auto_checks_the_data_first(images: Path, tmp_path: Path) -> None:
    shutil.copy(images / "a" / "000.png", images / "b" / "copy.png")
    view = RecordingView()
    train(
        images,
        recipe="auto",
        model="vit_mu_patch4_gap_16",
        run=tmp_path / "run",
        settings=(*FAST, "steps=1"),
        view=view,
    )
    assert "The data check found 1 x contradiction, 1 x duplicate." in view.said[0]
    assert "1 x contradiction" in (tmp_path / "run" / "README.md").read_text()
    assert "1 groups of duplicates were kept together" in (tmp_path / "run" / "README.md").read_text()


def test_no_time_to_scan_all_images_is_remembered() -> None:
    table, view, stored = table_of([0, 1] * 20, side=64), RecordingView(), {}
    short = Settings(minutes=1e-9)
    first = make_image_splits(table, short, view, World(), require=check_source, check=True, decisions=stored)
    assert stored == {"scanned": False}
    assert "Not searching for duplicates" in view.said[0]
    again = make_image_splits(
        table, Settings(minutes=1000.0), view, World(), require=check_source, check=True, decisions=stored
    )
    assert (first.val.names, first.note) == (again.val.names, again.note)
