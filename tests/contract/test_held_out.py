"""The held-out validation set has its fraction of every class, and no image that training has too."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tests.contract.damage import encoded, photo
from tests.contract.small_images import table_of, write_folder
from vitrail.data.check import scan_source
from vitrail.data.held_out import HeldOut, group_duplicates, hold_out
from vitrail.data.source import folder
from vitrail.data.table import Table
from vitrail.errors import DataError


def divide(table: Table, *, fraction: float, seed: int) -> HeldOut:
    """A table divided after scanning each of its images."""
    return hold_out(table, fraction=fraction, seed=seed, scans=scan_source(table))


def copies(labels: list[int], originals: Sequence[int]) -> Table:
    """Images with these labels, each identical to its original."""
    table = table_of(labels)
    return replace(table, content=lambda row: table.content(int(originals[row])))


def multi_label(labels: list[list[int]], originals: Sequence[int] | None = None) -> Table:
    """Multi-label images, some without a label."""
    table = copies([0] * len(labels), range(len(labels)) if originals is None else originals)
    flat = [label for each in labels for label in each]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in labels])])
    classes = tuple(str(label) for label in range(max(flat) + 1))
    return replace(table, labels=np.array(flat, dtype=np.int32), starts=starts, classes=classes)


def counts(table: Table, rows: NDArray[np.int64]) -> list[int]:
    """The number of images of each class among these rows."""
    labels = [label for row in rows.tolist() for label in table.labels_of(row)]
    return np.bincount(np.array(labels, dtype=np.int64), minlength=len(table.classes)).tolist()


def check(table: Table, sides: HeldOut) -> None:
    """Two sorted sides that make up the table, no group on both, and every class in training."""
    for rows in (sides.train, sides.val):
        assert rows.dtype == np.int64
        assert (np.diff(rows) > 0).all()
    assert sorted([*sides.train.tolist(), *sides.val.tolist()]) == list(range(len(table)))
    groups = group_duplicates(table)
    assert not set(groups[sides.train].tolist()) & set(groups[sides.val].tolist())
    present = np.array(counts(table, np.arange(len(table)))) > 0
    assert (np.array(counts(table, sides.train)) > 0).tolist() == present.tolist()


def test_each_class_has_its_fraction() -> None:
    table = table_of([row % 3 for row in range(60)])
    sides = divide(table, fraction=0.2, seed=0)
    check(table, sides)
    assert (counts(table, sides.val), sides.num_groups) == ([4, 4, 4], 0)


def test_rounding_per_class_keeps_the_total() -> None:
    table = table_of([row % 10 for row in range(50)])
    held = {tuple(counts(table, divide(table, fraction=0.3, seed=seed).val)) for seed in range(4)}
    assert {tuple(sorted(each)) for each in held} == {(1,) * 5 + (2,) * 5}
    assert len(held) > 1  # which classes get one more is random


def test_classes_of_unequal_size() -> None:
    table = table_of([0] * 200 + [1] * 20 + [2] * 5 + [3] * 2 + [4])
    sides = divide(table, fraction=0.1, seed=3)
    check(table, sides)
    assert counts(table, sides.val) == [20, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("fraction", "held"), [(0.5, [10, 2, 1, 0]), (1e-9, [1, 1, 1, 0]), (0.02, [1, 1, 1, 0]), (0.999, [19, 3, 1, 0])]
)
def test_any_fraction_leaves_images_of_each_class_on_both_sides(fraction: float, held: list[int]) -> None:
    table = table_of([0] * 20 + [1] * 4 + [2] * 2 + [3])
    sides = divide(table, fraction=fraction, seed=0)
    check(table, sides)
    assert counts(table, sides.val) == held


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, 10.0, float("nan")])
def test_fractions_out_of_range(fraction: float) -> None:
    with pytest.raises(
        DataError, match=rf"must be between 0 and 1.\n  Got {fraction}.\n  Try 0.1, a tenth of each class."
    ):
        divide(table_of([0, 0, 1, 1]), fraction=fraction, seed=0)


def test_the_seed_alone_decides(tmp_path: Path) -> None:
    table = write_folder(tmp_path)
    calls: list[tuple[int, int]] = []
    progress = lambda done, whole: calls.append((done, whole))  # noqa: E731 - short
    scans = [scan_source(table, workers=workers, progress=progress) for workers in (1, 1, 0, 5)]
    first, *same = (hold_out(table, fraction=0.2, seed=7, scans=scan) for scan in scans)
    assert all(np.array_equal(first.val, other.val) for other in same)
    assert calls == [(done, 37) for done in range(1, 38)] * 4
    assert len({tuple(divide(table, fraction=0.2, seed=seed).val.tolist()) for seed in range(5)}) == 5


def test_without_scans_every_image_is_its_own_group() -> None:
    table = copies([0] * 8, [0] * 8)
    assert hold_out(table, fraction=0.5, seed=0, scans=None).val.shape == (4,)
    assert scan_source(table, seconds=0.0) is None


def test_the_split_never_changes() -> None:
    table = table_of([row % 3 for row in range(30)])
    assert divide(table, fraction=0.2, seed=0).val.tolist() == [11, 12, 14, 18, 19, 25]


def test_groups_are_numbered_by_first_occurrence() -> None:
    table = copies([0] * 8, [0, 1, 2, 1, 4, 0, 2, 0])
    assert group_duplicates(table).tolist() == [0, 1, 2, 1, 3, 0, 2, 0]
    assert divide(table, fraction=0.3, seed=0).num_groups == 3


def write_copies(root: Path) -> dict[str, str]:
    """Twelve images in each of two classes, two of them also copied, re-encoded and mirrored into both classes.

    Returns, for each file, the image that it shows.
    """
    random = np.random.default_rng(0)
    files: dict[str, tuple[str, bytes]] = {}
    for number in range(24):
        name, place = f"{number:02d}", "ab"[number % 2]
        content = encoded(photo(random, (112, 96)))
        files[f"{place}/{name}.jpg"] = name, content
        if number < 4:
            image, other = Image.open(io.BytesIO(content)), "ab"[number // 2]
            files[f"{other}/{name}_same.jpg"] = name, content
            files[f"{place}/{name}_again.webp"] = name, encoded(image, "WEBP", quality=40)
            files[f"{other}/{name}_mirrored.png"] = name, encoded(ImageOps.mirror(image), "PNG")
    for path, (_, content) in files.items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_bytes(content)
    return {path: name for path, (name, _) in files.items()}


def test_copies_are_never_divided(tmp_path: Path) -> None:
    """The same file, re-encoded and mirrored, in this class and in the other: one group, on one side."""
    shown = write_copies(tmp_path)
    table = folder.open_source(str(tmp_path))
    names = [shown[path] for path in table.names]
    order = list(dict.fromkeys(names))
    assert group_duplicates(table).tolist() == [order.index(name) for name in names]
    held_groups = set()
    for seed in range(6):
        sides = divide(table, fraction=0.4, seed=seed)
        check(table, sides)
        assert sides.num_groups == 4
        assert len(sides.val) in (14, 15)
        held_groups |= {names[row] for row in sides.val}
    assert held_groups & {"00", "01", "02", "03"}


def test_a_small_fraction_takes_the_small_group() -> None:
    """One class has a large group and a single image, one only copies of one image, the others only large groups."""
    originals = [0] * 5 + [5] + [6] * 5 + [11] * 3 + [14] * 3 + [17] * 5 + [22] * 3 + [25] * 4
    table = copies([0] * 6 + [1] * 5 + [2] * 6 + [3] * 12, originals)
    for seed in range(4):
        sides = divide(table, fraction=0.1, seed=seed)
        check(table, sides)
        assert counts(table, sides.val) == [1, 0, 3, 3]
        assert 5 in sides.val


def test_whole_groups_come_as_close_as_possible() -> None:
    table = copies([0] * 40, [row // 4 * 4 for row in range(40)])
    sizes = [len(divide(table, fraction=fraction, seed=0).val) for fraction in (0.01, 0.125, 0.15, 0.175, 0.5)]
    assert sizes == [4, 4, 4, 8, 20]  # for 1, 5, 6, 7 and 20; 6 is as close to 4 as to 8


def test_the_same_image_under_two_labels_counts_for_both() -> None:
    """Class 1 has only images that class 0 has too; class 2 has a single image, which is also in class 0."""
    table = copies([0, 0, 0, 0, 0, 0, 1, 1, 2], [0, 1, 2, 3, 4, 5, 0, 1, 2])
    for seed in range(6):
        sides = divide(table, fraction=0.3, seed=seed)
        check(table, sides)
        assert counts(table, sides.val) == [2, 1, 0]


def test_training_comes_first_where_not_every_class_can_be_held_out() -> None:
    """Three groups, three classes, each class in two groups: whatever is held out, one class has none or all."""
    table = copies([0, 0, 1, 1, 2, 2], [0, 1, 1, 3, 3, 0])
    for seed in range(6):
        sides = divide(table, fraction=0.5, seed=seed)
        check(table, sides)
        assert sorted(counts(table, sides.val)) == [0, 1, 1]


def test_random_tables_are_divided_well() -> None:
    for seed in range(25):
        random = np.random.default_rng(seed)
        num, fraction = int(random.integers(20, 80)), float(random.choice([0.05, 0.2, 0.5, 0.8]))
        labels = np.sort(np.concatenate([np.arange(4), random.geometric(0.4, num).clip(1, 4) - 1]))
        originals = np.arange(len(labels))
        for row in np.flatnonzero(random.random(len(labels)) < 0.3):  # copies within a class
            originals[row] = originals[random.choice(np.flatnonzero(labels == labels[row]))]
        table = copies(labels.tolist(), originals.tolist())
        sides = divide(table, fraction=fraction, seed=seed)
        check(table, sides)
        held = counts(table, sides.val)
        groups = group_duplicates(table)
        for label in range(4):
            of_class = np.bincount(groups[labels == label])
            largest, whole = of_class.max(), (labels == label).sum()
            assert (held[label] > 0) == ((of_class > 0).sum() > 1)
            assert held[label] == 0 or abs(held[label] - fraction * whole) <= largest


def test_multi_label_tables() -> None:
    """Rare labels that come with common ones, and images without any: each gets its fraction."""
    random = np.random.default_rng(0)
    rates = [0.6, 0.3, 0.1, 0.03]
    labels = [[label for label, rate in enumerate(rates) if random.random() < rate] for _ in range(400)]
    table = multi_label(labels, [row - row % 2 if row < 100 else row for row in range(400)])
    bare = {row for row, each in enumerate(labels) if not each}
    whole = np.array(counts(table, np.arange(400)))
    for seed in range(3):
        sides = divide(table, fraction=0.2, seed=seed)
        check(table, sides)
        assert (np.abs(np.array(counts(table, sides.val)) - 0.2 * whole) <= 2.0).all()
        assert abs(len(bare & set(sides.val.tolist())) - 0.2 * len(bare)) <= 2.0
        assert abs(len(sides.val) - 80) <= 4
        assert sides.num_groups == 50


def test_rare_labels_take_nothing_from_the_others() -> None:
    """Ten labels with two images each need half of these, and so most of the quota of the label that all images have.

    The last labels come with that one too, and still get their fraction.
    """
    table = multi_label([[0, 1 + row // 2] for row in range(20)] + [[0, 11, 12]] * 20 + [[0, 13]] * 60 + [[0, 14]])
    sides = divide(table, fraction=0.1, seed=0)
    check(table, sides)
    assert counts(table, sides.val) == [18] + [1] * 10 + [2, 2, 6, 0]


def test_rare_labels_are_held_out_first() -> None:
    """Groups of three are too large for both labels; the one for the rare label is enough for the common one."""
    table = multi_label([[0, 1]] * 6 + [[0]] * 15, [row // 3 * 3 for row in range(21)])
    for seed in range(4):
        assert counts(table, divide(table, fraction=0.1, seed=seed).val) == [3, 3]


def test_broken_images_stay_in_training_uncounted(tmp_path: Path) -> None:
    """Three empty files are not a group, and a class with one readable image keeps it in training."""
    write_folder(tmp_path, 30)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "good.png").write_bytes(encoded(photo(np.random.default_rng(0), (40, 40)), "PNG"))
    for name in ("a/x.jpg", "a/y.jpg", "d/x.jpg"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "d" / "half.png").write_bytes((tmp_path / "a" / "000.png").read_bytes()[:500])
    table = folder.open_source(str(tmp_path))
    assert len(set(group_duplicates(table).tolist())) == len(table) == 35
    for seed in range(6):
        sides = divide(table, fraction=0.5, seed=seed)
        assert counts(table, sides.val) == [5, 5, 5, 0]
        assert sides.num_groups == 0
        train = {table.names[row] for row in sides.train}
        assert train >= {"a/x.jpg", "a/y.jpg", "d/x.jpg", "d/half.png", "d/good.png"}


def test_an_empty_table() -> None:
    for table in (table_of([0]).only([]), multi_label([[0, 1], [1]]).only([])):
        sides = divide(table, fraction=0.1, seed=0)
        assert (len(sides.train), len(sides.val), sides.num_groups) == (0, 0, 0)
