"""Images that are made to cost time and memory: refused or answered, in every place that an image can reach."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.contract.serving import MODEL, ServerProcess, jpeg, write_weights
from tests.hostile.images import TWINS, bmp_rle_within_limits, png_grey16, tiff_damaged
from vitrail import create_model
from vitrail.data import decode, guard
from vitrail.data.check import check_source
from vitrail.data.decode import FORMATS, decode_image, to_pixels
from vitrail.data.decode_budget import decode_cost
from vitrail.data.prepare.image import image_loader
from vitrail.data.source import folder
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError
from vitrail.verbs.predict import predict

REFUSED = (
    "jpeg_scans", "jpeg_many_scans", "jpeg_exif_segments", "jpeg_tiny_segments", "bmp_rle_lines", "tiff_tiny_tiles",
    "tiff_huge_tile", "png_tiny_chunks", "png_empty_data",
)  # fmt: skip
DAMAGED = ("tiff_damaged", "png_text_bombs", "png_profile_bomb")
PLAIN = ("tiff_float", "png_grey16", "png_rgba16", "webp_large")
SUFFIXES = {"jpeg": "jpg", "tiff": "tif"}


@pytest.fixture(scope="module")
def twins() -> dict[str, bytes]:
    return {name: make() for name, make in TWINS.items()}


@pytest.fixture(scope="module")
def data(twins: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them in class folders, with two good images each."""
    root = tmp_path_factory.mktemp("hostile")
    for number, (name, content) in enumerate(twins.items()):
        path = root / "ab"[number % 2] / f"{name}.{SUFFIXES.get(kind := name.partition('_')[0], kind)}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for number in range(4):
        (root / "ab"[number % 2] / f"good_{number}.jpg").write_bytes(jpeg(number))
    return root


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    one = ServerProcess(tmp_path_factory.mktemp("serve"), weights=weights)
    yield one
    assert one.stop() == 0


@pytest.mark.parametrize("name", TWINS)
def test_headers_tell(name: str, twins: dict[str, bytes]) -> None:
    """Refused before decoding, or decoded where it can be ended, or known to be affordable."""
    if name in REFUSED:
        with pytest.raises(DataError, match=r"is too costly to decode.\n  Got .*\n  Try re-saving"):
            decode_cost(twins[name], name)
        with pytest.raises(DataError, match=f"{name} is too costly"):
            decode_image(twins[name], name=name)
        return
    assert bool(decode_cost(twins[name]).doubt) == (name not in (*PLAIN, "tiff_damaged"))
    if name in DAMAGED:
        with pytest.raises(DataError, match=f"{name} is damaged"):
            decode_image(twins[name], name=name)
    else:
        pixels = decode_image(twins[name], name=name)
        assert pixels.dtype == np.uint8
        assert pixels.flags.writeable


@pytest.mark.parametrize("image_format", FORMATS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_good_images_are_decoded_in_place(image_format: str, mode: str) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 50, 3), dtype=np.uint8)).convert(mode)
    options = {"JPEG": {"progressive": True}, "TIFF": {"compression": "tiff_lzw"}, "WEBP": {"lossless": True}}
    for option in ({}, options.get(image_format, {})):
        file = io.BytesIO()
        image.save(file, image_format, **option)
        cost = decode_cost(file.getvalue())
        assert (cost.doubt, cost.size) == ("", (30, 50))
        assert 0 < cost.memory < 100_000


def test_a_guard_that_takes_too_long_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    good = bmp_rle_within_limits(4, 4)
    expected = decode_image(good)
    monkeypatch.setattr(guard, "MAX_SECONDS", 0.05)
    with pytest.raises(DataError, match=r"the image is too costly to decode.\n  Got no result after 0.05 s"):
        decode_image(bmp_rle_within_limits(900, 9000))
    monkeypatch.undo()
    assert np.array_equal(decode_image(good), expected)


def test_a_guard_that_dies_is_replaced() -> None:
    good = bmp_rle_within_limits(4, 4)
    expected = decode_image(good)
    (idle, *_) = guard._pool(guard.os.getpid())._idle[::-1]
    idle.process.kill()
    with pytest.raises(DataError, match="crashes the decoder"):
        decode_image(good)
    assert np.array_equal(decode_image(good), expected)


