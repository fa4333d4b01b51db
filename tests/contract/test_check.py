"""`vitrail check` finds everything that is wrong, nothing else, and changes no byte."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tests.contract.damage import CHANGES, DAMAGES, damage, encoded, photo
from tests.forge import Forge
from vitrail import check
from vitrail.data.check import KINDS, Report
from vitrail.data.class_audit import class_findings
from vitrail.data.duplicates import MAX_PARTNERS, Thumbnail, find_near_duplicates
from vitrail.data.find import open_data
from vitrail.errors import DataError


def tree(root: Path) -> dict[str, str]:
    """Every file with its hash and modification time."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() + str(path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def write(root: Path, names: list[str], seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photo(random)))


def kinds(report: Report) -> set[tuple[str, str]]:
    return {(finding.path, finding.kind) for finding in report.findings}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("clean")
    write(root, [f"{name}/{number:03d}.jpg" for name in ("cat", "dog") for number in range(70)])
    return root


def test_clean_data_has_no_findings(clean: Path) -> None:
    report = check(clean)
    assert (report.ok, report.files, report.findings) == (True, 140, ())
    assert report.counts == {"": {"cat": 70, "dog": 70}}
    assert report.formats == {"JPEG": 140}


def test_every_damage_is_found_with_its_kind_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, [f"{name}/{number:03d}.jpg" for name in ("cat", "dog") for number in range(100)])
    random = np.random.default_rng(0)
    chosen = random.permutation(sorted(tmp_path.rglob("*.jpg")))[: 3 * len(DAMAGES)]
    ways = [way for way in DAMAGES for _ in range(3)]
    expected = {}
    for path, way in zip(chosen, ways, strict=True):
        expected[damage(path, way).relative_to(tmp_path).as_posix()] = DAMAGES[way][0]
    before = tree(tmp_path)
    report = check(tmp_path)
    found = {finding.path: finding.kind for finding in report.findings}
    assert found.keys() == expected.keys()
    assert {path for path, kind in found.items() if kind not in expected[path].split()} == set()
    assert all(finding.detail for finding in report.findings)
    assert tree(tmp_path) == before


def test_near_duplicates_leaks_and_contradictions(tmp_path: Path) -> None:
    names = [f"{split}/{name}/{number:02d}.jpg" for split in ("train", "val") for name in "ab" for number in range(30)]
    write(tmp_path, names)
    random = np.random.default_rng(1)
    expected = set()
    for number, change in enumerate(CHANGES.values()):
        original = Image.open(tmp_path / f"train/a/{number:02d}.jpg")
        (tmp_path / f"train/a/near{number}.jpg").write_bytes(change(original, random))
        (tmp_path / f"val/b/near{number}.jpg").write_bytes(
            change(Image.open(tmp_path / f"train/b/{number:02d}.jpg"), random)
        )
        expected |= {(f"train/a/near{number}.jpg", "near-duplicate"), (f"val/b/near{number}.jpg", "leak")}
    same = (tmp_path / "train/a/29.jpg").read_bytes()
    for name in ("train/a/same.jpg", "val/a/same.jpg", "train/b/same.jpg"):
        (tmp_path / name).write_bytes(same)
    expected |= {("train/a/same.jpg", "duplicate"), ("val/a/same.jpg", "leak"), ("train/b/same.jpg", "duplicate")}
    expected |= {("train/b/same.jpg", "contradiction")}
    report = check(tmp_path)
    # Images encoded as PNG or WebP also have the wrong suffix.
    assert {each for each in kinds(report) if each[1] != "wrong-suffix"} == expected
    leak = next(finding for finding in report.findings if finding.path == "val/a/same.jpg")
    assert leak.other == "train/a/29.jpg"
    assert "in val and in train" in leak.detail


def test_the_same_shape_in_another_colour_is_not_a_duplicate(tmp_path: Path) -> None:
    image = photo(np.random.default_rng(0))
    red, green, blue = image.split()
    for number, bands in enumerate([(red, green, blue), (blue, green, red), (green, red, blue)]):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.png").write_bytes(
            encoded(Image.merge("RGB", bands).convert("L").convert("RGB"), "PNG")
        )
    light = np.asarray(image.convert("L").resize((40, 40)))
    grey, warm = np.full((2, 4, 4), 128, np.uint8), np.full((2, 4, 4), 128, np.uint8)
    warm[1] = 170
    assert find_near_duplicates([Thumbnail(light, grey), Thumbnail(light, warm)]) == []
    assert [pair[:2] for pair in find_near_duplicates([Thumbnail(light, grey), Thumbnail(light, grey)])] == [(0, 1)]


