"""Classifiers of sounds and videos, from class folders to every verb that takes them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from tests.contract import forked
from tests.contract.clip_folders import (
    CLASSES,
    FAST,
    RATE,
    SOUND_MODEL,
    tone,
    write_sounds,
    write_splits,
    write_table,
    write_videos,
    write_zip,
)
from tests.contract.disturbed import KILLED, wait_until
from tests.contract.forked import bits
from tests.contract.ranks import losses, run_two_ranks
from tests.contract.small_clips import wav
from tests.forge import Forge, command
from vitrail.data.find import open_data
from vitrail.data.prepare.sound import SoundPreprocess
from vitrail.errors import DataError, VitrailError, WeightsError
from vitrail.estimator import VitClassifier
from vitrail.run.artefact import load
from vitrail.verbs.check import check
from vitrail.verbs.evaluate import Evaluation, evaluate
from vitrail.verbs.predict import predict
from vitrail.verbs.train import Training, train

MEL, WAVEFORM, VIDEO = SOUND_MODEL[1], "vit_mu_patch80_sound8000", "vit_mu_patch2x8_gap_video8x64"
PERCEIVER = ("model.input_name=sound", "model.image_size=[2000]", "model.channels=1", "model.resolution=null")
QUICK = (*FAST, "steps=2")


def quick(data: Path, run: Path, *words: str, **options: Any) -> Training:
    options = {"recipe": "scratch", "model": MEL, "report": False, **options}
    return train(data, settings=[*QUICK, *words], run=run, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sounds in train, val and test, and a run on them."""
    path = tmp_path_factory.mktemp("clips")
    quick(write_splits(path / "splits"), path / "run", "prepare.rate=2000", "prepare.seconds=0.25", report=True)
    write_sounds(path / "sounds")
    return path


def run_of(folder: Path) -> Path:
    return folder / "run"


def test_a_run_says_what_it_is(folder: Path) -> None:
    run = run_of(folder)
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["kind"] == "clips"
    assert config["prepare"]["name"] == "sound"
    result = json.loads((run / "result.json").read_text())
    assert result["samples_per_second"]["measured"] > 0
    assert "images_per_second" not in result
    assert (result["val"]["n"], result["test"]["n"]) == (8, 8)
    assert not (run / "golden.safetensors").exists()
    card = (run / "README.md").read_text()
    assert "pipeline_tag: audio-classification" in card
    assert "on 16 sounds." in card
    assert "image" not in card
    assert json.loads((run / "labels.json").read_text()) == sorted(CLASSES)


def test_the_settings_of_preprocessing_are_kept(folder: Path) -> None:
    model = load(run_of(folder))
    preprocess = model.about.preprocess
    assert isinstance(preprocess, SoundPreprocess)
    assert preprocess.rate == 2000
    assert 0.25 <= preprocess.seconds < 0.25 + 8 * preprocess.hop, "whole patches"
    assert model.spec.image_size == preprocess.size
    assert model.TAKES == ("sound",)


def test_the_report_shows_clips(folder: Path) -> None:
    page = (run_of(folder) / "report.html").read_text()
    assert "8 test clips" in page
    assert "heatmap" not in page
    assert "data:image/jpeg" in page, "waveforms"


def test_a_prediction_is_what_the_model_computes(folder: Path) -> None:
    run, file = run_of(folder), folder / "splits/test/low/0.wav"
    (found,) = predict(run, [file])
    model = load(run)
    preprocess: Any = model.about.preprocess
    with torch.inference_mode():
        logits = model(preprocess.normalise(preprocess.read(file)[None]))
    confidence, index = model.calibration.probabilities(logits)[0].max(dim=0)
    assert found.prediction is not None
    assert found.prediction.label == model.labels[int(index)]
    assert found.prediction.confidence == pytest.approx(float(confidence), abs=1e-6)


def test_files_folders_and_zips_are_predicted_alike(folder: Path, tmp_path: Path) -> None:
    run, sounds = run_of(folder), folder / "sounds"
    archive = write_zip(tmp_path / "sounds.zip", sounds)
    (sounds / "notes.txt").write_text("not a clip")
    (tmp_path / "empty.wav").write_bytes(b"")
    found = list(predict(run, [sounds, archive, tmp_path / "empty.wav"]))
    labels = [each.prediction and each.prediction.confidence for each in found]
    assert len(found) == 33
    assert labels[:16] == pytest.approx(labels[16:32], abs=1e-6)
    assert found[-1].error == "is empty. 0 bytes."