def test_a_guard_decodes_as_this_process_does(twins: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduced, upright and in the colours of the preprocessing."""
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (320, 480, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    image.save(file, "JPEG", exif=exif)
    for mode in ("rgb", "grey"):
        values = (0.5,) * (3 if mode == "rgb" else 1)
        preprocess = Preprocess(size=(32, 32), mode=mode, mean=values, std=values)
        expected = preprocess.decode(file.getvalue())
        with monkeypatch.context() as patch:
            patch.setattr("vitrail.data.decode_budget.USUAL_SEGMENTS", -1)
            assert decode_cost(file.getvalue()).doubt
            assert np.array_equal(preprocess.decode(file.getvalue()), expected)


def test_damage_stays_off_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match="damaged"):
        decode_image(tiff_damaged())
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK"])
def test_a_large_image_is_converted_in_bands(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 256, (40, 30, 4), dtype=np.uint8)
    image = Image.fromarray(values)
    image = (image.convert("L") if mode in ("I;16", "I", "F", "LA") else image.convert("RGB")).convert(mode)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(values[:, :, 3]))
    whole = to_pixels(image)
    monkeypatch.setattr(decode, "BAND_PIXELS", 200)
    assert np.array_equal(to_pixels(image), whole)


def test_check_names_them(data: Path) -> None:
    report = check_source(folder.open_source(str(data)))
    kinds = {
        Path(finding.path).stem: finding.kind for finding in report.findings if finding.kind in ("costly", "damaged")
    }
    assert kinds == dict.fromkeys(REFUSED, "costly") | dict.fromkeys(DAMAGED, "damaged")


def test_predict_names_them(data: Path, weights: Path) -> None:
    results = {Path(result.path).stem: result for result in predict(MODEL, [data], weights=weights)}
    assert {name for name, result in results.items() if result.error is not None} == {*REFUSED, *DAMAGED}
    assert results["jpeg_scans"].error == "is too costly to decode. 300 scans of 0.2 megapixels."


def test_training_skips_them(data: Path) -> None:
    source = folder.open_source(str(data))
    loader = image_loader(source, Preprocess(size=(16, 16)), batch_size=8, workers=2, policy="skip")
    num = sum(len(batch.names) for batch in loader.epoch())
    assert {Path(finding.path).stem for finding in loader.skipped} == {*REFUSED, *DAMAGED}
    assert num == len(source) - len(loader.skipped)


def test_explain_refuses_them(twins: dict[str, bytes]) -> None:
    model = create_model(MODEL, num_classes=4)
    for name in ("jpeg_scans", "tiff_huge_tile", "png_text_bombs"):
        with pytest.raises(DataError):
            model.explain(twins[name])


def test_serve_answers_each(server: ServerProcess, twins: dict[str, bytes]) -> None:
    (worker,) = server.workers
    for name, content in twins.items():
        response = server.post(content)
        assert (response.status, name in (*REFUSED, *DAMAGED)) in ((200, False), (422, True)), (name, response.body)
        if response.status == 422:
            assert response.code == "bad_image"
    for name in ("jpeg_scans", "bmp_rle_lines"):
        assert server.post(twins[name], "/v1/explain").code == "bad_image"
    assert server.post(jpeg()).status == 200
    assert [each.pid for each in server.workers] == [worker.pid]
    assert server.metric("vitrail_worker_restarts_total") == 0


def test_serve_predicts_costly_images_alike(server: ServerProcess) -> None:
    """Decoded elsewhere, an image gets the same prediction; in a form, the others keep their places."""
    costly = bmp_rle_within_limits(20, 20)
    files = [("a", jpeg(1)), ("b", costly), ("c", TWINS["jpeg_scans"]()), ("d", jpeg(2))]
    rows = server.post_form(files).document["predictions"]
    assert [row["name"] for row in rows] == ["a", "b", "c", "d"]
    assert rows[2]["error"]["code"] == "bad_image"
    file = io.BytesIO()
    Image.fromarray(decode_image(costly)).save(file, "PNG")
    alone = [server.post(content).document["predictions"][0] for content in (jpeg(1), file.getvalue(), jpeg(2))]
    for row, other in zip((rows[0], rows[1], rows[3]), alone, strict=True):
        assert row["label"] == other["label"]
        assert row["confidence"] == pytest.approx(other["confidence"], abs=1e-5)


def test_serve_refuses_what_is_too_large_together(server: ServerProcess) -> None:
    large = png_grey16(4000)
    response = server.post_form([(str(number), large) for number in range(16)])
    assert (response.status, response.code) == (413, "too_large")
    assert "take too long to decode" in response.document["error"]["message"]
