"""torch.export's format. Such a file is a program, so everything it calls is checked before it is loaded."""

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

from vitrail.engine.exported import InferFn, invalid_export, parse_facts
from vitrail.errors import ExportError, printable

FILE, TITLE, PACKAGE = "model.pt2", "torch.export", "torch"
FACTS = "vitrail.json"
MAX_MEMBER_BYTES = 2**26  # of JSON documents and sample inputs
MEMBERS = re.compile(
    r"[^/]+/(archive_format|archive_version|byteorder|\.data/(version|serialization_id)|extra/vitrail\.json"
    r"|models/model\.json|data/sample_inputs/model\.pt|data/weights/(model_weights_config\.json|weight_\d+)"
    r"|data/constants/(model_constants_config\.json|tensor_\d+))"
)
ATEN = "torch.ops.aten."
OPERATORS = {
    *("__and__.Tensor", "_assert_tensor_metadata.default", "abs.default", "add.Tensor", "alias.default"),
    *("arange.default", "argsort.default", "avg_pool2d.default", "batch_norm.default", "bitwise_not.default"),
    *("cartesian_prod.default", "cat.default", "clamp.default", "clamp_min.default", "conv2d.default", "cos.default"),
    *("div.Tensor", "dropout.default", "einsum.default", "expand.default", "expand_as.default", "flatten.using_ints"),
    *("floor_divide.default", "gather.default", "ge.Scalar", "gelu.default", "group_norm.default", "gt.Scalar"),
    *("im2col.default", "index.Tensor", "index_select.default", "layer_norm.default", "linalg_vector_norm.default"),
    *("linear.default", "log.default", "lt.Scalar", "mT.default", "masked_fill.Scalar", "matmul.default", "max.dim"),
    *("max_pool2d.default", "mean.dim", "movedim.intlist", "mul.Tensor", "neg.default", "one_hot.default"),
    *("ones.default", "ones_like.default", "pad.default", "permute.default", "pow.Scalar", "relu.default"),
    *("remainder.Scalar", "repeat.default", "reshape.default", "roll.default", "rsub.Scalar"),
    *("scaled_dot_product_attention.default", "select.int", "sigmoid.default", "silu.default", "sin.default"),
    *("slice.Tensor", "softmax.int", "sort.default", "square.default", "stack.default", "sub.Tensor"),
    *("sum.dim_IntList", "sym_size.int", "tanh.default", "tensordot.default", "to.device", "to.dtype"),
    *("topk.default", "transpose.int", "unbind.int", "unsqueeze.default", "view.default"),
    *("view_as.default", "where.self", "zeros_like.default"),
}
"""All aten operators that exports use: a contract test exports every kind of model."""
ARITHMETIC = re.compile(
    r"_operator\.(add|sub|mul|truediv|floordiv|mod|neg|eq|ne|lt|le|gt|ge|getitem)|torch\.sym_(max|min|int|float|not)"
)
GUARD = re.compile(r"(L\['pixels'\]\.size\(\)\[\d\]|\b(max|min)\b|\*(?!\*)|[\d\s()+/%<>=!,-])*")
"""A condition on the input's shape, which PyTorch compiles and runs."""
SIZE_EXPRESSION = re.compile(
    r"(Symbol\('\w+'|Float\('[\d.]+'|(Add|Mul|IntTrueDiv|FloorDiv|Integer|Max|Min)\(|(positive|integer)=True|precision="
    r"|[\d\s(),-])*"
)
"""A size expression, which SymPy evaluates."""


def start(path: Path, threads: int) -> tuple[dict[str, Any], InferFn]:
    """Open an exported file; return its metadata and a function from pixels to logits."""
    del threads  # PyTorch has its own setting
    extra = {FACTS: ""}
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        checked_copy = Path(folder) / FILE
        try:
            copy_checked(path, checked_copy)
            program = torch.export.load(checked_copy, extra_files=extra).module()
            facts = parse_facts(extra[FACTS])
        except ExportError:
            raise
        except Exception as error:  # noqa: BLE001 - zip, JSON, pickle and PyTorch each raise their own
            raise invalid_export(path, error) from None

    @torch.inference_mode()
    def run(pixels: Any) -> Any:
        return program(torch.from_numpy(pixels))[0].numpy()

    return facts, run


def copy_checked(path: Path, out: Path) -> None:
    """Copy an archive; raise if it holds anything that no export does: other members, pickles, other operators, code.

    PyTorch loads the checked copy, because its own zip reader might find other members in the same file.
    """
    names: set[str] = set()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(out, "w") as copy:
        for info in archive.infolist():
            name = info.filename
            if not MEMBERS.fullmatch(name) or info.compress_type != zipfile.ZIP_STORED or name in names:
                raise _unexpected(path, printable(name))
            names.add(name)
            if name.endswith((".json", ".pt")) and info.file_size > MAX_MEMBER_BYTES:
                raise ExportError(f"{path} contains a program that is too large.", got=f"{info.file_size:,} bytes.")
            if name.endswith(".json"):
                for key, value in _iter_entries(json.loads(archive.read(info))):
                    if not _is_safe(key, value):
                        raise _unexpected(path, printable(f"{key}: {value!r}"[:120]))
            if name.endswith(".pt"):
                # If safe loading fails, torch.export falls back to unpickling anything: so make sure that it succeeds.
                torch.load(io.BytesIO(archive.read(info)), weights_only=True)
            with archive.open(info) as source, copy.open(name, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, 2**20)


def _unexpected(path: Path, got: str) -> ExportError:
    return ExportError(
        f"{path} contains something that vitrail export never writes.",
        got=f"{got}.",
        hint="a file from a trusted source.",
    )


def _is_safe(key: str, value: Any) -> bool:
    """Whether an entry of the program can do nothing but compute."""
    if key == "use_pickle":
        return value is False
    if key == "path_name":
        return isinstance(value, str) and re.fullmatch(r"(weight|tensor)_\d+", value) is not None
    if key == "guards_code":
        return isinstance(value, list) and all(isinstance(guard, str) and GUARD.fullmatch(guard) for guard in value)
    if key == "expr_str":
        return isinstance(value, str) and SIZE_EXPRESSION.fullmatch(value) is not None
    if key == "target" and isinstance(value, str):
        is_aten = value.startswith(ATEN) and value.removeprefix(ATEN) in OPERATORS
        return is_aten or ARITHMETIC.fullmatch(value) is not None
    return True


def _iter_entries(document: Any) -> Iterator[tuple[str, Any]]:
    """All keys and values of a nested document."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key, value
            yield from _iter_entries(value)
    elif isinstance(document, list):
        for value in document:
            yield from _iter_entries(value)
