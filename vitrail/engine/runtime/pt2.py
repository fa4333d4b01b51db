"""torch.export's own format. Such a file is a program, so what it calls is read before it is loaded."""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vitrail.engine.exported import Run, damaged
from vitrail.errors import ExportError, shown

FILE, TITLE, PACKAGE = "model.pt2", "torch.export", "torch"
FACTS = "vitrail.json"
LARGEST = 2**26  # bytes of the program's text
MEMBER = re.compile(
    r"[^/]+/(archive_format|archive_version|byteorder|\.data/(version|serialization_id)|extra/vitrail\.json"
    r"|models/model\.json|data/sample_inputs/model\.pt|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+))"
)
ATEN = "torch.ops.aten."
OPERATORS = {
    *("_assert_tensor_metadata.default", "abs.default", "add.Tensor", "alias.default", "arange.default"),
    *("argsort.default", "batch_norm.default", "cat.default", "clamp.default", "clamp_min.default", "conv2d.default"),
    *("div.Tensor", "dropout.default", "expand.default", "expand_as.default", "flatten.using_ints", "gather.default"),
    *("gelu.default", "group_norm.default", "layer_norm.default", "linalg_vector_norm.default", "linear.default"),
    *("log.default", "lt.Scalar", "matmul.default", "max.dim", "max_pool2d.default", "mean.dim", "mul.Tensor"),
    *("one_hot.default", "ones_like.default", "pad.default", "permute.default", "relu.default", "reshape.default"),
    *("rsub.Scalar", "scaled_dot_product_attention.default", "select.int", "sigmoid.default", "slice.Tensor"),
    *("softmax.int", "sort.default", "stack.default", "sub.Tensor", "sum.dim_IntList", "sym_size.int", "tanh.default"),
    *("tensordot.default", "to.device", "to.dtype", "topk.default", "transpose.int", "unbind.int"),
    *("unsqueeze.default", "view.default", "view_as.default", "where.self", "zeros_like.default"),
}
"""Of aten, all that exports are made of: a contract test exports every kind of model."""
ARITHMETIC = re.compile(
    r"_operator\.(add|sub|mul|truediv|floordiv|mod|neg|eq|ne|lt|le|gt|ge|getitem)|torch\.sym_(max|min|int|float|not)"
)
GUARD = re.compile(r"(L\['pixels'\]\.size\(\)\[\d\]|\b(max|min)\b|\*(?!\*)|[\d\s()+/%<>=!,-])*")
"""A condition on the sizes of the input, which PyTorch would compile and run."""
FORMULA = re.compile(
    r"(Symbol\('\w+'|Float\('[\d.]+'|(Add|Mul|IntTrueDiv|Integer|Max|Min)\(|(positive|integer)=True|precision="
    r"|[\d\s(),-])*"
)
"""A size, which SymPy would read, and with it whatever stands there."""


def start(path: Path, threads: int) -> tuple[dict[str, Any], Run]:
    """What an exported file says of itself, and a function from pixels to logits."""
    del threads  # PyTorch's own number
    extra = {FACTS: ""}
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        checked = Path(folder) / FILE
        try:
            check_archive(path, checked)
            program = torch.export.load(checked, extra_files=extra).module()
            facts = json.loads(extra[FACTS])
        except ExportError:
            raise
        except Exception as error:  # noqa: BLE001 - zip, JSON, pickle and PyTorch each have their own
            raise damaged(path, error) from None

    @torch.inference_mode()
    def run(pixels: Any) -> Any:
        return program(torch.from_numpy(pixels))[0].numpy()

    return facts, run


def check_archive(path: Path, out: Path) -> None:
    """Refuse a file with anything in it that an export has not: other members, pickles, other operators, code.

    What was looked at is copied, and the copy is what PyTorch gets: it reads archives in a way of its own, and of the
    same file might see others.
    """
    seen: set[str] = set()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(out, "w") as copy:
        for info in archive.infolist():
            name = info.filename
            if not MEMBER.fullmatch(name) or info.compress_type != zipfile.ZIP_STORED or name in seen:
                raise _hostile(path, shown(name))
            seen.add(name)
            if name.endswith((".json", ".pt")) and info.file_size > LARGEST:
                raise ExportError(f"{path} is too large a program.", got=f"{info.file_size:,} bytes.")
            if name.endswith(".json"):
                for key, value in _entries(json.loads(archive.read(info))):
                    if not _harmless(key, value):
                        raise _hostile(path, shown(f"{key}: {value!r}"[:120]))
            if name.endswith(".pt"):
                # torch.export would unpickle anything where the safe way fails; so it must not fail.
                torch.load(io.BytesIO(archive.read(info)), weights_only=True)
            with archive.open(info) as source, copy.open(name, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, 2**20)


def _hostile(path: Path, got: str) -> ExportError:
    return ExportError(f"{path} holds what no export of a model does.", got=f"{got}.", hint="another file.")


def _harmless(key: str, value: Any) -> bool:
    """Whether an entry of the program is one that cannot do anything but compute."""
    if key == "use_pickle":
        return value is False
    if key == "path_name":
        return isinstance(value, str) and re.fullmatch(r"(weight|tensor)_\d+", value) is not None
    if key == "guards_code":
        return isinstance(value, list) and all(isinstance(each, str) and GUARD.fullmatch(each) for each in value)
    if key == "expr_str":
        return isinstance(value, str) and FORMULA.fullmatch(value) is not None
    if key == "target" and isinstance(value, str):
        known = value.startswith(ATEN) and value.removeprefix(ATEN) in OPERATORS
        return known or ARITHMETIC.fullmatch(value) is not None
    return True


def _entries(document: Any) -> Iterator[tuple[str, Any]]:
    """All keys and values of a document, however deep."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            yield from _entries(value)
    elif isinstance(document, list):
        for value in document:
            yield from _entries(value)
