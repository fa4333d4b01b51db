"""Several modalities in one space: training, evaluation, labels by words, and everything that ends a run early."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.conftest import fill
from tests.contract import forked
from tests.contract.aligned_tables import (
    FAST,
    Row,
    make_rows,
    only,
    words_of,
    write_aligned,
    write_rows,
    write_talking_videos,
)
from tests.contract.clip_folders import CLASSES, RATE, SOUND_MODEL, write_image, write_sounds
from tests.contract.disturbed import KILLED, wait_until
from tests.contract.forked import bits
from tests.contract.ranks import losses, run_two_ranks
from tests.contract.small_clips import wav
from tests.forge import Forge, command
from vitrail import catalogue
from vitrail.data.aligned import open_aligned
from vitrail.data.aligned_preparation import stack_texts
from vitrail.errors import VitrailError
from vitrail.run.aligned_model import load_aligned
from vitrail.run.artefact import load
from vitrail.training.recipe.several.retrieval import AlignedEvaluation
from vitrail.verbs.evaluate import evaluate
from vitrail.verbs.predict import predict_words
from vitrail.verbs.train import Training, train

QUICK = (*FAST, "steps=3")


def align(data: Path, run: Path, *words: str, **options: Any) -> Training:
    options = {"recipe": "align", "model": "vatt_mu", "report": False, **options}
    return train(data, settings=[*QUICK, *words], run=run, **options)


class Home:
    """A table of images, sounds and texts, and a run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = write_aligned(folder)
        self.rows = make_rows(folder)
        self.run = folder / "run"
        align(self.table, self.run, report=True)

    def write(self, name: str, rows: list[Row]) -> Path:
        return write_rows(self.folder / name, rows)

    def changed(self, name: str, number: int, **cells: str) -> Path:
        return self.write(name, [{**row, **(cells if place == number else {})} for place, row in enumerate(self.rows)])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("aligned"))


def pairs_of(scores: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["from"], each["to"]) for each in scores["directions"]}


def test_a_result_has_all_directions(home: Home) -> None:
    result = json.loads((home.run / "result.json").read_text())
    names = ("image", "sound", "text")
    for split in ("val", "test"):
        scores = result[split]
        assert pairs_of(scores) == {(one, other) for one in names for other in names if one != other}
        for each in scores["directions"]:
            assert each["interval"][0] <= each["recall"] <= each["interval"][1]
            assert each["chance"] == 0.5, "two classes, equally many"
            assert each["n"] == 4
        assert scores["recall"] == pytest.approx(np.mean([each["recall"] for each in scores["directions"]]))
    assert result["story"] == ["Aligned image, sound and text for 3 steps."]


def test_a_run_says_what_it_is(home: Home) -> None:
    opened = load_aligned(home.run)
    assert opened.modalities == ("image", "sound", "text")
    for name in ("tokenizer.json", "tokenizer_config.json", "README.md", "config.yaml", "calibration.json"):
        assert (home.run / name).is_file(), name
    assert "| test | sound | text |" in (home.run / "README.md").read_text()
    page = (home.run / "report.html").read_text()
    assert page.count("<h3>") == 6
    with pytest.raises(VitrailError, match=r"a run on several modalities, not on images(.|\n)*vitrail search"):
        load(home.run)


def test_evaluating_again_gives_the_same_scores(home: Home) -> None:
    stored = json.loads((home.run / "result.json").read_text())
    for split in ("val", "test"):
        scores = evaluate(home.run, home.table, split=split)
        assert isinstance(scores, AlignedEvaluation)
        assert scores.scores == stored[split]
        assert not scores.learned_from
    assert evaluate(home.run, home.table, split="train").learned_from  # type: ignore[union-attr]
    other = home.write("other.csv", only(home.rows, "text", "image", "sound"))
    scores = evaluate(home.run, other)
    assert isinstance(scores, AlignedEvaluation)
    chances = {(each["from"], each["to"]): each["chance"] for each in scores.scores["directions"]}
    assert chances["image", "sound"] == pytest.approx(1 / 20), "without labels, each sample is its own"
    assert chances["image", "text"] == pytest.approx(1 / 4), "four different texts"


