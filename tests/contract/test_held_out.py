"""A part held out of training has every class in its share, and no picture that training has too."""

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
from vitrail.data.held_out import HeldOut, grouped, hold_out
from vitrail.data.source import folder
from vitrail.data.table import Table
from vitrail.errors import DataError


def divided(table: Table, *, share: float, seed: int) -> HeldOut:
    """A table divided after a look at each of its pictures."""
    return hold_out(table, share=share, seed=seed, seen=scan_source(table))


def copies(labels: list[int], originals: Sequence[int]) -> Table:
    """Pictures of these labels, each the same as its original."""
    table = table_of(labels)
    return replace(table, content=lambda row: table.content(int(originals[row])))


def multi_label(labels: list[list[int]], originals: Sequence[int] | None = None) -> Table:
    """Pictures of several labels each, or none."""
    table = copies([0] * len(labels), range(len(labels)) if originals is None else originals)
    flat = [label for each in labels for label in each]
    starts = np.concatenate([[0], np.cumsum([len(each) for each in labels])])
    classes = tuple(str(label) for label in range(max(flat) + 1))
    return replace(table, labels=np.array(flat, dtype=np.int32), starts=starts, classes=classes)


def counts(table: Table, rows: NDArray[np.int64]) -> list[int]:
    """Pictures of each class among these rows."""
    labels = [label for row in rows.tolist() for label in table.labels_of(row)]
    return np.bincount(np.array(labels, dtype=np.int64), minlength=len(table.classes)).tolist()


def check(table: Table, sides: HeldOut) -> None:
    """Two sorted sides that are all of the table, no group on both, and every class in training."""
    for rows in (sides.kept, sides.held):
        assert rows.dtype == np.int64
        assert (np.diff(rows) > 0).all()
    assert sorted([*sides.kept.tolist(), *sides.held.tolist()]) == list(range(len(table)))
    groups = grouped(table)
    assert not set(groups[sides.kept].tolist()) & set(groups[sides.held].tolist())
    present = np.array(counts(table, np.arange(len(table)))) > 0
    assert (np.array(counts(table, sides.kept)) > 0).tolist() == present.tolist()


def test_each_class_has_its_share() -> None:
    table = table_of([row % 3 for row in range(60)])
    sides = divided(table, share=0.2, seed=0)
    check(table, sides)
    assert (counts(table, sides.held), sides.num_groups) == ([4, 4, 4], 0)


def test_what_rounding_takes_from_the_classes_the_whole_gets_back() -> None:
    table = table_of([row % 10 for row in range(50)])
    held = {tuple(counts(table, divided(table, share=0.3, seed=seed).held)) for seed in range(4)}
    assert {tuple(sorted(each)) for each in held} == {(1,) * 5 + (2,) * 5}
    assert len(held) > 1  # the classes that have one more are drawn


def test_classes_of_unequal_size() -> None:
    table = table_of([0] * 200 + [1] * 20 + [2] * 5 + [3] * 2 + [4])
    sides = divided(table, share=0.1, seed=3)
    check(table, sides)
    assert counts(table, sides.held) == [20, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("share", "held"), [(0.5, [10, 2, 1, 0]), (1e-9, [1, 1, 1, 0]), (0.02, [1, 1, 1, 0]), (0.999, [19, 3, 1, 0])]
)
def test_any_share_leaves_both_sides_something_of_each_class(share: float, held: list[int]) -> None:
    table = table_of([0] * 20 + [1] * 4 + [2] * 2 + [3])
    sides = divided(table, share=share, seed=0)
    check(table, sides)
    assert counts(table, sides.held) == held


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 10.0, float("nan")])
def test_a_share_that_cannot_be(share: float) -> None:
    with pytest.raises(DataError, match=rf"lies between 0 and 1.\n  Got {share}.\n  Try 0.1, a tenth of each class."):
        divided(table_of([0, 0, 1, 1]), share=share, seed=0)


