"""The class to explain, by number, name or part of a name."""

from __future__ import annotations

import pytest

from vitrail.data.labels import imagenet_classes
from vitrail.errors import UnknownNameError
from vitrail.inspection.class_names import class_index

NAMES = [each.name for each in imagenet_classes()]
PETS = ["Abyssinian cat", "Pembroke Welsh corgi", "Cardigan Welsh corgi", "Persian cat", "7"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Persian cat", 3),
        ("persian CAT", 3),
        ("PERSIAN", 3),
        ("broke", 1),
        ("7", 4),
        (2, 2),
        ("2", 2),
    ],
)
def test_found(name: str | int, expected: int) -> None:
    assert class_index(name, PETS) == expected


def test_an_exact_name_is_not_ambiguous() -> None:
    assert class_index("cat", ["wild cat", "cat", "cats"]) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "corgi",
            r"2 classes contain this name\.\n  Got 'corgi'\.\n  Try Pembroke Welsh corgi, Cardigan Welsh corgi\.",
        ),
        ("corgy", r"no class has this name\.\n  Got 'corgy'\.\n  Try Pembroke Welsh corgi, Cardigan Welsh corgi\."),
        ("Persien cat", r"Try Persian cat"),
        ("5", r"no class has this number\.\n  Got 5\.\n  Try a number from 0 to 4\."),
        ("", r"no class has this name"),
    ],
)
def test_refused_with_near_names(name: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        class_index(name, PETS)


def test_misspelt_classes_of_imagenet() -> None:
    with pytest.raises(UnknownNameError) as caught:
        class_index("corgy", NAMES)
    assert caught.value.hint == "Pembroke Welsh Corgi, Cardigan Welsh Corgi."
    assert class_index("great white", NAMES) == 2
    assert class_index("tinca TINCA", NAMES) == 0
    assert class_index("cardigan", NAMES) == NAMES.index("cardigan")