def test_different_images_with_the_same_border_are_not_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A black border dominates the thumbnails, but not every cell of them."""
    random = np.random.default_rng(0)
    colour, thumbnails = np.full((2, 4, 4), 128, np.uint8), []
    for _ in range(40):
        light = np.full((40, 40), 5, np.uint8)
        light[6:34, 6:34] = 150 + np.asarray(photo(random).convert("L").resize((28, 28)), dtype=np.uint8) // 3
        thumbnails.append(Thumbnail(light, colour))
    num_pairs = 40 * 39 // 2
    assert len(find_near_duplicates(thumbnails)) < 0.03 * num_pairs
    monkeypatch.setattr("vitrail.data.duplicates.MIN_CELL_CORRELATION", {})
    assert len(find_near_duplicates(thumbnails)) > 0.3 * num_pairs


def test_a_large_group_of_duplicates_is_connected() -> None:
    """A thousand thumbnails, each slightly different, of three images: three groups, without a million pairs."""
    random = np.random.default_rng(0)
    originals = [np.asarray(photo(random).convert("L").resize((40, 40))).astype(int) for _ in range(3)]
    colour = np.full((2, 4, 4), 128, np.uint8)
    thumbnails = [
        Thumbnail(np.clip(originals[number % 3] + random.integers(-2, 3, (40, 40)), 0, 255).astype(np.uint8), colour)
        for number in range(1000)
    ]
    pairs = np.array([(pair.first, pair.second) for pair in find_near_duplicates(thumbnails)])
    assert len(pairs) < 1000 * MAX_PARTNERS
    graph = coo_array((np.ones(len(pairs)), tuple(pairs.T)), shape=(1000, 1000))
    num, group = connected_components(graph, directed=False)
    assert (num, sorted(np.bincount(group).tolist())) == (3, [333, 333, 334])


def test_small_arrays_are_only_compared_exactly() -> None:
    report = check("digits")
    assert report.ok
    assert report.files == 1797


def test_blank_rotated_and_mixed_images(tmp_path: Path) -> None:
    write(tmp_path, [f"a/{number}.jpg" for number in range(6)])
    (tmp_path / "a" / "blank.png").write_bytes(encoded(Image.new("RGB", (90, 80), "teal"), "PNG"))
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a" / "rotated.jpg").write_bytes(encoded(photo(np.random.default_rng(9), (200, 150)), exif=exif))
    (tmp_path / "a" / "grey.jpg").write_bytes(encoded(photo(np.random.default_rng(8)).convert("L")))
    report = check(tmp_path)
    assert kinds(report) == {("a/blank.png", "blank")}
    notes = "\n".join(report.notes)
    assert "colour modes are mixed: RGB 8, L 1" in notes
    assert "sizes are mixed: 3 different ones, 90 x 80 to 224 x 224" in notes
    assert "1 of 9 images have an EXIF rotation" in notes
    assert "shapes are mixed: square 7, landscape 1, portrait 1" in notes


def found(counts: dict[str, dict[str, int]]) -> dict[str, list[str]]:
    table: dict[str, list[str]] = {}
    for finding in class_findings(counts):
        table.setdefault(finding.kind, []).append(finding.detail)
    return table


def test_classes_between_splits() -> None:
    table = found({"train": {"cat": 50, "dog": 50}, "val": {"cat": 10, "dgo": 1}})
    assert table["untrained-class"] == ["dgo has no images in train"]
    assert table["missing-class"] == ["dog has no images in val"]
    assert table["misspelling"] == ["1 of 'dgo', 50 of 'dog': the same class?"]
    assert found({"train": {"a": 50, "b": 50}, "test": {"a": 5, "b": 5}}) == {}


def test_classes_under_two_names() -> None:
    table = found({"": {"Cat": 9, "cat": 9, "caf\u00e9": 9, "cafe\u0301": 9, "red fox": 9, "Red_Fox": 9}})
    assert sorted(detail.rpartition(" in ")[2].partition(",")[0] for detail in table["same-class"]) == [
        "Unicode form",
        "spaces",
        "upper and lower case",
    ]
    assert "misspelling" not in found({"": {"cat1": 100, "cat2": 2, "cat3": 100}})


def test_small_and_imbalanced_classes() -> None:
    table = found({"": {"a": 4, "b": 40}})
    assert table == {"few-images": ["a has 4 images"], "imbalance": ["b has 40 images, a has 4"]}
    many = found({"": {f"class{number}": 1 for number in range(100)}})
    assert many["few-images"] == [
        "100 classes have fewer than 5 images, such as class0, class1, class10, class11, class12"
    ]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-m", "vitrail", "check", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=120)


def test_exit_codes_json_and_summary(clean: Path, tmp_path: Path, forge: Forge) -> None:
    done = run(str(clean), "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (done.returncode, document["files"], document["findings"], document["ok"]) == (0, 140, [], True)
    write(tmp_path / "bad", [f"a/{number}.jpg" for number in range(9)])
    (tmp_path / "bad" / "a" / "\u2603\nnew.jpg").write_bytes(b"")
    Path(os.fsdecode(bytes(tmp_path / "bad" / "a") + b"/\xff\xfe.jpg")).write_bytes(b"")
    done = forge.run_cli("check", "bad", "--json", "--quiet", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (done.returncode, document["ok"], done.stderr) == (3, False, "")
    assert {finding["kind"] for finding in document["findings"]} == {"empty"}
    assert document["findings"][0].keys() >= {"path", "kind", "detail"}
    done = forge.run_cli("check", "bad", cwd=tmp_path)
    assert done.returncode == 3
    assert "empty: 2 (the file has no content)" in done.stdout
    assert "\\n" in done.stdout
    assert "\\udcff" in done.stdout
    assert "11 files checked" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad"]


def test_the_sheet(tmp_path: Path) -> None:
    data = tmp_path / "<b>data"
    write(data, [f"a/{number}.jpg" for number in range(60)])
    (data / "a" / "copy.jpg").write_bytes((data / "a" / "7.jpg").read_bytes())
    (data / "a" / "<script>x.jpg").write_bytes(b"")
    before = tree(data)
    check(data, sheet=tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 2  # the duplicate and its original
    assert "<script>" not in page
    assert "<b>" not in page
    assert "&lt;script&gt;x.jpg" in page
    assert "http" not in page.replace("http-equiv", "")
    assert tree(data) == before


@pytest.mark.parametrize("place", ["data/a/sheet.html", "nowhere/sheet.html", ".", "data/a/0.jpg"])
def test_a_sheet_that_cannot_be_written(place: str, tmp_path: Path) -> None:
    write(tmp_path / "data", ["a/0.jpg"])
    with pytest.raises(DataError, match=r"never written to|cannot be written|HTML file"):
        check(tmp_path / "data", sheet=tmp_path / place)


def test_a_zip_and_a_folder_have_the_same_findings(tmp_path: Path) -> None:
    import shutil

    write(tmp_path / "data", [f"{split}/a/{number}.jpg" for split in ("train", "val") for number in range(9)])
    (tmp_path / "data/val/a/leak.jpg").write_bytes((tmp_path / "data/train/a/3.jpg").read_bytes())
    (tmp_path / "data/val/a/half.jpg").write_bytes((tmp_path / "data/train/a/3.jpg").read_bytes()[:2000])
    archive = shutil.make_archive(str(tmp_path / "data"), "zip", tmp_path / "data")
    assert (
        kinds(check(archive))
        == kinds(check(tmp_path / "data"))
        == {
            ("val/a/leak.jpg", "leak"),
            ("val/a/half.jpg", "truncated"),
        }
    )


def test_every_kind_is_documented() -> None:
    from tests.conftest import ROOT

    page = (ROOT / "docs" / "data.md").read_text()
    assert [kind for kind in KINDS if f"`{kind}`" not in page] == []


@pytest.mark.data
def test_real_photos_give_no_false_alarms(data_dir: Path) -> None:
    """One of Oxford Pets' 1,480 images is there twice, resized, as checked by eye. Nothing else is similar."""
    report = check(next((data_dir / "oxford_pets").glob("*.zip")))
    assert Counter(finding.kind for finding in report.findings) == {"near-duplicate": 1}
    assert "Birman_199" in report.findings[0].detail
    assert len(open_data(next((data_dir / "oxford_pets").glob("*.zip")))) == report.files == 1480