def test_evaluation_leaves_out_what_it_is_told_to(home: Home) -> None:
    table = home.changed("gap.csv", 17, sound="")
    with pytest.raises(VitrailError, match=r"images/17\.png has no sound"):
        evaluate(home.run, table)
    scores = evaluate(home.run, table, policy="skip")
    assert isinstance(scores, AlignedEvaluation)
    assert scores.scores["n"] == 3
    assert scores.skipped == ("images/17.png: images/17.png has no sound. an empty cell.",)
    with pytest.raises(VitrailError, match=r"has no sound\.\n  Got image and text"):
        evaluate(home.run, home.write("it.csv", only(home.rows, "image", "text")))
    with pytest.raises(VitrailError, match="has no split 'nix'"):
        evaluate(home.run, home.table, split="nix")
    with pytest.raises(VitrailError, match="is evaluated alone"):
        evaluate(home.run, home.table, compare=home.run)


SPECS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "shared": (("model.shared=true",), {"shared": True}),
    "flat": (("model.hierarchical=false",), {"levels": ("common",)}),
    "dropped": (("model.drop_token_rate=0.5",), {"drop_token_rate": 0.5}),
}


@pytest.mark.parametrize("name", SPECS)
def test_variants_of_the_model(name: str, home: Home, tmp_path: Path) -> None:
    words, expected = SPECS[name]
    result = align(home.table, tmp_path / "run", *words)
    assert len(result.val["directions"]) == 6
    spec = load_aligned(tmp_path / "run").model.spec
    assert {key: getattr(spec, key) for key in expected} == expected


def test_two_modalities_without_labels(home: Home, tmp_path: Path) -> None:
    result = align(home.write("two.csv", only(home.rows, "sound", "image")), tmp_path / "run")
    assert pairs_of(result.val) == {("image", "sound"), ("sound", "image")}
    assert {each["chance"] for each in result.val["directions"]} == {1 / result.val["n"]}
    assert not (tmp_path / "run" / "tokenizer.json").exists()


def test_class_folders_are_images_with_words(tmp_path: Path) -> None:
    for number in range(12):
        write_image(tmp_path / "data" / f"{CLASSES[number % 2]}_tone" / f"{number}.png", number, CLASSES[number % 2])
    table = open_aligned(tmp_path / "data")
    assert table.modalities == ("image", "text")
    assert {table.texts(index) for index in range(12)} == {("low tone",), ("high tone",)}
    assert pairs_of(align(tmp_path / "data", tmp_path / "run").val) == {("image", "text"), ("text", "image")}


def test_videos_with_their_own_sound(tmp_path: Path) -> None:
    table = write_talking_videos(tmp_path / "videos")
    result = align(table, tmp_path / "run", report=True)
    assert pairs_of(result.val) == {("video", "sound"), ("sound", "video")}
    assert (tmp_path / "run" / "report.html").read_text().count("<h3>") == 2


def many_texts(home: Home) -> Path:
    """One to three texts per row; in each batch of two ranks, some rank may see fewer than the other."""
    rows = only(home.rows[:16], "image", "text")
    return home.write("many.csv", [{**row, "text b": "tone" * (n == 3), "caption": ""} for n, row in enumerate(rows)])


def test_several_texts_per_row(home: Home, tmp_path: Path) -> None:
    table = many_texts(home)
    opened = open_aligned(table)
    assert [len(opened.texts(index)) for index in (2, 3)] == [1, 2]
    assert align(table, tmp_path / "run").steps == 3
    ids = [(np.array([1, 2]),), (np.array([3]), np.array([4, 5]))]
    assert stack_texts(ids, 0).shape[:2] == (2, 2)
    assert stack_texts(ids[:1], 0).ndim == 2
    assert stack_texts(ids[:1], 0, at_least=2).shape[:2] == (1, 2), "as many as another process has"
    assert len(stack_texts([], 0)) == 0


def test_two_processes_agree(home: Home, forge: Forge, tmp_path: Path) -> None:
    more = ("optimizer=sgd", "lr=0.05", "warmup=0.0", "batch_size=4")
    alone, together = tmp_path / "alone", tmp_path / "together"
    table, log = many_texts(home), tmp_path / "log"
    assert forge.run(command, words_of(table, alone, *more, steps=4), log=log) == 0, log.read_text()
    run_two_ranks(words_of(table, together, *more, steps=4), tmp_path)
    assert len(losses(alone)) >= 4
    assert losses(together) == pytest.approx(losses(alone), abs=1e-5)


