"""`vitrail tokens` shows how models cut sounds and videos, and images by pixels, rows and columns."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contract.clip_runs import GRIDS, RATE, make_run, tone
from tests.contract.small_clips import ramp_video, wav
from tests.contract.test_tokens_verb import call
from vitrail.errors import DataError, InspectionError, SpecError, UnknownNameError
from vitrail.run.artefact import load
from vitrail.verbs.tokens import ClipTokens, ImageTokens, tokens

SOUND, VIDEO = "a <b>sound.wav", "video.mp4"


@pytest.fixture(autouse=True)
def clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path(SOUND).write_bytes(tone(440, seconds=0.6))
    Path(VIDEO).write_bytes(ramp_video(num_frames=30))
    Path("silent.wav").write_bytes(wav(np.zeros(8000), RATE))
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8)).save("photo.png")


@pytest.mark.parametrize(
    ("clip", "model", "grid", "patch", "words"),
    [
        (SOUND, None, (100,), (80,), "100 patches of 80 samples + 1 class token = 101 tokens; each covers 5 ms"),
        (SOUND, "vit_nano_patch8_mel40x96", (5, 12), (8, 8),
         "5 x 12 = 60 patches of 8 bands x 8 frames + 1 class token = 61 tokens; each covers 80 ms"),
        (SOUND, "vit_nano_conv8_mel40x96", (5, 12), (8, 8), "60 cells of 8 bands x 8 frames = 60 tokens"),
        (SOUND, "perceiver_nano_sound8000", (8000,), (1,), "8,000 samples = 8,000 tokens; each covers 0.0625 ms"),
        (SOUND, "perceiver_nano_patch32_sound8000", (250,), (32,),
         "250 patches of 32 samples = 250 tokens; each covers 2 ms"),
        (VIDEO, None, (4, 8, 8), (2, 8, 8),
         "4 x 8 x 8 = 256 tubes of 2 frames x 8 rows x 8 columns = 256 tokens; each covers 400 ms"),
        (VIDEO, "vit_mu_patch1x16_gap_video2x32", (2, 2, 2), (1, 16, 16), "8 tubes of 1 frame x 16 rows x 16 columns"),
    ],
)  # fmt: skip
def test_a_clip_is_cut_as_the_model_does(
    clip: str, model: str | None, grid: tuple, patch: tuple, words: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    options = [] if model is None else ["--model", model]
    assert call(monkeypatch, clip, *options) == 0
    assert words in capsys.readouterr().out
    assert call(monkeypatch, clip, *options, "--json", "--out", "page.html") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == ("sound" if clip == SOUND else "video")
    assert (tuple(document["grid"]), tuple(document["patch"])) == (grid, patch)
    assert document["num_patches"] == np.prod(grid)
    assert document["num_tokens"] == np.prod(grid) + len(document["prefix"])
    assert tuple(document["input_size"]) == tuple(np.multiply(grid, patch))
    assert document["page"] == "page.html"


def test_what_the_terminal_shows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    Path("late.wav").write_bytes(wav(np.r_[np.full(3000, 1e-4), np.tile([0.5, -0.5], 500)], RATE))
    assert call(monkeypatch, "late.wav") == 0
    levels = capsys.readouterr().out.splitlines()[0]
    assert len(levels) == 100
    assert levels.count("█") == pytest.approx(25, abs=1)
    assert levels[:74] == "▁" * 74
    assert call(monkeypatch, SOUND, "--model", "vit_nano_patch8_mel40x96") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [str(number) for number in range(49, 61)], "high frequencies at the top"
    assert lines[-1] == "Each patch has 8 x 8 x 1 = 64 numbers."
    assert call(monkeypatch, VIDEO) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[7].split()[-1] == "64"
    assert lines[8].startswith("and 3 more of these")
    assert lines[-1] == "Each tube has 2 x 8 x 8 x 3 = 384 numbers."


@pytest.mark.parametrize(
    ("clip", "model", "numbers"),
    [
        (SOUND, None, range(1, 101)),
        (SOUND, "vit_mu_patch8_mel16x16", [3, 4, 1, 2]),
        (VIDEO, "vit_mu_patch2x16_gap_video4x32", [*range(1, 5)] * 2 + [*range(5, 9)] * 2),
    ],
)
def test_the_page_of_a_clip(clip: str, model: str | None, numbers: list[int]) -> None:
    tokens(clip, model=model, out="page.html")
    content = Path("page.html").read_text()
    assert [int(number) for number in re.findall(r'title="token (\d+)"', content)] == list(numbers)
    assert "default-src 'none'" in content
    assert "<script" not in content
    assert "<b>sound" not in content


def test_many_samples_are_shown_around_the_loudest() -> None:
    wave = np.random.default_rng(0).normal(0.0, 0.01, 4000)
    wave[3000:3010] = 1.0
    Path("click.wav").write_bytes(wav(wave, RATE))
    found = tokens("click.wav", model="perceiver_nano_sound8000", out="page.html")
    content = Path("page.html").read_text()
    shown = [int(number) for number in re.findall(r'title="token (\d+)"', content)]
    assert len(shown) == 400
    assert shown[0] < 6000 < shown[-1]
    assert f"Shown are tokens {shown[0]:,} to {shown[-1]:,} of {found.patches.num_patches:,}, around" in content
    wave[3000:3010], wave[-3:] = 0.0, 1.0
    Path("end.wav").write_bytes(wav(wave, RATE))
    tokens("end.wav", model="perceiver_nano_sound8000", out="page.html")
    assert 'title="token 8000"' in Path("page.html").read_text()


def test_a_run_cuts_as_its_model_does(tmp_path: Path) -> None:
    for form, clip in (("spectrogram", SOUND), ("video", VIDEO)):
        run = make_run(form, tmp_path)
        found = tokens(clip, run=run)
        assert isinstance(found, ClipTokens)
        assert found.patches.grid == GRIDS[form]
        assert found.patches.preprocess == load(run).about.preprocess
        with pytest.raises(InspectionError, match="does not cut images"):
            tokens("photo.png", run=run)
    with pytest.raises(DataError, match="this model takes videos, not sounds"):
        tokens(SOUND, run=run)


def test_the_sound_track_of_a_video_is_cut() -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 16_000).astype(np.float32)
    Path("loud.avi").write_bytes(ramp_video(num_frames=10, format="avi", sound=noise))
    found = tokens("loud.avi", model="vit_nano_patch80_sound8000")
    assert isinstance(found, ClipTokens)
    assert (found.patches.modality, found.patches.sample.shape) == ("sound", (8000,))


@pytest.mark.parametrize(
    ("model", "grid", "patch"),
    [
        ("vit_nano_patch1_gap_8", (8, 8), (1, 1)),
        ("vit_nano_patch1x8_gap_8", (8, 1), (1, 8)),
        ("vit_nano_patch8x1_gap_8", (1, 8), (8, 1)),
        ("vit_nano_patch4_gap_8", (2, 2), (4, 4)),
    ],
)
def test_an_image_by_pixels_rows_columns_and_patches(model: str, grid: tuple, patch: tuple) -> None:
    found = tokens("photo.png", model=model, out="page.html")
    assert isinstance(found, ImageTokens)
    assert (found.patches.grid, found.patches.patch) == (grid, patch)
    assert Path("page.html").read_text().count("<span") == grid[0] * grid[1]


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("nowhere.wav", {}, DataError, "nowhere.wav does not exist"),
        ("nowhere.mp4", {}, DataError, "nowhere.mp4 does not exist"),
        ("silent.wav", {}, DataError, "silent.wav is silent"),
        (SOUND, {"tokenizer": "words"}, SpecError, "--tokenizer is for text.\n.*a sound"),
        (SOUND, {"model": "vit_base_patch16_224"}, InspectionError, "does not cut sounds.*\n.*takes image"),
        (VIDEO, {"model": "vit_base_patch16_224"}, InspectionError, "does not cut videos.*\n.*\n.*video8x64"),
        (SOUND, {"model": "vit_mu_patch2x8_gap_video4x16"}, DataError, "takes videos, not sounds"),
        (SOUND, {"model": "vit_bace_patch80_sound8000"}, UnknownNameError, "no model has this name"),
        ("photo.png", {"model": "vit_nano_patch80_sound8000"}, InspectionError, "does not cut images.*\n.*takes sound"),
        ("photo.png", {"model": "perceiver_nano_sound8000"}, InspectionError, "does not cut images"),
        ("some words", {"model": "vit_nano_patch80_sound8000"}, SpecError, "--model is for images, sounds and videos"),
    ],
)
def test_wrong_input_is_refused(
    source: str, options: dict, error: type, message: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    with pytest.raises(error, match=message):
        tokens(source, **options)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    assert call(monkeypatch, source, *words) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
