"""The time limit of `vitrail export`: what is tried first, what is skipped, and how many images are used."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.colours import exit_code, learn, write_colours
from vitrail import export, load
from vitrail.errors import ExportError, SpecError
from vitrail.exports import images, search
from vitrail.exports.budget import Budget
from vitrail.exports.build import Build, BuildContext
from vitrail.exports.images import ImageBudget, load_images
from vitrail.exports.proof import MIN_SECONDS, Fidelity, compute_logits
from vitrail.exports.search import available_formats, build_all
from vitrail.verbs import export as export_verb

ALL = [
    *(("onnx", "fp32"), ("onnx", "int8"), ("openvino", "fp32"), ("openvino", "bf16"), ("openvino", "int8")),
    *(("pt2", "fp32"), ("pt2", "bf16")),
]
FP32 = ["onnx fp32", "openvino fp32", "pt2 fp32"]
NUM_IMAGES = 100
NUM_LAYERS = 16


class Clock:
    """A clock that stands still unless it is moved, or moves by `tick` seconds each time it is read."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class FakeSearch:
    """A search whose builds take the time, run at the speed and lose the accuracy that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, minutes: float | None, tmp_path: Path) -> None:
        self.clock, self.folder = Clock(), tmp_path
        self.milliseconds: dict[str, float] = {}  # per image, 10 unless set
        self.lost: dict[str, float] = {}  # accuracy, 0 unless set
        self.built: list[str] = []
        self.log: list[str] = []
        self.context = BuildContext(
            tracer=SimpleNamespace(graph=SimpleNamespace(model=None)),  # type: ignore[arg-type]
            images=SimpleNamespace(calibration_pixels=np.zeros(50)),  # type: ignore[arg-type]
            logits=torch.zeros(NUM_IMAGES, 2),
            seconds_per_image=0.01,
            budget=Budget(minutes, clock=self.clock),
            log=self.log.append,
        )
        names = [f"layer{number}" for number in range(NUM_LAYERS)]
        self.context.__dict__["sensitive_layers"] = names  # as if ranked before
        monkeypatch.setattr(search, "quantizable_layers", lambda _: names)
        monkeypatch.setattr(search, "build", self.build)

    def build(self, _: Any, format: str, precision: str, __: Path, *, float_layers: Any, reserved: Any) -> Build:
        """10 seconds to write, and those that the images take."""
        name = f"{format} {precision}"
        self.built.append(f"{name} {len(float_layers)}" if float_layers else name)
        seconds_per_image = self.milliseconds.get(name, 10.0) / 1000
        self.clock.now += 10 + NUM_IMAGES * seconds_per_image
        scores = {"top1_before": 0.9, "top1_after": 0.9 - self.lost.get(name, 0.0)}
        fidelity = Fidelity(
            n=NUM_IMAGES, agreement=1.0, max_logit_diff=0.0, interval=None, drop_interval=None, **scores
        )
        return Build(
            format=format,
            precision=precision,
            float_layers=float_layers,
            file=self.folder,
            model=None,  # type: ignore[arg-type]
            logits=self.context.logits,
            fidelity=fidelity,
            write_seconds=10.0,
            seconds_per_image=seconds_per_image,
        )

    def run(self, choices: Any = ALL) -> dict[str, str]:
        """Build all; why each of the rejected was."""
        builds, rejected = build_all(self.context, choices, self.folder)
        assert len(builds) + len(rejected) == len(choices)  # nothing is dropped silently
        return {f"{each.format} {each.precision}": each.refused for each in rejected}


@pytest.mark.parametrize(
    ("int8_milliseconds", "order"),
    [
        (4.0, ["openvino int8", "onnx int8", "openvino bf16", "pt2 bf16"]),
        (8.5, ["openvino int8", "openvino bf16", "pt2 bf16", "onnx int8"]),  # int8 gains nothing on this machine
    ],
)
def test_fp32_comes_first_then_the_fastest_expected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, int8_milliseconds: float, order: list[str]
) -> None:
    fake = FakeSearch(monkeypatch, None, tmp_path)
    fake.milliseconds = {"openvino fp32": 8.0, "openvino int8": int8_milliseconds, "openvino bf16": 6.0}
    assert fake.run() == {}
    assert fake.built == [*FP32, *order]


def test_what_does_not_fit_is_listed_as_not_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeSearch(monkeypatch, 1.0, tmp_path)
    rejected = fake.run()
    # Each fp32 takes 11 s. Then 27 s are left, of which 16 are set aside to time four models.
    # int8 would take 10 s to write, 50 x 3 x 0.01 to calibrate, 1 to compare and 4 to time.
    assert fake.built == FP32
    assert rejected["openvino int8"] == "not tried: about 16 s needed, 11 s of the 1 minute left"
    assert rejected["openvino bf16"] == "not tried: about 15 s needed, 11 s of the 1 minute left"
    assert fake.clock.now + 4 * 2 * MIN_SECONDS <= 60


def test_one_fp32_export_is_built_even_without_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeSearch(monkeypatch, 1.0, tmp_path)
    fake.clock.now = 100.0
    rejected = fake.run()
    assert fake.built == ["onnx fp32"]
    assert rejected.keys() == {f"{name} {precision}" for name, precision in ALL} - {"onnx fp32"}
    assert rejected["pt2 fp32"] == "not tried: about 15 s needed, 0 s of the 1 minute left"


def test_fp32_is_tried_until_there_is_a_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeSearch(monkeypatch, 1.0, tmp_path)
    fake.lost = {"onnx fp32": 0.1}
    fake.clock.now = 100.0
    fake.run()
    assert fake.built == ["onnx fp32", "openvino fp32"]


def test_layers_in_float_are_tried_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeSearch(monkeypatch, 3.0, tmp_path)
    fake.milliseconds = {"openvino fp32": 8.0, "openvino int8": 4.0, "onnx int8": 5.0}
    fake.lost = {"openvino int8": 0.02, "onnx int8": 0.02}
    fake.run()
    assert fake.built == [
        *(*FP32, "openvino int8", "onnx int8", "openvino bf16", "pt2 bf16"),
        *("openvino int8 2", "openvino int8 4", "onnx int8 2", "onnx int8 4"),  # at most a quarter of 16 layers
    ]


def test_layers_in_float_respect_the_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeSearch(monkeypatch, 1.9, tmp_path)
    fake.milliseconds = {"openvino int8": 4.0}
    fake.lost = {"openvino int8": 0.02}
    rejected = fake.run()
    assert fake.built == [*FP32, "onnx int8", "openvino bf16", "openvino int8", "pt2 bf16"]
    assert rejected["openvino int8"] == (
        "openvino int8 loses more than 0.5 points. 2.00 points on 100 images (90.0 % before, 88.0 % after). "
        "Most sensitive layers: layer0, layer1, layer2, layer3. "
        "2 layers in float not tried: about 14 s needed, 10 s of the 1.9 minutes left."
    )


def test_no_layers_in_float_where_int8_is_slow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeSearch(monkeypatch, None, tmp_path)
    fake.milliseconds = {"onnx fp32": 7.0, "onnx int8": 9.0}
    fake.lost = {"onnx int8": 0.02}
    rejected = fake.run([("onnx", "fp32"), ("onnx", "int8")])
    assert fake.built == ["onnx fp32", "onnx int8"]
    assert "Layers in float not tried: already slower than onnx fp32." in rejected["onnx int8"]


def test_a_single_int8_export_stops_trying_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeSearch(monkeypatch, 0.4, tmp_path)
    fake.lost = {"onnx int8": 0.02}
    with pytest.raises(
        ExportError, match=r"2\.00 points on 100 images[^$]*2 layers in float not tried: about 15 s"
    ) as lost:
        fake.run([("onnx", "int8")])
    assert lost.value.wrong == "onnx int8 loses more than 0.5 points."
    assert fake.built == ["onnx int8"]


def test_the_log_says_what_is_tried_what_was_found_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeSearch(monkeypatch, 0.7, tmp_path)
    fake.run([("onnx", "fp32"), ("onnx", "int8"), ("pt2", "bf16")])
    result = (
        "same label on 100.00 % of 100 images, accuracy 90.00 % (PyTorch 90.00 %), "
        "10.0 ms per image in batches (PyTorch 10.0 ms)"
    )
    assert fake.log == [
        "Building onnx fp32 (42 s left); then onnx int8, pt2 bf16",
        f"onnx fp32: {result}",
        "Building onnx int8 (about 16 s; 31 s left); then pt2 bf16",
        f"onnx int8: {result}",
        "pt2 bf16: not tried: about 15 s needed, 8 s of the 0.7 minutes left",
    ]


def test_comparing_stops_as_soon_as_the_rest_does_not_fit() -> None:
    clock, seen = Clock(), []

    class Slow:
        preprocess = SimpleNamespace(normalise=torch.from_numpy)

        def __call__(self, batch: torch.Tensor) -> torch.Tensor:
            clock.now += len(batch)  # a second per image
            return torch.zeros(len(batch), 2)

    budget, pixels = Budget(1.0, clock=clock), np.zeros((64, 1), dtype=np.uint8)
    progress = budget.watch("pt2 bf16", lambda done, _: seen.append(done), reserved=20.0)
    with pytest.raises(ExportError, match=r"pt2 bf16 stopped: about 48 s needed, 24 s of the 1 minute left"):
        compute_logits(Slow(), pixels, progress, batch_size=16)
    assert seen == [16]
    clock.now = 0.0
    unlimited = Budget(None, clock=clock)
    assert len(compute_logits(Slow(), pixels, unlimited.watch("pt2 bf16", None, reserved=20.0))) == 64


@pytest.mark.parametrize("minutes", [0.0, -1.0, float("nan")])
def test_minutes_must_be_positive(minutes: float) -> None:
    with pytest.raises(SpecError, match="minutes must be positive"):
        Budget(minutes)
    assert not Budget(float("inf")).limited


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that classifies colours, and 60 images to prove exports on."""
    folder = tmp_path_factory.mktemp("budget")
    write_colours(folder / "data", {"train": 30, "val": 20})
    learn(folder / "data", folder / "run")
    return folder