def test_evaluating_again_gives_the_same_scores(folder: Path) -> None:
    stored = json.loads((run_of(folder) / "result.json").read_text())
    for split in ("val", "test"):
        scores = evaluate(run_of(folder), folder / "splits", split=split)
        assert isinstance(scores, Evaluation)
        assert (scores.top1, scores.n) == (stored[split]["top1"], 8)
        assert not scores.learned_from
    assert evaluate(run_of(folder), folder / "splits", split="train").learned_from  # type: ignore[union-attr]
    assert len((run_of(folder) / "predictions.csv").read_text().splitlines()) == 17
    compared = evaluate(run_of(folder), folder / "splits", compare=run_of(folder))
    assert isinstance(compared, Evaluation)
    assert compared.compared is not None
    assert compared.compared.difference == 0


def test_every_layout_holds_the_same_clips(folder: Path, tmp_path: Path) -> None:
    sounds = write_sounds(tmp_path / "sounds", num=3)
    flac = write_sounds(tmp_path / "flac", num=3, format="FLAC")
    layouts = {
        "folder": sounds,
        "flac": flac,
        "zip": write_zip(tmp_path / "sounds.zip", sounds),
        "path": write_table(tmp_path / "path.csv", sounds),
        "sound": write_table(tmp_path / "sound.csv", sounds, "sound"),
        "audio": write_table(tmp_path / "audio.csv", sounds, "Audio"),
    }
    results = {}
    for name, data in layouts.items():
        source = open_data(data)
        assert (source.modalities, source.kind, len(source)) == (("sound",), "clips", 6), name
        results[name] = quick(data, tmp_path / "runs" / name)
        assert load(tmp_path / "runs" / name).TAKES == ("sound",)
    first = bits(tmp_path / "runs" / "folder")["model.safetensors"]
    for name in ("zip", "path", "sound"):
        assert bits(tmp_path / "runs" / name)["model.safetensors"] == first, name