def test_the_seed_alone_decides(tmp_path: Path) -> None:
    table = write_folder(tmp_path)
    seen: list[tuple[int, int]] = []
    progress = lambda done, whole: seen.append((done, whole))  # noqa: E731 - a name for a line
    looks = [scan_source(table, workers=workers, progress=progress) for workers in (1, 1, 0, 5)]
    first, *same = (hold_out(table, share=0.2, seed=7, seen=look) for look in looks)
    assert all(np.array_equal(first.held, other.held) for other in same)
    assert seen == [(done, 37) for done in range(1, 38)] * 4
    assert len({tuple(divided(table, share=0.2, seed=seed).held.tolist()) for seed in range(5)}) == 5


def test_without_a_look_every_picture_is_for_itself() -> None:
    table = copies([0] * 8, [0] * 8)
    assert hold_out(table, share=0.5, seed=0, seen=None).held.shape == (4,)
    assert scan_source(table, seconds=0.0) is None


def test_the_same_pictures_tomorrow() -> None:
    table = table_of([row % 3 for row in range(30)])
    assert divided(table, share=0.2, seed=0).held.tolist() == [11, 12, 14, 18, 19, 25]


def test_groups_are_numbered_as_they_come_up() -> None:
    table = copies([0] * 8, [0, 1, 2, 1, 4, 0, 2, 0])
    assert grouped(table).tolist() == [0, 1, 2, 1, 3, 0, 2, 0]
    assert divided(table, share=0.3, seed=0).num_groups == 3


