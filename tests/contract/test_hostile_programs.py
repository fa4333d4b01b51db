"""A file of torch.export is a program: what it holds is looked at before PyTorch may load it, and run it."""

from __future__ import annotations

import json
import pickle
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.small_models import SMALL, small
from vitrail.engine.exported import open_exported
from vitrail.errors import ExportError
from vitrail.exports.build import facts_for
from vitrail.exports.format import pt2
from vitrail.exports.graph import Graph, leaving
from vitrail.exports.traced import Traced

TOUCHED: list[str] = []
NONE = np.zeros((0, 1, 1, 3))


class Evil:
    """What touches a list when it is unpickled."""

    def __reduce__(self) -> Any:
        return (TOUCHED.append, ("unpickled",))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that is fine."""
    traced = Traced(Graph(leaving(small("class token"), dynamic=True)), dynamic=True)
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    pt2.write(traced, path, "fp32", facts_for(traced, "fp32"), pixels=NONE, keep=())
    assert open_exported(path).labels
    return path


def _changed(path: Path, out: Path, change: Callable[[str, bytes], bytes], **more: bytes) -> Path:
    """A copy of an archive with its members changed, and others added."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info, change(info.filename, old.read(info)))
        for name, content in more.items():
            new.writestr(f"model/{name}", content)
    return out


def _in_program(change: Callable[[Any], None]) -> Callable[[str, bytes], bytes]:
    def changed(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return changed


def _called(target: str) -> Callable[[str, bytes], bytes]:
    def change(document: Any) -> None:
        document["graph_module"]["graph"]["nodes"][-1]["target"] = target

    return _in_program(change)


def _replaced(name: str, content: bytes) -> Callable[[str, bytes], bytes]:
    return lambda member, before: content if member.endswith(name) else before


def _pickled_weights(name: str, content: bytes) -> bytes:
    return content.replace(b'"use_pickle": false', b'"use_pickle": true', 1) if "weights_config" in name else content


def _elsewhere(name: str, content: bytes) -> bytes:
    return content.replace(b'"weight_0"', b'"../../weight_0"', 1) if "weights_config" in name else content


HOSTILE = {
    "another function": _called("torch.os.system"),
    "an operator that maps files": _called("torch.ops.aten.from_file.default"),
    "an operator that writes": _called("torch.ops.aten.add_.Tensor"),
    "an operator of somebody's": _called("torch.ops.mine.do.default"),
    "evaluation": _called("_operator.attrgetter"),
    "code as a guard": _in_program(lambda program: program.update(guards_code=["__import__('os').getpid() > 0"])),
    "a guard of another name": _in_program(lambda program: program.update(guards_code=["exit(1) == 0"])),
    "pickled weights": _pickled_weights,
    "a weight of elsewhere": _elsewhere,
    "a pickle for an input": _replaced("sample_inputs/model.pt", pickle.dumps(Evil())),
    "no JSON": _replaced("models/model.json", b"{"),
}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What PyTorch was given to load."""
    given: list[Any] = []
    monkeypatch.setattr(torch.export, "load", lambda path, **_: given.append(path))
    return given


@pytest.mark.parametrize("what", HOSTILE)
def test_what_no_export_holds_is_refused(program: Path, tmp_path: Path, what: str, loaded: list[Any]) -> None:
    with pytest.raises(ExportError, match=r"holds what no export|is no model that vitrail export wrote"):
        open_exported(_changed(program, tmp_path / "model.pt2", HOSTILE[what]))
    assert TOUCHED == loaded == []


@pytest.mark.parametrize("formula", ["__import__('os').getpid()", "1" * 60 + "!", "precision=1" * 30 + "!", "9**9**9"])
def test_a_formula_is_no_place_for_code(program: Path, tmp_path: Path, formula: str) -> None:
    def hidden(name: str, content: bytes) -> bytes:
        evil = b'"expr_str": "' + formula.encode() + b'"'
        start = content.find(b'"expr_str": "')
        end = content.find(b'"', start + len(b'"expr_str": "')) + 1
        return content[:start] + evil + content[end:] if name.endswith("models/model.json") and start > 0 else content

    with pytest.raises(ExportError, match="holds what no export"):
        open_exported(_changed(program, tmp_path / "model.pt2", hidden))


@pytest.mark.parametrize(
    "name",
    [
        *("data/constants/opaque_obj_0", "data/constants/custom_obj_0", "data/weights/model.pt", "models/other.jsox"),
        *("data/aotinductor/model/evil.so", "serialized_state_dict.pt", "version", "../../escaped"),
    ],
)
def test_other_members_are_refused(program: Path, tmp_path: Path, name: str) -> None:
    path = _changed(program, tmp_path / "model.pt2", lambda _, content: content, **{name: pickle.dumps(Evil())})
    with pytest.raises(ExportError, match="holds what no export"):
        open_exported(path)
    assert TOUCHED == []


def test_a_guard_is_read_in_no_time(program: Path, tmp_path: Path) -> None:
    change = _in_program(lambda document: document.update(guards_code=["1.1" * 40 + "!x"]))
    with pytest.raises(ExportError, match="holds what no export"):
        open_exported(_changed(program, tmp_path / "model.pt2", change))


def test_two_archives_in_one_file(program: Path, tmp_path: Path) -> None:
    """zipfile finds a list of members from the end of a file, PyTorch by the place that is told there."""
    good = _changed(program, tmp_path / "good.pt2", lambda _, content: content).read_bytes()

    def swapped(name: str, content: bytes) -> bytes:
        return pickle.dumps(Evil()).ljust(len(content), b"\0") if name.endswith("sample_inputs/model.pt") else content

    evil = _changed(program, tmp_path / "evil.pt2", swapped).read_bytes()
    end = 22  # bytes of the last record, which tells where the list is
    assert len(good) == len(evil)
    both = tmp_path / "model.pt2"
    both.write_bytes(evil[:-end] + good)
    with zipfile.ZipFile(both) as seen, zipfile.ZipFile(tmp_path / "good.pt2") as wanted:
        assert [seen.read(each) for each in seen.namelist()] == [wanted.read(each) for each in wanted.namelist()]
    assert open_exported(both).labels
    assert TOUCHED == []


def test_members_are_neither_packed_nor_twice_there(program: Path, tmp_path: Path) -> None:
    packed, twice = tmp_path / "packed" / "model.pt2", tmp_path / "twice" / "model.pt2"
    for out, kind in ((packed, zipfile.ZIP_DEFLATED), (twice, zipfile.ZIP_STORED)):
        out.parent.mkdir()
        with zipfile.ZipFile(program) as old, zipfile.ZipFile(out, "w", kind) as new, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in [*old.namelist(), *old.namelist()[:1]][: None if out == twice else -1]:
                new.writestr(name, old.read(name))
        with pytest.raises(ExportError, match="holds what no export"):
            open_exported(out)


@pytest.mark.parametrize("kind", [*SMALL, "merged"])
def test_exports_of_every_kind_are_let_in(tmp_path: Path, kind: str) -> None:
    model = small("class token" if kind == "merged" else kind)
    traced = Traced(Graph(leaving(model, merge=4 if kind == "merged" else 0)))
    pt2.write(traced, tmp_path / "model.pt2", "bf16", facts_for(traced, "bf16"), pixels=NONE, keep=())
    opened = open_exported(tmp_path / "model.pt2")
    pixels = np.zeros((2, *model.preprocess.size, 3), dtype=np.uint8)
    with torch.inference_mode():
        assert bool(opened(opened.preprocess.normalise(pixels)).isfinite().all())
