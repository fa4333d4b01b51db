"""The recall, false alarms and speed of `vitrail check`, at full size.

    VITRAIL_DATA=DIR python benchmarks/check.py > benchmarks/check.json

DIR contains imagenet/ and oxford_pets/ (see CONTRIBUTING.md). Takes some minutes; writes only to a temporary folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.contract.damage import CHANGES, DAMAGES, damage, encoded, photo
from vitrail import check
from vitrail.benchmark.compare import hardware

DATA = Path(os.environ["VITRAIL_DATA"])
NUM_IMAGES, DAMAGED_FRACTION, SEED = 10_000, 0.05, 0
NUM_NEAR, NUM_LEAKS = 500, 300


def photos(kind: str) -> list[Image.Image]:
    """Read all images of a zip of real photos."""
    with zipfile.ZipFile(next((DATA / kind).glob("*.zip"))) as archive:
        names = sorted(name for name in archive.namelist() if name.lower().endswith((".jpg", ".jpeg")))
        return [Image.open(io.BytesIO(archive.read(name))).convert("RGB") for name in names]


def state(root: Path) -> str:
    """A hash of all names, contents and times."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(f"{path} {path.stat().st_mtime_ns} {path.stat().st_size}".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def write_set(root: Path, num: int, random: np.random.Generator) -> list[Path]:
    """Write images of 224 px in ten classes, each a blend of a rotated quarter of a real photo and its own pattern."""
    real = photos("imagenet")
    paths = []
    for number in range(num):
        path = root / f"class{number % 10}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        base = real[number % len(real)]
        again = number // len(real)  # another quarter of the photo, or another rotation
        left, top = again // 4 % 2 * 0.5, again // 8 * 0.5
        box = (left * base.width, top * base.height, (left + 0.5) * base.width, (top + 0.5) * base.height)
        part = base.resize((224, 224), box=box).rotate(90 * (again % 4))
        path.write_bytes(encoded(Image.blend(part, photo(random), 0.5)))
        paths.append(path)
    return paths


def damages(folder: Path) -> dict[str, object]:
    """Damaged files among ten thousand, and the time for a tenth of the files and for all."""
    random = np.random.default_rng(SEED)
    paths = write_set(folder, NUM_IMAGES, random)
    small = folder.parent / "small"
    for path in paths[: NUM_IMAGES // 10]:
        target = small / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    expected = {}
    for place, number in enumerate(random.permutation(NUM_IMAGES)[: int(NUM_IMAGES * DAMAGED_FRACTION)]):
        way = list(DAMAGES)[place % len(DAMAGES)]
        expected[damage(paths[number], way).relative_to(folder).as_posix()] = way
    before = state(folder)
    seconds = {"small": [], "large": []}
    for _ in range(3):  # in turns, so that noise affects both
        for name, root in (("small", small), ("large", folder)):
            start = time.perf_counter()
            report = check(root)
            seconds[name].append(time.perf_counter() - start)
    found = {finding.path: finding for finding in report.findings}
    right = {path for path, way in expected.items() if path in found and found[path].kind in DAMAGES[way][0].split()}
    return {
        "files": report.files,
        "damaged": len(expected),
        "ways": len(DAMAGES),
        "found_with_reason": len(right),
        "missed": sorted(expected.keys() - right),
        "false_alarms": [finding._asdict() for finding in report.findings if finding.path not in expected],
        "unchanged": state(folder) == before,
        "seconds_10000": seconds["large"],
        "seconds_1000": seconds["small"],
        "files_per_second": [NUM_IMAGES / each for each in seconds["large"]],
        "times_as_long_for_ten_times_as_many": [a / b for a, b in zip(seconds["large"], seconds["small"], strict=True)],
    }


def near_duplicates(folder: Path) -> dict[str, object]:
    """Changed copies of pets among all pets, in one split; then leaks planted from train into val."""
    random = np.random.default_rng(SEED)
    real = photos("oxford_pets")
    (folder / "near" / "pets").mkdir(parents=True)
    for number, image in enumerate(real):
        (folder / "near" / "pets" / f"{number:04d}.jpg").write_bytes(encoded(image))
    planted = {}
    for place, number in enumerate(random.permutation(len(real))[:NUM_NEAR].tolist()):
        way = list(CHANGES)[place % len(CHANGES)]
        name = f"z{number:04d}.jpg"
        (folder / "near" / "pets" / name).write_bytes(CHANGES[way](real[number], random))
        planted[f"pets/{name}"] = (f"pets/{number:04d}.jpg", way)
    report = check(folder / "near")
    duplicates = [finding for finding in report.findings if finding.kind in ("duplicate", "near-duplicate")]
    hits = {
        finding.path for finding in duplicates if finding.path in planted and finding.other == planted[finding.path][0]
    }
    others = [finding for finding in duplicates if finding.path not in planted or finding.path not in hits]
    for number, image in enumerate(real):
        split = "train" if number % 2 else "val"
        path = folder / "leaks" / split / f"{number // 2 % 4}" / f"{number:04d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(image))
    train = [number for number in range(len(real)) if number % 2]
    leaks = set()
    for place, number in enumerate(random.permutation(train)[:NUM_LEAKS].tolist()):
        way = list(CHANGES.values())[place % len(CHANGES)]
        name = f"val/{number // 2 % 4}/z{number:04d}.jpg"
        (folder / "leaks" / name).write_bytes(way(real[number], random))
        leaks.add(name)
    reported = {finding.path for finding in check(folder / "leaks").findings if finding.kind == "leak"}
    return {
        "pictures": len(real),
        "planted": NUM_NEAR,
        "found": len(hits),
        "missed": Counter(planted[name][1] for name in planted.keys() - hits),
        "other_pairs": [finding._asdict() for finding in others],
        "leaks_planted": NUM_LEAKS,
        "leaks_found": len(reported & leaks),
        "leaks_besides": sorted(reported - leaks),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="vitrail-check-") as temporary:
        result = {
            "hardware": hardware(),
            "seed": SEED,
            "damages": damages(Path(temporary) / "large"),
            "near_duplicates": near_duplicates(Path(temporary)),
        }
    print(json.dumps(result, indent=2))
