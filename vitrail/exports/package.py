"""The folder of an export: model, proof and README. It replaces an earlier export as a whole."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from vitrail.errors import ExportError, brief
from vitrail.exports.build import Build
from vitrail.exports.images import ExportImages
from vitrail.files import get_umask, sync_file, sync_folder
from vitrail.percent import percent, percent_range
from vitrail.run.golden import GOLDEN, NUM_GOLDEN, write_golden
from vitrail.sums import SUMS, write_sums

PROOF = "proof.json"
EXPORT_FILES = {
    *("README.md", "model.bin", "model.onnx", "model.onnx.data", "model.pt2", "model.xml"),
    *(GOLDEN, PROOF, SUMS),
}
"""All files that an export may consist of. A folder with others is not replaced."""
README = """# {name}, {format} {precision}

{summary}

| | PyTorch | this export |
| --- | --- | --- |
| accuracy | {before} | {after} |
| one image | {torch_ms:.1f} ms | {latency_ms:.1f} ms ({speedup:.2f} times as fast) |
| images per second, in batches of 8 | {torch_throughput:.1f} | {throughput:.1f} |

Measured on {machine}. The top label is the same as PyTorch's on {same_label} of {n:,} images; logits differ by at
most {max_logit_diff:.3g}. All figures: `proof.json`.

    vitrail predict FOLDER IMAGES
    vitrail serve FOLDER

The input `pixels` is {input_description}; mean and standard deviation are applied inside.
The outputs are `logits` and `confidence`, the calibrated probabilities. The file's metadata, under the key `vitrail`,
contains the labels and how images are resized and cropped.
"""
INPUT_DESCRIPTIONS = {
    "uint8": "uint8, [batch, rows, columns, channels], 0 to 255, resized and cropped",
    "float": "float32, [batch, channels, rows, columns], 0 to 1, resized and cropped",
}


@contextmanager
def temporary_dir(out: Path) -> Iterator[Path]:
    """A folder beside `out` to build exports in; it is removed at the end in any case."""
    _check_replaceable(out)
    folder = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        yield folder
    except OSError as error:
        raise ExportError(
            f"{out} cannot be written.", got=brief(error), hint="more disk space, or another --out."
        ) from None
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def _check_replaceable(out: Path) -> None:
    """Refuse to replace anything but an export or an empty folder."""
    if not out.exists():
        return
    files = sorted(each.name for each in out.iterdir()) if out.is_dir() else [out.name]
    if files and (out.is_file() or PROOF not in files or set(files) - EXPORT_FILES):
        foreign = sorted(set(files) - EXPORT_FILES) or files
        raise ExportError(
            f"{out} exists and is not an export.", got=f"{', '.join(foreign[:3])}.", hint="another --out."
        )


def save_package(build: Build, out: Path, images: ExportImages, proof: dict[str, Any]) -> Path:
    """Move an export with its proof to `out`, replacing an earlier export; return the path of the model file."""
    folder = build.file.parent
    pixels = torch.from_numpy(images.proof_pixels[:NUM_GOLDEN].copy())
    write_golden(folder, build.model.preprocess, pixels, build.logits[:NUM_GOLDEN])
    (folder / PROOF).write_text(json.dumps(proof, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_readme(build, proof), encoding="utf-8")
    write_sums(folder, sorted(EXPORT_FILES - {"README.md", SUMS}), ExportError)
    umask = get_umask(folder)
    for file in folder.iterdir():
        file.chmod(0o666 & ~umask)
        sync_file(file)
    folder.chmod(0o777 & ~umask)
    sync_folder(folder)
    earlier = folder.parent / "earlier"  # removed with the temporary folder once the new export is in place
    _check_replaceable(out)  # again: it may have changed during the export
    if out.exists():
        out.rename(earlier)
    try:
        folder.rename(out)
    except BaseException:
        if earlier.exists():
            earlier.rename(out)
        raise
    return out / build.file.name


def _readme(build: Build, proof: dict[str, Any]) -> str:
    accuracy = {
        key: "unknown" if proof[key] is None else percent(proof[key], 2) for key in ("top1_before", "top1_after")
    }
    interval = proof["interval"]
    after = accuracy["top1_after"] + (f" ({percent_range(interval, 2)})" if interval else "")
    return README.format(
        **proof,
        before=accuracy["top1_before"],
        after=after,
        same_label=percent(proof["agreement"], 2),
        input_description=INPUT_DESCRIPTIONS[proof["takes"]],
        summary=_summary(build, proof),
    )


def _summary(build: Build, proof: dict[str, Any]) -> str:
    """How it was exported, and how it differs from the original model."""
    rows, columns = proof["size"]
    sentences = [f"Exported by `vitrail export`, verified on {proof['origin']}."]
    if build.float_layers:
        sentences.append(f"{len(build.float_layers)} layers stay in float: {', '.join(build.float_layers)}.")
    any_size = ", or any size that the patch size divides" if proof["dynamic"] else ""
    sentences.append(f"For images of {rows} x {columns} pixels{any_size}.")
    if proof["merge"]:
        sentences.append(f"Each block merges {proof['merge']} pairs of patch tokens.")
    return " ".join(sentences)