def test_killed_at_random_ends_with_the_same_bits(home: Home, forge: Forge, tmp_path: Path) -> None:
    calm, killed, notes, log = (tmp_path / name for name in ("calm", "killed", "notes", "log"))
    more = ("model.drop_token_rate=0.3",)
    assert forge.run(command, words_of(home.table, calm, *more, steps=6), log=log) == 0, log.read_text()
    words, rng = words_of(home.table, killed, *more, steps=6), random.Random(0)
    for kill in range(2):
        notes.write_text("")
        pid = forge.start(command, words, partial(forked.note_steps, notes), log=log)
        wait_until(lambda: len(notes.read_text().split()) > kill)  # noqa: B023 - called at once
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        assert forge.wait(pid) == KILLED
    assert forge.run(command, words, log=log) == 0, log.read_text()
    assert bits(killed) == bits(calm)


@pytest.mark.parametrize("locked", [True, False])
def test_weights_of_the_image_tower(locked: bool, home: Home, tmp_path: Path) -> None:
    """Those of a run if it is locked, else those of a file."""
    if locked:
        weights, words = tmp_path / "images", ("locked=image",)
        train("digits", model="vit_mu_patch4_8", recipe="scratch", settings=["steps=1"], run=weights, report=False)
        model = load(weights)
    else:
        weights, words = tmp_path / "weights.safetensors", ()
        model = fill(catalogue.create_model("vit_mu_patch16_224", num_classes=3))
        save_file(model.state_dict(), weights)
    align(home.table, tmp_path / "run", *words, weights=weights)
    stored = load_file(tmp_path / "run" / "model.safetensors")
    tower = {name.removeprefix("towers.image."): x for name, x in stored.items() if name.startswith("towers.image.")}
    assert tower.keys() == {name for name in model.state_dict() if not name.startswith("head.")}
    same = [torch.equal(tensor, model.state_dict()[name]) for name, tensor in tower.items()]
    assert all(same) if locked else not any(same)
    assert load_aligned(tmp_path / "run").inputs["image"] == model.about.preprocess


def test_weights_that_are_not_of_images(home: Home, tmp_path: Path) -> None:
    write_sounds(tmp_path / "sounds", num=2)
    settings = ["steps=1", "batch_size=2", "val_share=0.4"]
    train(tmp_path / "sounds", model=SOUND_MODEL[1], recipe="scratch", settings=settings, run=tmp_path / "clips")
    for weights, message in ((tmp_path / "clips", "not a model of images"), (home.run, "not a run on images")):
        with pytest.raises(VitrailError, match=message):
            align(home.table, tmp_path / "run", weights=weights)
    with pytest.raises(VitrailError, match="no image tower to load weights into"):
        align(home.write("st.csv", only(home.rows, "sound", "text")), tmp_path / "run", weights=home.run)


def test_labels_by_words(home: Home, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"")
    found = list(predict_words(home.run, [home.folder / "images", tmp_path / "bad.png"], ["low", " high "]))
    assert len(found) == 21
    assert found[-1].error is not None
    for each in found[:-1]:
        assert each.prediction is not None
        assert {label for label, _ in each.prediction.top} == {"low", "high"}
        assert sum(confidence for _, confidence in each.prediction.top) == pytest.approx(1, abs=1e-5)
        assert each.prediction.confidence == each.prediction.top[0][1]
    for labels in (["low"], ["low", "low"], ["low", ""], []):
        with pytest.raises(VitrailError, match="two different words or more"):
            predict_words(home.run, [home.folder / "images"], labels)