def write_copies(root: Path) -> dict[str, str]:
    """Twelve pictures in each of two classes, two of them also copied, encoded again and mirrored into both classes.

    For each file the picture that it shows.
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
    """The same file, encoded again and mirrored, in this class and in the other: one group, on one side."""
    shown = write_copies(tmp_path)
    table = folder.open_source(str(tmp_path))
    names = [shown[path] for path in table.names]
    order = list(dict.fromkeys(names))
    assert grouped(table).tolist() == [order.index(name) for name in names]
    held_groups = set()
    for seed in range(6):
        sides = divided(table, share=0.4, seed=seed)
        check(table, sides)
        assert sides.num_groups == 4
        assert len(sides.held) in (14, 15)
        held_groups |= {names[row] for row in sides.held}
    assert held_groups & {"00", "01", "02", "03"}


def test_a_small_share_takes_the_small_group() -> None:
    """One class has a crowd and a single picture, one has copies of one picture only, the others large groups only."""
    originals = [0] * 5 + [5] + [6] * 5 + [11] * 3 + [14] * 3 + [17] * 5 + [22] * 3 + [25] * 4
    table = copies([0] * 6 + [1] * 5 + [2] * 6 + [3] * 12, originals)
    for seed in range(4):
        sides = divided(table, share=0.1, seed=seed)
        check(table, sides)
        assert counts(table, sides.held) == [1, 0, 3, 3]
        assert 5 in sides.held


def test_whole_groups_come_as_near_as_they_can() -> None:
    table = copies([0] * 40, [row // 4 * 4 for row in range(40)])
    sizes = [len(divided(table, share=share, seed=0).held) for share in (0.01, 0.125, 0.15, 0.175, 0.5)]
    assert sizes == [4, 4, 4, 8, 20]  # of 1, 5, 6, 7 and 20; 6 is as near to 4 as to 8


def test_the_same_picture_under_two_labels_takes_from_both() -> None:
    """Class 1 has no picture but those that class 0 has too; class 2 has one only, which is in class 0 besides."""
    table = copies([0, 0, 0, 0, 0, 0, 1, 1, 2], [0, 1, 2, 3, 4, 5, 0, 1, 2])
    for seed in range(6):
        sides = divided(table, share=0.3, seed=seed)
        check(table, sides)
        assert counts(table, sides.held) == [2, 1, 0]


def test_where_not_every_class_can_be_held_out_training_comes_first() -> None:
    """Three groups, three classes, each of two of them: whatever is held out, a class of the three has none or all."""
    table = copies([0, 0, 1, 1, 2, 2], [0, 1, 1, 3, 3, 0])
    for seed in range(6):
        sides = divided(table, share=0.5, seed=seed)
        check(table, sides)
        assert sorted(counts(table, sides.held)) == [0, 1, 1]


def test_any_set_is_divided_well() -> None:
    for seed in range(25):
        random = np.random.default_rng(seed)
        num, share = int(random.integers(20, 80)), float(random.choice([0.05, 0.2, 0.5, 0.8]))
        labels = np.sort(np.concatenate([np.arange(4), random.geometric(0.4, num).clip(1, 4) - 1]))
        originals = np.arange(len(labels))
        for row in np.flatnonzero(random.random(len(labels)) < 0.3):  # copies within a class
            originals[row] = originals[random.choice(np.flatnonzero(labels == labels[row]))]
        table = copies(labels.tolist(), originals.tolist())
        sides = divided(table, share=share, seed=seed)
        check(table, sides)
        held = counts(table, sides.held)
        groups = grouped(table)
        for label in range(4):
            of_class = np.bincount(groups[labels == label])
            largest, whole = of_class.max(), (labels == label).sum()
            assert (held[label] > 0) == ((of_class > 0).sum() > 1)
            assert held[label] == 0 or abs(held[label] - share * whole) <= largest


def test_several_labels() -> None:
    """Rare labels that come with common ones, and pictures without any: each in its share."""
    random = np.random.default_rng(0)
    rates = [0.6, 0.3, 0.1, 0.03]
    labels = [[label for label, rate in enumerate(rates) if random.random() < rate] for _ in range(400)]
    table = multi_label(labels, [row - row % 2 if row < 100 else row for row in range(400)])
    bare = {row for row, each in enumerate(labels) if not each}
    whole = np.array(counts(table, np.arange(400)))
    for seed in range(3):
        sides = divided(table, share=0.2, seed=seed)
        check(table, sides)
        assert (np.abs(np.array(counts(table, sides.held)) - 0.2 * whole) <= 2.0).all()
        assert abs(len(bare & set(sides.held.tolist())) - 0.2 * len(bare)) <= 2.0
        assert abs(len(sides.held) - 80) <= 4
        assert sides.num_groups == 50


def test_rare_labels_take_nothing_from_the_others() -> None:
    """Ten labels of two pictures each need half of theirs, and with it most of the share of the label all of them have.

    The last two labels come with that one too, and still have their share.
    """
    table = multi_label([[0, 1 + row // 2] for row in range(20)] + [[0, 11, 12]] * 20 + [[0, 13]] * 60 + [[0, 14]])
    sides = divided(table, share=0.1, seed=0)
    check(table, sides)
    assert counts(table, sides.held) == [18] + [1] * 10 + [2, 2, 6, 0]


def test_what_a_rare_label_needs_is_held_out_first() -> None:
    """Groups of three are too large for both labels; the one for the rare label is enough for the common one."""
    table = multi_label([[0, 1]] * 6 + [[0]] * 15, [row // 3 * 3 for row in range(21)])
    for seed in range(4):
        assert counts(table, divided(table, share=0.1, seed=seed).held) == [3, 3]


def test_broken_pictures_stay_and_count_for_nothing(tmp_path: Path) -> None:
    """Three empty files are no group, and a class with one good picture keeps it, whatever else it has."""
    write_folder(tmp_path, 30)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "good.png").write_bytes(encoded(photo(np.random.default_rng(0), (40, 40)), "PNG"))
    for name in ("a/x.jpg", "a/y.jpg", "d/x.jpg"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "d" / "half.png").write_bytes((tmp_path / "a" / "000.png").read_bytes()[:500])
    table = folder.open_source(str(tmp_path))
    assert len(set(grouped(table).tolist())) == len(table) == 35
    for seed in range(6):
        sides = divided(table, share=0.5, seed=seed)
        assert counts(table, sides.held) == [5, 5, 5, 0]
        assert sides.num_groups == 0
        kept = {table.names[row] for row in sides.kept}
        assert kept >= {"a/x.jpg", "a/y.jpg", "d/x.jpg", "d/half.png", "d/good.png"}


def test_a_table_of_nothing() -> None:
    for table in (table_of([0]).only([]), multi_label([[0, 1], [1]]).only([])):
        sides = divided(table, share=0.1, seed=0)
        assert (len(sides.kept), len(sides.held), sides.num_groups) == (0, 0, 0)
