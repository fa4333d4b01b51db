"""What is left of an export: a folder that replaces an earlier one as a whole, with its proof and how to use it."""

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
from vitrail.exports.build import Made
from vitrail.exports.images import Pictures
from vitrail.files import sync_file, sync_folder, umask
from vitrail.run.golden import GOLDEN, NUM_GOLDEN, write_golden

PROOF = "proof.json"
OWN = {
    *("README.md", "model.bin", "model.onnx", "model.onnx.data", "model.pt2", "model.xml"),
    *(GOLDEN, PROOF),
}
"""What an export may leave, and so what may be replaced."""
CARD = """# {name}, {format} {precision}

{story}

| | PyTorch | this export |
| --- | --- | --- |
| accuracy | {before} | {after} |
| one picture | {torch_ms:.1f} ms | {latency_ms:.1f} ms ({speedup:.2f} times as fast) |
| pictures a second, in batches of 8 | {torch_throughput:.1f} | {throughput:.1f} |

Measured on {machine}. The same label as PyTorch on {agreement:.2%} of {n:,} pictures; logits differ by at most
{max_logit_diff:.3g}. All figures: `proof.json`.

    vitrail predict FOLDER IMAGES
    vitrail serve FOLDER

The input `pixels` is {takes}; mean and deviation are applied inside.
Outputs are `logits` and `confidence`, the calibrated probabilities. Labels, and how pictures are resized and cropped,
stand in the file's metadata under the key `vitrail`.
"""
TAKES = {
    "uint8": "uint8, [batch, rows, columns, channels], 0 to 255, resized and cropped",
    "float": "float32, [batch, channels, rows, columns], 0 to 1, resized and cropped",
}


@contextmanager
def workplace(out: Path) -> Iterator[Path]:
    """A folder beside `out` in which exports are tried; it is gone at the end, whatever happens."""
    _check_replaceable(out)
    room = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
        yield room
    except OSError as error:
        raise ExportError(
            f"{out} cannot be written.", got=brief(error), hint="more room on the disk, or another --out."
        ) from None
    finally:
        if room is not None:
            shutil.rmtree(room, ignore_errors=True)


def _check_replaceable(out: Path) -> None:
    """Refuse to replace anything but an export, or an empty folder."""
    if not out.exists():
        return
    others = sorted(each.name for each in out.iterdir()) if out.is_dir() else [out.name]
    if others and (out.is_file() or PROOF not in others or set(others) - OWN):
        strange = sorted(set(others) - OWN) or others
        raise ExportError(
            f"{out} is there already, and is no export.", got=f"{', '.join(strange[:3])}.", hint="another --out."
        )


def keep(made: Made, out: Path, pictures: Pictures, proof: dict[str, Any]) -> Path:
    """Put an export and its proof in place of what was there; the path of its file."""
    folder = made.file.parent
    pixels = torch.from_numpy(pictures.judged[:NUM_GOLDEN].copy())
    write_golden(folder, made.opened.preprocess, pixels, made.after[:NUM_GOLDEN])
    (folder / PROOF).write_text(json.dumps(proof, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_card(made, proof), encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(0o666 & ~umask())
        sync_file(file)
    folder.chmod(0o777 & ~umask())
    sync_folder(folder)
    earlier = folder.parent / "earlier"  # gone with the workplace, once the new one is in its place
    _check_replaceable(out)  # again, for that was long ago
    if out.exists():
        out.rename(earlier)
    try:
        folder.rename(out)
    except BaseException:
        if earlier.exists():
            earlier.rename(out)
        raise
    return out / made.file.name


def _marks(proof: dict[str, Any]) -> str:
    """What makes it another model than the one that it came from."""
    rows, columns = proof["size"]
    told = f" For pictures of {rows} x {columns} pixels" + (
        ", and any size that the patches divide" if proof["dynamic"] else ""
    )
    return told + (f"; {proof['merge']} cells a block are merged." if proof["merge"] else ".")


def _card(made: Made, proof: dict[str, Any]) -> str:
    share = {key: "not known" if proof[key] is None else f"{proof[key]:.2%}" for key in ("top1_before", "top1_after")}
    interval = proof["interval"]
    spread = f" ({interval[0]:.2%} to {interval[1]:.2%})" if interval else ""
    kept = f" {len(made.kept)} layers stayed in float: {', '.join(made.kept)}." if made.kept else ""
    return CARD.format(
        **{key: value for key, value in proof.items() if key != "takes"},
        before=share["top1_before"],
        after=share["top1_after"] + spread,
        takes=TAKES[proof["takes"]],
        story=f"Exported by `vitrail export`, proven on {proof['origin']}.{kept}{_marks(proof)}",
    )