@pytest.mark.parametrize(("seconds_per_image", "num"), [(1.0, 30), (100.0, 12), (0.0, 60)])
def test_fewer_images_are_used_when_all_would_take_too_long(
    home: Path, monkeypatch: pytest.MonkeyPatch, seconds_per_image: float, num: int
) -> None:
    monkeypatch.setattr(images, "MIN_IMAGES", 12)
    monkeypatch.setattr(images, "BATCH_SIZE", 4)
    model, budget = load(home / "run"), Budget(1.0, clock=Clock())
    limit = ImageBudget(budget=budget, seconds_per_image=seconds_per_image)
    found = load_images(model, "run", home / "data", limit=500, time_limit=limit)
    assert len(found.proof_pixels) == num
    assert found.origin == ("60 images of data (val)" if num == 60 else f"{num} of 60 images of data (val)")
    assert found.labels is not None
    assert set(found.labels.tolist()) == {0, 1, 2}  # a fair sample, not the first in order
    assert torch.equal(compute_logits(model, found.proof_pixels).argmax(dim=1), found.labels)  # of these images


def test_reading_slowly_leaves_time_for_fewer_images(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MIN_IMAGES", 12)
    monkeypatch.setattr(images, "BATCH_SIZE", 4)
    clock = Clock()
    limit = ImageBudget(budget=Budget(1.0, clock=clock), seconds_per_image=0.5)

    def read_half_a_second_each(done: int, _: int) -> None:
        clock.now = 0.5 * (done + 4)  # before the next batch of four

    model = load(home / "run")
    found = load_images(
        model, "run", home / "data", limit=500, calibrate=False, time_limit=limit, progress=read_half_a_second_each
    )
    assert len(found.proof_pixels) == 30  # half of a minute, at half a second to read and half to evaluate


def test_best_without_time_is_fp32_and_lists_all_others(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds: list[float] = []
    measure = export_verb.measure_speeds

    def quickly(*args: Any, **options: Any) -> Any:
        seconds.append(options["seconds"])
        return measure(*args, **{**options, "seconds": 0.05})

    monkeypatch.setattr(export_verb, "Budget", lambda minutes: Budget(minutes, clock=Clock(tick=40.0)))
    monkeypatch.setattr(export_verb, "measure_speeds", quickly)
    proof = export(home / "run", best=True, data=home / "data", out=tmp_path / "out")
    assert proof["minutes"] == 5.0
    assert (proof["format"], proof["precision"], proof["n"]) == ("onnx", "fp32", 60)
    assert {(row["format"], row["precision"]) for row in proof["tried"]} == set(available_formats())
    assert all(row["refused"].startswith("not tried: about") for row in proof["tried"][1:])
    assert seconds == [MIN_SECONDS]
    single = export(home / "run", format="pt2", data=home / "data", out=tmp_path / "single", seconds=0.05)
    assert single["minutes"] is None


def test_the_command_takes_minutes(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", str(home / "run"), "--format", "pt2", "--out", str(tmp_path / "out")]
    assert exit_code([*arguments, "--minutes", "0"]) == 2
    assert "minutes must be positive" in capsys.readouterr().err
    assert exit_code([*arguments, "--minutes", "0.5", "--json"]) == 0
    assert '"minutes": 0.5' in capsys.readouterr().out