def test_a_row_that_lacks_something_is_skipped_if_asked(home: Home, tmp_path: Path) -> None:
    rows = [dict(row) for row in home.rows]
    rows[3]["sound"], rows[5]["image"], rows[7]["sound"] = "", "images/gone.png", "silent.wav"
    (home.folder / "silent.wav").write_bytes(wav(np.zeros(RATE), RATE))
    result = align(home.write("gaps.csv", rows), tmp_path / "run", "on_error=skip", "steps=6", report=True)
    assert result.story[-1] == "Skipped 3 unreadable samples: images/3.png, images/7.png, images/gone.png."
    facts = json.loads((tmp_path / "run" / "account.json").read_text())["facts"]
    assert facts["num_train"] == 9
    assert facts["skipped"]["images/7.png"].startswith("the sound of images/7.png is silent.")


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "one modality": (lambda home: home.write("b.csv", only(home.rows, "image", "label")), {}, "no two modalities"),
    "texts only": (lambda home: home.write("b.csv", [{"text": "a", "caption": "b"}] * 6), {}, "no two modalities"),
    "two columns": (lambda home: home.write("b.csv", [{"image": "a", "img": "b"}]), {}, "two columns of images"),
    "a gap": (
        lambda home: home.changed("b.csv", 3, sound=" "),
        {},
        r"images/3\.png has no sound\.\n  Got an empty cell",
    ),
    "no file": (lambda home: home.changed("b.csv", 0, image="", sound=""), {}, "line 2 has no image"),
    "no text": (lambda home: home.write("b.csv", [{**row, "text": ""} for row in home.rows]), {}, "has no text"),
    "split": (lambda home: home.changed("b.csv", 4, split="x"), {}, r"unknown split\.\n  Got 'x' in line 6"),
    "label": (lambda home: home.changed("b.csv", 2, label=""), {}, r"row without a label\.\n  Got line 4"),
    "no train": (lambda home: home.write("b.csv", home.rows[-8:]), {}, "no training split"),
    "few": (lambda home: home.write("b.csv", home.rows[:3]), {}, "at least 4 samples"),
    "target": (lambda home: home.table, {"target": "label"}, "a number to predict"),
    "folds": (lambda home: home.table, {"folds": 2}, "folds are for classification"),
    "size": (lambda home: home.table, {"model": "vatt_huge"}, r"no model vatt_huge(.|\n)*vatt_mu, vatt_nano"),
    "locked": (lambda home: home.table, {"words": ("locked=image",)}, "without weights cannot be locked"),
    "no tower": (
        lambda home: home.write("b.csv", only(home.rows, "sound", "text")),
        {"words": ("locked=image",)},
        "no image tower to lock",
    ),
    "prepare": (lambda home: home.table, {"words": ("prepare.rate=9",)}, r"names the clips(.|\n)*prepare\.sound\.rate"),
    "of none": (lambda home: home.table, {"words": ("prepare.video.rate=9",)}, "names the clips that it is for"),
    "setting": (lambda home: home.table, {"words": ("prepare.sound.rat=9",)}, "no setting 'rat'"),
    "field": (lambda home: home.table, {"words": ("model.nix=1",)}, "no setting 'nix'"),
    "empty": (lambda home: home.write("b.csv", [{**row, "sound": "e.wav"} for row in home.rows]), {}, "does not exist"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests(name: str, home: Home, tmp_path: Path) -> None:
    make, options, message = BAD[name]
    options = dict(options)
    with pytest.raises(VitrailError, match=message):
        align(make(home), tmp_path / "run", *options.pop("words", ()), **options)
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "the sound of images/0.png is empty"), (wav(np.zeros(RATE), RATE), "the sound of images/0.png is silent")],
)
def test_a_bad_clip_is_named(content: bytes, message: str, home: Home, tmp_path: Path) -> None:
    (home.folder / "bad.wav").write_bytes(content)
    with pytest.raises(VitrailError, match=message):
        align(home.changed("bad.csv", 0, sound="bad.wav"), tmp_path / "run", "batch_size=12")


def test_a_video_without_frames_is_named(tmp_path: Path) -> None:
    table = write_talking_videos(tmp_path / "videos", 6)
    for file in (tmp_path / "videos").glob("*.avi"):
        file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(VitrailError, match=r"\d\.avi is (damaged|not a video)"):
        align(table, tmp_path / "run")


def test_a_batch_is_never_split(home: Home, tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match=r"a batch cannot be split into parts\.\n  Got accumulate=2"):
        align(home.table, tmp_path / "run", "accumulate=2")


def test_nothing_to_validate_on(home: Home, tmp_path: Path) -> None:
    rows = [{**row, "sound": "" if row["split"] == "val" else row["sound"]} for row in home.rows]
    with pytest.raises(VitrailError, match="none of the validation samples could be read"):
        align(home.write("blind.csv", rows), tmp_path / "run", "on_error=skip")


def test_changed_columns_are_another_run(home: Home, tmp_path: Path) -> None:
    rows = [{"text": "a", "caption": "b", **row} for row in only(home.rows, "image")]
    align(home.write("c.csv", rows), tmp_path / "run")
    (home.folder / "c.csv").write_text((home.folder / "c.csv").read_text().replace("caption", "remark"))
    with pytest.raises(VitrailError, match="holds another run"):
        align(home.folder / "c.csv", tmp_path / "run")
