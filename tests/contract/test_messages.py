"""Errors say each thing once: what is wrong, what was got if that adds something, and what to try."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import vitrail
from vitrail.data.find import open_data
from vitrail.data.table import check_split
from vitrail.errors import DataError, WeightsError
from vitrail.run.open import open_model

ROOT = Path(vitrail.__file__).parent
# Words of `got` that only repeat that something is missing.
REPEATED = re.compile(r"a path that does not exist\.|no --weights\.|a model with (pre_logits|\{field\})")


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_was_got_adds_something(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "got":
            assert not REPEATED.search(ast.unparse(node.value)), node.lineno


def test_nothing_at_a_path_names_the_folder_that_exists(tmp_path: Path) -> None:
    (tmp_path / "pets").mkdir()
    with pytest.raises(DataError) as caught:
        open_data(str(tmp_path / "pets" / "trian" / "cats"))
    assert str(caught.value) == (
        f"DataError: there is nothing at {tmp_path}/pets/trian/cats.\n  Try a path in {tmp_path}/pets, which exists."
    )


def test_a_missing_split_lists_the_splits_once() -> None:
    with pytest.raises(DataError) as caught:
        check_split("test", ("train", "val"), "pets")
    assert str(caught.value) == "DataError: pets has no split 'test'.\n  Got data with the splits train, val."


def test_no_weights() -> None:
    with pytest.raises(WeightsError) as caught:
        open_model("vit_base_patch16_224")
    assert str(caught.value).splitlines()[0] == "WeightsError: vit_base_patch16_224 is a model without weights."
    assert str(caught.value).count("weights") <= 3
    with pytest.raises(WeightsError, match=r"there is nothing at no/where\.\n  Try a run directory, a weight file or "):
        open_model("no/where")