MODELS: dict[str, dict[str, Any]] = {
    "waveform": {"model": WAVEFORM, "words": (), "size": (2000,)},
    "a shorter waveform": {"model": WAVEFORM, "words": ("model.image_size=[1600]",), "size": (1600,)},
    "spectrogram": {"model": MEL, "words": ("small_until=0.5",), "size": (40, 56)},
    "perceiver": {"model": "perceiver_mu_32", "words": PERCEIVER, "size": (2000,)},
    "perceiver with patches": {"model": "perceiver_mu_patch32_sound1600", "words": (), "size": (2016,)},
    "auto": {"model": MEL, "words": (), "size": (40, 56), "recipe": "auto"},
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_sound(name: str, folder: Path, tmp_path: Path) -> None:
    options = dict(MODELS[name])
    size, words = options.pop("size"), options.pop("words")
    result = quick(folder / "sounds", tmp_path / "run", *words, **options)
    model = load(tmp_path / "run")
    assert model.spec.image_size == size
    assert result.steps == 2
    assert "Pretrained --weights" not in " ".join(result.story)
    assert len(list(predict(tmp_path / "run", [folder / "sounds" / "low"]))) == 8


def test_videos(tmp_path: Path) -> None:
    videos = write_videos(tmp_path / "videos")
    quick(videos, tmp_path / "run", "model.image_size=[4, 16, 16]", model=VIDEO, report=True)
    model = load(tmp_path / "run")
    assert model.TAKES == ("video",)
    assert model.about.preprocess is not None
    assert model.about.preprocess.size == (4, 16, 16)
    assert "pipeline_tag: video-classification" in (tmp_path / "run" / "README.md").read_text()
    assert "data:image/jpeg" in (tmp_path / "run" / "report.html").read_text(), "frames"
    scores = evaluate(tmp_path / "run", videos)
    assert isinstance(scores, Evaluation)
    assert scores.n == 8
    assert all(each.prediction for each in predict(tmp_path / "run", [videos]))


def test_finetuning_starts_from_a_run(folder: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"recipe": "finetune", "model": None, "weights": run_of(folder)}
    quick(folder / "sounds", tmp_path / "run", "lr=1e-9", "weight_decay=0", "ema=0", **options)
    before, after = load(run_of(folder)), load(tmp_path / "run")
    assert after.about.preprocess == before.about.preprocess
    changed = {
        name for name, tensor in after.state_dict().items() if not torch.equal(tensor, before.state_dict()[name])
    }
    far = {
        name for name in changed if not torch.allclose(after.state_dict()[name], before.state_dict()[name], atol=1e-6)
    }
    assert all(name.startswith("head") for name in far)
    with pytest.raises(WeightsError, match="is not a run on video"):
        quick(write_videos(tmp_path / "videos", 2), tmp_path / "other", **options)
    with pytest.raises(WeightsError, match="clips can start from a run on sound only"):
        quick(folder / "sounds", tmp_path / "other", **{**options, "weights": "model.safetensors"})


def test_rates_that_differ_are_resampled(folder: Path, tmp_path: Path) -> None:
    """The same tones at two rates: the model's input is nearly the same."""
    for place, rate in enumerate((RATE, 16_000)):
        write_sounds(tmp_path / str(place), num=2, rate=rate)
    preprocess = SoundPreprocess(rate=RATE, seconds=0.25)
    time_axis = np.arange(RATE // 2) / RATE
    for label in CLASSES:
        one, other = (preprocess.read(tmp_path / place / label / "0.wav") for place in ("0", "1"))
        assert len(one) == len(other) == RATE // 4
        peaks = [np.abs(np.fft.rfft(each)).argmax() for each in (one, other)]
        assert peaks[0] == peaks[1] > 0
    assert len(time_axis) == len(tone(0, "low"))
    for label in CLASSES:
        (tmp_path / "1" / label / "2.wav").write_bytes(wav(tone(5, label), RATE))
    report = check(tmp_path / "1")
    assert any("rates are mixed: 16,000 per second 4, 4,000 per second 2" in note for note in report.notes)
    assert quick(tmp_path / "1", tmp_path / "run").steps == 2


def test_killed_at_random_ends_with_the_same_bits(folder: Path, forge: Forge, tmp_path: Path) -> None:
    calm, killed, notes = tmp_path / "calm", tmp_path / "killed", tmp_path / "notes"

    def words(run: Path) -> list[str]:
        more = ("--recipe", "scratch", *SOUND_MODEL, *FAST, "steps=6", "augment.mixup=0.2")
        return ["train", str(folder / "splits"), "--run", str(run), *more]

    assert forge.run(command, words(calm), log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    rng = random.Random(0)
    for kill in range(2):
        notes.write_text("")
        pid = forge.start(command, words(killed), partial(forked.note_steps, notes), log=tmp_path / "log")
        wait_until(lambda: len(notes.read_text().split()) > kill)  # noqa: B023 - called at once
        time.sleep(rng.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        assert forge.wait(pid) == KILLED
    assert forge.run(command, words(killed), log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    assert bits(killed) == bits(calm)


def test_two_processes_agree(folder: Path, forge: Forge, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    more = ("--recipe", "scratch", *SOUND_MODEL, *FAST, "steps=4", "optimizer=sgd", "lr=0.05", "warmup=0.0")
    words = ["train", str(folder / "splits"), *more, "--run"]
    assert forge.run(command, [*words, str(alone)], log=tmp_path / "log") == 0, (tmp_path / "log").read_text()
    run_two_ranks([*words, str(together)], tmp_path)
    assert len(losses(alone)) >= 4
    assert losses(together) == pytest.approx(losses(alone), abs=1e-5)


def test_folds(folder: Path, tmp_path: Path) -> None:
    result = quick(folder / "sounds", tmp_path / "run", folds=2)
    assert result.folds is not None
    assert result.folds["n"] == 16


@pytest.mark.parametrize(
    ("words", "options", "message"),
    [
        ((), {"recipe": "auto", "weights": "x"}, "the recipe auto with weights is for images"),
        ((), {"recipe": "pretrain"}, r"the recipe pretrain is for images\.(.|\n)*sounds or videos"),
        ((), {"recipe": "finetune"}, "the recipe finetune needs pretrained weights"),
        (("prepare.rat=1",), {}, "there is no setting 'rat'"),
        (("prepare.rate=0",), {}, "rate: input should be greater than 0"),
        ((), {"model": "vit_mu_patch4_8"}, "vit_mu_patch4_8 is not a model of sound"),
        ((), {"target": "label"}, "classes that are not numbers"),
    ],
)
def test_bad_requests(
    words: tuple[str, ...], options: dict[str, Any], message: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(VitrailError, match=message):
        quick(folder / "sounds", tmp_path / "run", *words, **options)
    assert not (tmp_path / "run").exists()


def test_clips_to_evaluate_on_are_not_learned(folder: Path, tmp_path: Path) -> None:
    """`auto` labels unlabelled clips, but not those of the validation and the test split, known by their paths."""
    words = ("epochs=50", "batch_size=16", "precision=float32", "workers=0", "small_until=0.0", "eval_every=25")
    options: dict[str, Any] = {"recipe": "auto", "model": MEL, "unlabelled": folder / "splits", "report": False}
    result = train(folder / "splits", run=tmp_path / "run", settings=words, **options)
    assert re.search(r"of 32 clips \(without \d+ that are used for validation or testing\)", " ".join(result.story))


def test_recipes_for_images_refuse_clips(folder: Path, tmp_path: Path) -> None:
    run = run_of(folder)
    for recipe, words, options in (
        ("probe", [], {"weights": run}),
        ("distill", ["steps=2"], {"teacher": run}),
        ("noisy_student", [], {"unlabelled": "digits"}),
    ):
        with pytest.raises(VitrailError, match=f"the recipe {recipe} is for images"):
            train(folder / "sounds", recipe=recipe, settings=words, run=tmp_path / "run", **options)
    tuning: dict[str, Any] = {"recipe": "finetune", "model": None, "weights": run}
    with pytest.raises(VitrailError, match="head_from=probe is for images"):
        quick(folder / "sounds", tmp_path / "run", "head_from=probe", **tuning)
    for word in ("prepare.rate=1000", "model.image_size=[40, 16]"):
        with pytest.raises(VitrailError, match=r"starts from a run keeps its preprocessing"):
            quick(folder / "sounds", tmp_path / "run", word, **tuning)
    with pytest.raises(VitrailError, match=r"prepare.key=value is for sound and video(.|\n)*prepare.rate=3"):
        quick(Path("digits"), tmp_path / "run", "prepare.rate=3", model="vit_mu_patch4_8")
    for options in ({}, {"recipe": "finetune", "model": None, "weights": run}):
        with pytest.raises(VitrailError, match="is not a model of images"):
            quick(Path("digits"), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_the_estimator_is_for_images(folder: Path) -> None:
    with pytest.raises(ValueError, match="is not a model of images"):
        VitClassifier(weights=run_of(folder)).fit(np.zeros((20, 8, 8, 3), dtype=np.uint8), np.arange(20) % 2)


def test_numbers_are_predicted_from_images_only(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "numbers.csv"
    table.write_text("sound,loudness\n" + "".join(f"{folder}/sounds/low/{n}.wav,{n}\n" for n in range(8)))
    with pytest.raises(DataError, match=r"a number to predict from images\.\n  Got sounds"):
        quick(table, tmp_path / "run", target="loudness")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "RUN"], "vitrail export is for image classifiers"),
        (["figures", "RUN"], "vitrail figures is for image classifiers"),
        (["serve", "RUN", "--port", "0"], "vitrail serve is for image classifiers"),
        (["convert", "RUN", "--to", "timm", "--out", "OUT"], "other projects have no such model"),
        (["predict", "RUN", "CLIP", "--copy-to", "OUT"], "--copy-to is for image classifiers"),
        (["predict", "RUN", "CLIP", "--labels", "a,b"], "--labels is for runs of the recipe align"),
        (["evaluate", "RUN", "DATA", "--tta"], "--tta mirrors images"),
        (["evaluate", "RUN", "VIDEOS"], "this model classifies sounds"),
        (["search", "RUN", "low", "DATA"], "is a run of another kind"),
    ],
)
def test_what_is_for_images_refuses_clips(
    words: list[str], message: str, folder: Path, forge: Forge, tmp_path: Path
) -> None:
    places = {"RUN": run_of(folder), "CLIP": folder / "sounds/low/0.wav", "DATA": folder / "sounds"}
    places |= {"OUT": tmp_path / "out", "VIDEOS": tmp_path / "videos"}
    if "VIDEOS" in words:
        write_videos(tmp_path / "videos", 1)
    log = tmp_path / "log"
    code = forge.run(command, [str(places.get(word, word)) for word in words], log=log)
    text = log.read_text()
    assert code == 2, text
    assert message in text
    assert "Traceback" not in text
    assert not (tmp_path / "out").exists()
