"""What a run chooses by itself, from the time that it has: resolution, size, torch.compile, a look at the data."""

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
from vitrail.objective.classify import Classify
from vitrail.training import throughput
from vitrail.training.settings import Settings
from vitrail.training.splits import make_splits
from vitrail.training.task import Task
from vitrail.training.view import Silent
from vitrail.training.world import World
from vitrail.verbs.train import train

FAST = ("batch_size=12", "precision=float32", "cache_gb=0.0")


class Heard(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    write_folder(tmp_path / "data")
    return tmp_path / "data"


def chosen(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text())["decisions"]


@pytest.mark.parametrize(
    ("factor", "size"), [(1.0, (224, 160)), (0.75, (160, 112)), (0.5, (112, 80)), (0.01, (16, 16))]
)
def test_smaller_pictures_are_whole_cells(factor: float, size: tuple[int, int]) -> None:
    model = create_model("vit_mu_patch16_224", image_size=(224, 160))
    assert throughput.smaller(model.spec, factor) == size


@pytest.mark.parametrize(("speed", "size"), [(1e6, 224), (24.0, 144), (1.0, 112)])
def test_a_short_run_learns_from_smaller_pictures(
    speed: float, size: int, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.2 seconds for twice 33 pictures ask for 55 a second."""
    save_weights(fill(create_model("vit_mu_patch16_224", num_classes=5), 0.2), tmp_path / "model.safetensors")
    monkeypatch.setattr(Task, "speed_of", lambda task, model: speed)
    monkeypatch.setattr(Task, "seconds_left", lambda task: 1.2)
    heard = Heard()
    told: dict[str, Any] = {"weights": tmp_path / "model.safetensors", "recipe": "finetune", "settings": FAST}
    train(pictures, **told, minutes=0.001, run=tmp_path / "run", view=heard)
    assert load(tmp_path / "run").spec.image_size == (size, size)
    assert any(f"{size} x {size} pixels instead of 224" in line for line in heard.said) == (size < 224)
    train(pictures, **told, model="vit_mu_patch16_224", minutes=0.001, run=tmp_path / "named")
    assert load(tmp_path / "named").spec.image_size == (224, 224), "what the user named is kept"


def test_a_long_run_from_scratch_takes_a_larger_model(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Task, "speed_of", lambda task, model: 1e6 if model.spec.width < 300 else 1e-3)
    train(pictures, recipe="scratch", minutes=0.01, run=tmp_path / "run", settings=FAST)
    assert chosen(tmp_path / "run")["model"] == load(tmp_path / "run").name == "vit_tiny_conv4_32"


def test_a_choice_is_made_once_for_a_run(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, Any] = {"recipe": "scratch", "minutes": 0.01, "run": tmp_path / "run", "settings": FAST}
    train(pictures, **told)
    (tmp_path / "run" / "result.json").unlink()
    monkeypatch.setattr(Task, "speed_of", None)
    before = chosen(tmp_path / "run")
    train(pictures, **told)
    assert chosen(tmp_path / "run") == before
    assert before.keys() >= {"model", "scanned", "plan"}


def test_speed_is_measured_and_leaves_no_trace() -> None:
    model, labels = create_model("vit_mu_patch4_gap_16", num_classes=3), torch.arange(3).repeat(20)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    few = throughput.measure(model, Classify(), torch.randn(60, 3, 16, 16), labels, World(), bfloat16=False)
    larger = create_model("vit_mu_patch4_gap_16", num_classes=3, image_size=64, depth=8)
    many = throughput.measure(larger, Classify(), torch.randn(60, 3, 64, 64), labels, World(), bfloat16=False)
    assert few.images_per_second(1) > many.images_per_second(1) > 0
    assert 10 * few.bytes_per_image < many.bytes_per_image
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_machine_without_a_compiler_goes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(torch, "compile", lambda model, **_: refuse)
    model = create_model("vit_mu_patch4_gap_16", num_classes=3)
    images, labels = torch.randn(6, 3, 16, 16), torch.arange(6) % 3
    assert not throughput.compiling_pays(model, Classify(), images, labels, World(), bfloat16=False)


def test_torch_compile_is_tried_in_long_runs_alone(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {"recipe": "scratch", "model": "vit_mu_patch4_gap_16", "settings": (*FAST, "steps=2")}
    heard = Heard()
    train(pictures, **told, run=tmp_path / "short", view=heard)
    monkeypatch.setattr("vitrail.training.plan.LONG", 0.0)
    asked = []
    monkeypatch.setattr(throughput, "compiling_pays", lambda *words, **more: asked.append(len(words[2])) or False)
    train(pictures, **told, run=tmp_path / "long", view=heard)
    assert asked == [12]
    assert [line for line in heard.said if "torch.compile" in line] == ["Trying torch.compile, since the run is long."]


def test_auto_checks_the_data_first(pictures: Path, tmp_path: Path) -> None:
    shutil.copy(pictures / "a" / "000.png", pictures / "b" / "copy.png")
    heard = Heard()
    train(
        pictures,
        recipe="auto",
        model="vit_mu_patch4_gap_16",
        run=tmp_path / "run",
        settings=(*FAST, "steps=1"),
        view=heard,
    )
    assert "The data check found 1 x contradiction, 1 x duplicate." in heard.said[0]
    assert "1 x contradiction" in (tmp_path / "run" / "README.md").read_text()
    assert "1 groups of duplicates kept together" in (tmp_path / "run" / "README.md").read_text()


def test_no_time_to_look_at_every_picture_is_remembered() -> None:
    table, heard, remembered = table_of([0, 1] * 20, side=64), Heard(), {}
    short = Settings(minutes=1e-9)
    sets = make_splits(table, short, heard, World(), check=True, chosen=remembered)
    assert remembered == {"scanned": False}
    assert "duplicates are not looked for" in heard.said[0]
    again = make_splits(table, Settings(minutes=1000.0), heard, World(), check=True, chosen=remembered)
    assert (sets.val.names, sets.story) == (again.val.names, again.story)
