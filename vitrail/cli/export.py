"""`vitrail export`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vitrail.console import (
    JsonFlag,
    ModelArgument,
    QuietFlag,
    WeightsOption,
    print_json,
    print_table,
    progress_bar,
    remark,
)
from vitrail.errors import SpecError
from vitrail.percent import percent

FormatOption = Annotated[
    Literal["onnx", "openvino", "pt2"] | None, typer.Option(help="onnx unless --best chooses another.")
]
PrecisionOption = Annotated[
    Literal["fp32", "bf16", "int8"] | None, typer.Option(help="fp32 unless --best chooses another; int8 needs images.")
]
BestFlag = Annotated[
    bool, typer.Option("--best", help="Try all formats and precisions; keep the fastest within --max-drop.")
]
MinutesOption = Annotated[
    float | None, typer.Option(min=0.0, help="Time limit: 5 with --best, else none; inf for none.")
]
DataOption = Annotated[
    str | None, typer.Option(metavar="DATA", help="Labelled images to verify it on; the test or val split if any.")
]
CalibrationOption = Annotated[
    str | None, typer.Option(metavar="DATA", help="Images to calibrate int8 on, instead of part of --data.")
]
SizeOption = Annotated[
    str | None, typer.Option(metavar="HEIGHTxWIDTH", help="Export for this image size instead of the model's.")
]
InputOption = Annotated[
    Literal["uint8", "float"], typer.Option("--input", help="Pixels from 0 to 255, or from 0 to 1.")
]
MergeOption = Annotated[
    int, typer.Option(min=0, help="Pairs of patch tokens to merge in each block: faster, less accurate.")
]
PreferOption = Annotated[
    Literal["latency", "throughput"], typer.Option(help="What --best optimises: one image, or batches.")
]


def command(
    model: ModelArgument,
    format: FormatOption = None,
    precision: PrecisionOption = None,
    best: BestFlag = False,
    minutes: MinutesOption = None,
    weights: WeightsOption = None,
    data: DataOption = None,
    calibration: CalibrationOption = None,
    out: Annotated[Path | None, typer.Option(help="A folder; exported/NAME-FORMAT-PRECISION by default.")] = None,
    size: SizeOption = None,
    dynamic: Annotated[
        bool, typer.Option("--dynamic", help="Accept any image size divisible by the patch size.")
    ] = False,
    input_dtype: InputOption = "uint8",
    merge: MergeOption = 0,
    max_drop: Annotated[float, typer.Option(min=0.0, help="Points of accuracy that may be lost.")] = 0.5,
    images: Annotated[int, typer.Option(min=1, help="Verify on at most this many images.")] = 2000,
    prefer: PreferOption = "latency",
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """Export to ONNX, OpenVINO or torch.export, verified.

    The export is compared with PyTorch on your own images.
    """
    from vitrail.verbs.export import export

    with progress_bar("export", quiet=quiet) as progress:
        proof = export(
            model,
            format=format,
            precision=precision,
            best=best,
            minutes=minutes,
            weights=weights,
            data=data,
            calibration=calibration,
            out=out,
            size=_parse_size(size),
            dynamic=dynamic,
            input_dtype=input_dtype,
            merge=merge,
            max_drop=max_drop,
            limit=images,
            prefer=prefer,
            log=lambda text: remark(text, quiet=quiet),
            progress=progress,
        )
    print_json(proof) if as_json else _print_proof(proof)
    ratio = proof["speedup" if prefer == "latency" else "throughput_ratio"]
    if ratio < 1:
        remark(f"Slower than PyTorch on this machine: {ratio:.2f} times as fast.", quiet=quiet)
    if proof["learned_from"]:
        remark("The run was trained on images of this data: on other images the export may lose more.", quiet=quiet)
    if proof["top1_before"] is None:
        remark(f"Verified on {proof['origin']}; --data DATA verifies the accuracy too.", quiet=quiet)


def _parse_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    if match is None:
        raise SpecError("--size must be HEIGHTxWIDTH.", got=f"{text!r}.", hint="--size 384x384.")
    return int(match[1]), int(match[2] or match[1])


def _print_proof(proof: dict[str, Any]) -> None:
    titles = ["", "same label", "logits differ", "accuracy", "ms", "images/s", "times as fast", "MB"]
    accuracy = _percent(proof["top1_before"])
    rows = [["PyTorch", "", "", accuracy, f"{proof['torch_ms']:.1f}", f"{proof['torch_throughput']:.1f}", "1.00", ""]]
    rows += [_row(row) for row in proof["tried"]]
    print_table(titles, rows)
    for row in proof["tried"]:
        if row["refused"]:
            name = f"{row['format']} {row['precision']}"
            print(row["refused"] if row["refused"].startswith(name) else f"{name}: {row['refused']}")
    layers = f" Layers in float: {', '.join(proof['kept_in_float'])}." if proof["kept_in_float"] else ""
    print(f"\n{proof['path']}, verified on {proof['origin']}.{layers}")


def _row(row: dict[str, Any]) -> list[str]:
    name = f"{row['format']} {row['precision']}"
    if row["refused"]:
        return [name, "not tried" if row["refused"].startswith("not tried") else "rejected", *[""] * 6]
    return [
        name,
        percent(row["agreement"], 2),
        f"{row['max_logit_diff']:.2g}",
        _percent(row["top1_after"]),
        f"{row['latency_ms']:.1f}",
        f"{row['throughput']:.1f}",
        f"{row['speedup']:.2f}",
        f"{row['size_mb']:.1f}",
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else percent(value, 2)
