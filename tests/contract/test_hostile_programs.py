"""A torch.export file is a program: its content is checked before PyTorch loads it."""

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

from tests.contract.small_models import small
from vitrail.engine.exported import open_exported
from vitrail.errors import ExportError
from vitrail.exports.build import metadata_for
from vitrail.exports.format import pt2
from vitrail.exports.graph import Graph, prepare_for_export
from vitrail.exports.tracing import Tracer

TOUCHED: list[str] = []
NONE = np.zeros((0, 1, 1, 3))


class Evil:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> Any:
        return (TOUCHED.append, ("unpickled",))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid export."""
    tracer = Tracer(Graph(prepare_for_export(small("class token"), dynamic=True)), dynamic=True)
    path = tmp_path_factory.mktemp("program") / "model.pt2"
    pt2.write(tracer, path, "fp32", metadata_for(tracer, "fp32"), pixels=NONE, float_layers=())
    assert open_exported(path).labels
    return path


def _modify_archive(path: Path, out: Path, change: Callable[[str, bytes], bytes], **more: bytes) -> Path:
    """A copy of an archive with changed and added members."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info, change(info.filename, old.read(info)))
        for name, content in more.items():
            new.writestr(f"model/{name}", content)
    return out


def _modify_program(change: Callable[[Any], None]) -> Callable[[str, bytes], bytes]:
    def changed(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return changed


def _call_target(target: str) -> Callable[[str, bytes], bytes]:
    def change(document: Any) -> None:
        document["graph_module"]["graph"]["nodes"][-1]["target"] = target

    return _modify_program(change)


def _replace_member(name: str, content: bytes) -> Callable[[str, bytes], bytes]:
    return lambda member, before: content if member.endswith(name) else before


def _pickle_weights(name: str, content: bytes) -> bytes:
    return content.replace(b'"use_pickle": false', b'"use_pickle": true', 1) if "weights_config" in name else content


def _move_weight(name: str, content: bytes) -> bytes:
    return content.replace(b'"weight_0"', b'"../../weight_0"', 1) if "weights_config" in name else content


HOSTILE = {
    "another function": _call_target("torch.os.system"),
    "an operator that maps files": _call_target("torch.ops.aten.from_file.default"),
    "an operator that writes": _call_target("torch.ops.aten.add_.Tensor"),
    "a custom operator": _call_target("torch.ops.mine.do.default"),
    "evaluation": _call_target("_operator.attrgetter"),
    "code as a guard": _modify_program(lambda program: program.update(guards_code=["__import__('os').getpid() > 0"])),
    "a guard that calls a function": _modify_program(lambda program: program.update(guards_code=["exit(1) == 0"])),
    "pickled weights": _pickle_weights,
    "a weight outside the archive": _move_weight,
    "a pickled input": _replace_member("sample_inputs/model.pt", pickle.dumps(Evil())),
    "invalid JSON": _replace_member("models/model.json", b"{"),
}


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The paths that PyTorch was asked to load."""
    paths: list[Any] = []
    monkeypatch.setattr(torch.export, "load", lambda path, **_: paths.append(path))
    return paths


@pytest.mark.parametrize("what", HOSTILE)
def test_unexpected_content_is_rejected(program: Path, tmp_path: Path, what: str, loaded: list[Any]) -> None:
    with pytest.raises(
        ExportError,
        match=r"contains something that vitrail export never writes|is not a model written by vitrail export",
    ):
        open_exported(_modify_archive(program, tmp_path / "model.pt2", HOSTILE[what]))
    assert TOUCHED == loaded == []


@pytest.mark.parametrize(
    "expression", ["__import__('os').getpid()", "1" * 60 + "!", "precision=1" * 30 + "!", "9**9**9"]
)
def test_code_in_a_size_expression_is_rejected(program: Path, tmp_path: Path, expression: str) -> None:
    def hidden(name: str, content: bytes) -> bytes:
        evil = b'"expr_str": "' + expression.encode() + b'"'
        start = content.find(b'"expr_str": "')
        end = content.find(b'"', start + len(b'"expr_str": "')) + 1
        return content[:start] + evil + content[end:] if name.endswith("models/model.json") and start > 0 else content

    with pytest.raises(ExportError, match="contains something that vitrail export never writes"):
        open_exported(_modify_archive(program, tmp_path / "model.pt2", hidden))


@pytest.mark.parametrize(
    "name",
    [
        *("data/constants/opaque_obj_0", "data/constants/custom_obj_0", "data/weights/model.pt", "models/other.jsox"),
        *("data/aotinductor/model/evil.so", "serialized_state_dict.pt", "version", "../../escaped"),
    ],
)
def test_unexpected_members_are_rejected(program: Path, tmp_path: Path, name: str) -> None:
    path = _modify_archive(program, tmp_path / "model.pt2", lambda _, content: content, **{name: pickle.dumps(Evil())})
    with pytest.raises(ExportError, match="contains something that vitrail export never writes"):
        open_exported(path)
    assert TOUCHED == []


def test_checking_a_guard_takes_no_exponential_time(program: Path, tmp_path: Path) -> None:
    change = _modify_program(lambda document: document.update(guards_code=["1.1" * 40 + "!x"]))
    with pytest.raises(ExportError, match="contains something that vitrail export never writes"):
        open_exported(_modify_archive(program, tmp_path / "model.pt2", change))


def test_two_archives_in_one_file(program: Path, tmp_path: Path) -> None:
    """zipfile locates the member list from the end of the file, PyTorch by the offset stored there."""
    good = _modify_archive(program, tmp_path / "good.pt2", lambda _, content: content).read_bytes()

    def swapped(name: str, content: bytes) -> bytes:
        return pickle.dumps(Evil()).ljust(len(content), b"\0") if name.endswith("sample_inputs/model.pt") else content

    evil = _modify_archive(program, tmp_path / "evil.pt2", swapped).read_bytes()
    end = 22  # bytes of the last record, which holds the offset of the member list
    assert len(good) == len(evil)
    both = tmp_path / "model.pt2"
    both.write_bytes(evil[:-end] + good)
    with zipfile.ZipFile(both) as read, zipfile.ZipFile(tmp_path / "good.pt2") as expected:
        assert [read.read(name) for name in read.namelist()] == [expected.read(name) for name in expected.namelist()]
    assert open_exported(both).labels
    assert TOUCHED == []


def test_compressed_and_duplicate_members_are_rejected(program: Path, tmp_path: Path) -> None:
    compressed, duplicate = tmp_path / "compressed" / "model.pt2", tmp_path / "duplicate" / "model.pt2"
    for out, kind in ((compressed, zipfile.ZIP_DEFLATED), (duplicate, zipfile.ZIP_STORED)):
        out.parent.mkdir()
        with zipfile.ZipFile(program) as old, zipfile.ZipFile(out, "w", kind) as new, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in [*old.namelist(), *old.namelist()[:1]][: None if out == duplicate else -1]:
                new.writestr(name, old.read(name))
        with pytest.raises(ExportError, match="contains something that vitrail export never writes"):
            open_exported(out)


# Every kind has the same operators in bfloat16 as in float32, in which test_exported_graphs.py opens every kind.
@pytest.mark.parametrize("kind", ["class token", "hybrid", "merged"])
def test_valid_exports_are_accepted(tmp_path: Path, kind: str) -> None:
    model = small("class token" if kind == "merged" else kind)
    tracer = Tracer(Graph(prepare_for_export(model, merge=4 if kind == "merged" else 0)))
    pt2.write(tracer, tmp_path / "model.pt2", "bf16", metadata_for(tracer, "bf16"), pixels=NONE, float_layers=())
    opened = open_exported(tmp_path / "model.pt2")
    pixels = np.zeros((2, *model.preprocess.size, 3), dtype=np.uint8)
    with torch.inference_mode():
        assert bool(opened(opened.preprocess.normalise(pixels)).isfinite().all())