def test_frames_of_a_pan_are_matched_with_their_neighbours(tmp_path: Path) -> None:
    """Windows that slide over one image: each is paired with a window that it really resembles."""
    wide = photo(np.random.default_rng(0), (1600, 400))
    for number in range(40):
        path = tmp_path / ("left" if number < 20 else "right") / f"{number:02d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(wide.crop((20 * number, 0, 20 * number + 800, 400))))
    report = check(tmp_path)
    contradictions = [finding for finding in report.findings if finding.kind == "contradiction"]
    assert contradictions
    for finding in contradictions:
        assert abs(int(Path(finding.path).stem) - int(Path(finding.other).stem)) <= 5


def test_a_class_without_a_readable_image_is_reported(tmp_path: Path) -> None:
    write(tmp_path, [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(9)])
    (tmp_path / "bird").mkdir()
    (tmp_path / "bird" / "0.jpg").write_bytes(b"")
    (tmp_path / "fish").mkdir()
    report = check(tmp_path)
    assert {("bird/0.jpg", "empty"), ("bird", "few-images"), ("fish", "ignored")} == kinds(report)


def test_an_archive_next_to_class_folders_is_not_the_data(tmp_path: Path) -> None:
    import tarfile

    write(tmp_path, [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(9)])
    with tarfile.open(tmp_path / "original.tgz", "w:gz") as archive:
        archive.add(tmp_path / "cat", "cat")
    (tmp_path / "other.parquet").write_bytes(b"PAR1")
    report = check(tmp_path)
    assert report.files == 18
    assert kinds(report) == {("original.tgz", "ignored"), ("other.parquet", "ignored")}
