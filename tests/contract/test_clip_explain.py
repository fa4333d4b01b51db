"""Clips are explained: a prediction, and heat over time, over time and frequency, or over space and time."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import fill
from tests.contract.clip_runs import GRIDS, RATE, make_run, tone
from tests.contract.small_clips import ramp_video, wav
from vitrail import create_model, explain, load, plug, save_weights
from vitrail.calibration import Calibration
from vitrail.errors import DataError, InspectionError, UnknownNameError
from vitrail.inspection.clip_drawing import draw_samples, draw_waveform, multiply, pool_columns
from vitrail.inspection.clip_explanation import ClipExplanation
from vitrail.inspection.clip_still import heat_image
from vitrail.inspection.drawing import save_figure
from vitrail.inspection.explanation import METHODS, explain_image
from vitrail.verbs.explain import explain as explain_verb

FORMS = tuple(GRIDS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {form: make_run(form, folder) for form in FORMS}


@pytest.fixture
def clips(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "a tone.wav").write_bytes(tone(440))
    (tmp_path / "a video.mp4").write_bytes(ramp_video(num_frames=20))
    return {form: tmp_path / ("a video.mp4" if form.endswith("video") else "a tone.wav") for form in FORMS}


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from vitrail import __main__ as entry

    monkeypatch.setattr(sys, "argv", ["vitrail", "explain", *words])
    with pytest.raises(SystemExit) as stopped:
        entry.main()
    return stopped.value.code


def found_in(run: Path, clip: Path | bytes, **options: object) -> ClipExplanation:
    found = explain(fill(load(run), 0.1).eval(), clip, **options)  # two steps hardly change the first weights
    assert isinstance(found, ClipExplanation)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_clip_is_explained(form: str, runs: dict[str, Path], clips: dict[str, Path]) -> None:
    found = found_in(runs[form], clips[form])
    methods = {"relevance", "rollout"} if form.startswith("perceiver") else {"relevance", "rollout", "gradcam"}
    assert set(found.heatmaps) == methods
    for maps in found.heatmaps.values():
        assert maps.shape == (2, *GRIDS[form])
        assert np.isfinite(maps).all()
        assert (maps >= 0).all()
    assert found.heatmaps["relevance"].max() > 0
    assert np.array_equal(*found.heatmaps["rollout"])
    assert found.modality == ("video" if form.endswith("video") else "sound")
    assert sum(found.probabilities) == pytest.approx(1.0, abs=1e-5)
    assert found.prediction == max(zip(found.labels, found.probabilities, strict=True), key=lambda pair: pair[1])
    assert found._repr_html_().startswith("<iframe")
    file = io.BytesIO()
    save_figure(found.figure(), file, "png", 60)
    with Image.open(file) as image:
        assert max(image.size) < 3000


@pytest.mark.parametrize("form", FORMS)
def test_the_page(form: str, runs: dict[str, Path], clips: dict[str, Path]) -> None:
    found = found_in(runs[form], clips[form])
    content = found.page()
    assert "default-src 'none'" in content
    assert not re.search(r'(src|href)="(?!data:)', content)
    data = json.loads(re.search(r'id="data">(.*?)</script>', content)[1])
    assert data["heat"].keys() == found.heatmaps.keys()
    num_layers = GRIDS[form][0] if form.endswith("video") else 1
    assert {len(urls) for of_class in data["heat"].values() for urls in of_class} == {num_layers}
    assert content.count('class="reading"') == (2 if form.startswith("perceiver") else 0)
    assert content.count("<figure>") == (4 if form.endswith("video") else 0)
    assert ("<audio" in content) == (not form.endswith("video"))
    assert len(content) < 1_000_000


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ("perceiver", "3,200 samples. Each sample is an input: its value and the Fourier features of its time."),
        ("perceiver_patches", "200 patches of 16 samples. Each patch is an input: its values as they are, and the"),
        ("perceiver_video", "64 tubes of 1 frame x 4 rows x 4 columns. Each tube is an input: its values as they are"),
        ("perceiver_spectrogram", "64 patches of 1 band x 4 frames. Each patch is an input"),
    ],
)
def test_the_page_says_what_a_perceiver_reads(
    form: str, sentence: str, runs: dict[str, Path], clips: dict[str, Path]
) -> None:
    content = found_in(runs[form], clips[form]).page().replace("\u00d7", "x")
    assert sentence in content
    assert ("read the samples" in content) == (form == "perceiver")


def test_each_pixel_of_heat_is_a_token(runs: dict[str, Path], clips: dict[str, Path]) -> None:
    """Opacity is the heat; in a spectrogram, low frequencies are at the bottom."""
    found = found_in(runs["spectrogram"], clips["spectrogram"])
    data = json.loads(re.search(r'id="data">(.*?)</script>', found.page())[1])
    encoded = data["heat"]["relevance"][1][0].partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        alpha = np.asarray(image)[..., 3] / 255
    heat = found.heatmaps["relevance"][1]
    assert np.allclose(alpha, heat[::-1] / heat.max(), atol=1 / 255)


@pytest.mark.parametrize("method", ["relevance", "rollout", "gradcam"])
@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("vit_mu_patch80_sound1600", (13,)),
        ("vit_mu_patch8_mel16x32", (1, 2)),
        ("vit_mu_patch2x8_gap_video6x24", (2, 1, 0)),
    ],
)
def test_heat_is_where_the_input_differs(name: str, cell: tuple[int, ...], method: str) -> None:
    """Without positions, tokens of silence are all alike: only the token of the one sound in it has another heat."""
    model = fill(create_model(name, num_classes=8, position="none"), 0.3).eval()
    inputs = torch.zeros(1, model.spec.channels, *model.spec.image_size)
    sides = zip(cell, model.spec.stem.cell, strict=True)
    inputs[(..., *(slice(place * side, (place + 1) * side) for place, side in sides))] = 1.0
    heatmaps = plug.load(METHODS, method).compute_heatmaps(model, inputs, range(8)).numpy()
    assert heatmaps.max() > 0
    for heat in heatmaps:
        others = np.delete(heat, np.ravel_multi_index(cell, heat.shape))
        assert np.ptp(others) < 1e-5
        if heat.max() > 0:
            assert abs(heat[cell] - others[0]) > 100 * np.ptp(others)


def test_confidence_is_calibrated(runs: dict[str, Path], clips: dict[str, Path]) -> None:
    model = load(runs["waveform"])
    model.calibration = Calibration(temperature=0.01)
    found = explain(model, clips["waveform"])
    with torch.no_grad():
        expected = (model(found.inputs) / 0.01).softmax(dim=1).max().item()
    assert found.prediction[1] == pytest.approx(expected, abs=1e-5)


def test_what_latents_read(runs: dict[str, Path], clips: dict[str, Path]) -> None:
    found = found_in(runs["perceiver"], clips["perceiver"])
    spec = found.model.spec
    readings = list(found.readings())
    assert [each.shape for each in readings] == [(spec.num_latents, 3200)] * spec.num_stages
    three_heads = fill(create_model("perceiver_mu_sound1600", num_classes=2, cross_width=6, cross_heads=3), 0.1).eval()
    for each in (*readings, *explain(three_heads, clips["perceiver"]).readings()):
        assert np.allclose(each.sum(axis=1), 1.0, atol=1e-4)
    assert heat_image(found, "relevance", 0).shape == (1, 800)
    assert not list(found_in(runs["waveform"], clips["waveform"]).readings())
    with pytest.raises(InspectionError, match="Grad-CAM needs features on a grid"):
        found_in(runs["perceiver"], clips["perceiver"], methods=["gradcam"])


def test_options_work_as_for_images(runs: dict[str, Path], clips: dict[str, Path], tmp_path: Path) -> None:
    options = {"classes": ["LOW"], "methods": ["rollout"], "out": tmp_path / "out"}
    (only,) = explain_verb(runs["waveform"], [clips["waveform"]], **options)
    assert only.classes[0][0] == "low"
    assert only.page == tmp_path / "out" / "a tone.explained.html"
    assert "Grad-CAM" not in only.page.read_text()
    (top,) = explain_verb(runs["waveform"], [clips["waveform"]], top=1, out=tmp_path / "out")
    assert len(top.classes) == 1
    with pytest.raises(UnknownNameError, match="no class has this name"):
        explain_verb(runs["waveform"], [clips["waveform"]], classes=["cat"])
    both = explain_verb(runs["waveform"], [runs["waveform"].parent / "sound" / "low"], out=tmp_path / "all", top=1)
    assert len(both) == 5


def test_the_sound_track_of_a_video_is_explained(runs: dict[str, Path], tmp_path: Path) -> None:
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 16_000).astype(np.float32)
    (tmp_path / "video.avi").write_bytes(ramp_video(num_frames=10, format="avi", sound=noise))
    assert found_in(runs["waveform"], tmp_path / "video.avi").sample.shape == (3200,)


def test_the_command(
    runs: dict[str, Path], clips: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    words = [str(runs["video"]), str(clips["video"]), "--out", str(tmp_path / "out")]
    assert call(monkeypatch, *words, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    (clip,) = document["clips"]
    assert clip.keys() == {"clip", "page", "still", "classes", "summary"}
    assert sorted(map(Path, document["files"])) == sorted((tmp_path / "out").iterdir())
    assert call(monkeypatch, *words) == 0
    assert capsys.readouterr().out.startswith(f"{clips['video']}: {clip['summary']}\n")


@pytest.mark.parametrize(
    ("form", "name", "message"),
    [
        ("waveform", "image.png", "this model takes sounds, not images"),
        ("video", "image.png", "this model takes videos, not images"),
        ("video", "a tone.wav", "this model takes videos, not sounds"),
        ("waveform", "silent.wav", "silent.wav is silent"),
        ("waveform", "nowhere.wav", "nowhere.wav does not exist"),
        ("video", "nowhere.mp4", "nowhere.mp4 does not exist"),
        ("spectrogram", "image.wav", "image.wav is not a sound that Vitrail can read"),
        ("waveform", "some words that are no file", "this model explains clips, not text"),
        ("waveform", "empty", "there are no sounds in empty"),
    ],
)
def test_bad_input_is_one_message(
    form: str, name: str, message: str, runs: dict[str, Path], clips: dict[str, Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (32, 32)).save("image.png")
    Path("image.wav").write_bytes(Path("image.png").read_bytes())
    Path("silent.wav").write_bytes(wav(np.zeros(8000), RATE))
    Path("empty").mkdir()
    good = str(clips[form])
    assert call(monkeypatch, str(runs[form]), good, name) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "Traceback" not in output.err
    assert output.out == ""
    assert not Path("explained").exists(), "nothing is written before all inputs were read"


def test_a_clip_is_no_image_and_an_array_is_no_clip(
    runs: dict[str, Path], clips: dict[str, Path], tmp_path: Path
) -> None:
    model = create_model("vit_mu_patch16_64", num_classes=2)
    save_weights(model, tmp_path / "model.safetensors")
    options = {"weights": tmp_path / "model.safetensors", "out": tmp_path / "out"}
    for form, modality in (("waveform", "sounds"), ("video", "videos")):
        with pytest.raises(DataError, match=f"this model explains images, not {modality}"):
            explain_verb("vit_mu_patch16_64", [clips[form]], **options)
    with pytest.raises(InspectionError, match="this is not a clip"):
        explain(load(runs["waveform"]), np.zeros(3200, dtype=np.float32))
    with pytest.raises(DataError, match="this model takes sounds, not images"):
        explain(load(runs["waveform"]), tmp_path / "image.png")
    with pytest.raises(Exception, match="models of images only"):
        explain_image(load(runs["waveform"]), np.zeros((8, 8, 3), dtype=np.uint8))


def test_names_of_clips_and_classes_are_no_markup(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "a <b>tone<.wav").write_bytes(tone(440))
    model = load(runs["waveform"])
    model.labels = ("</script><b>", "$\\frac{$ 犬")
    found = explain(model, tmp_path / "a <b>tone<.wav")
    assert "<b>" not in found.page()
    save_figure(found.figure(), io.BytesIO(), "png", 40)


def test_drawings() -> None:
    wave = np.array([0.0, 1.0, 0.0, -1.0, 0.0] * 20)
    pixels = draw_waveform(wave, 50, 100)
    assert pixels.shape == (100, 50, 3)
    inked = (pixels != pixels[0, 0]).any(axis=-1)
    assert inked.any(axis=0).all(), "a line without gaps"
    assert (inked.argmax(axis=0) <= 10).any(), "the loudest is near the edge"
    assert (draw_waveform(wave, 50, 100, line=9) != pixels[0, 0]).any(axis=-1).sum(axis=0).min() >= 9
    bars = (draw_samples(np.array([0.5, -1.0]), (40, 8), peak=1.0) != pixels[0, 0]).any(axis=-1)
    assert not bars[25:, :8].any()
    assert not bars[:15, 8:].any()
    pooled = pool_columns(np.arange(10.0)[None], 4)
    assert np.allclose(pooled, [[1.0, 4.0, 7.0, 9.0]])
    paper = np.full((4, 4, 3), 200, dtype=np.uint8)
    tinted = multiply(paper, np.array([[0.0, 1.0]]))
    assert (tinted[:, :2] == 200).all()
    assert (tinted[:, 2:, 2] < 50).all()
