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


def command(
    model: ModelArgument,
    form: Annotated[
        Literal["onnx", "openvino", "pt2"] | None, typer.Option("--format", help="onnx unless --best chooses.")
    ] = None,
    precision: Annotated[
        Literal["fp32", "bf16", "int8"] | None, typer.Option(help="fp32 unless --best chooses; int8 needs pictures.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Try all, keep the fastest that holds the budget.")] = False,
    weights: WeightsOption = None,
    data: Annotated[
        str | None, typer.Option(metavar="VAL", help="Pictures with labels to prove it on; their val or test split.")
    ] = None,
    calibration: Annotated[
        str | None, typer.Option(metavar="DATA", help="Pictures that teach int8 its ranges, if not part of --data.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder; exported/NAME-FORMAT-PRECISION by default.")] = None,
    size: Annotated[str | None, typer.Option(metavar="ROWSxCOLUMNS", help="Another size than the model's own.")] = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Any size that the patches divide.")] = False,
    takes: Annotated[Literal["uint8", "float"], typer.Option("--input", help="What pixels come as.")] = "uint8",
    merge: Annotated[int, typer.Option(min=0, help="Cells a block that are merged: faster, less exact.")] = 0,
    max_drop: Annotated[float, typer.Option(min=0.0, help="Points of accuracy that may be lost.")] = 0.5,
    pictures: Annotated[int, typer.Option(min=1, help="Pictures that are judged at most.")] = 2000,
    prefer: Annotated[Literal["latency", "throughput"], typer.Option(help="What --best is the best in.")] = "latency",
    as_json: JsonFlag = False,
    quiet: QuietFlag = False,
) -> None:
    """A model as ONNX, OpenVINO or torch.export, proven on your own pictures."""
    from vitrail.verbs.export import export

    with progress_bar("export", quiet=quiet) as progress:
        proof = export(
            model,
            format=form,
            precision=precision,
            best=best,
            weights=weights,
            data=data,
            calibration=calibration,
            out=out,
            size=_size(size),
            dynamic=dynamic,
            takes=takes,
            merge=merge,
            max_drop=max_drop,
            limit=pictures,
            prefer=prefer,
            say=lambda text: remark(text, quiet=quiet),
            progress=progress,
        )
    print_json(proof) if as_json else _show(proof)
    ratio = proof["speedup" if prefer == "latency" else "throughput_ratio"]
    if ratio < 1:
        remark(f"Slower than PyTorch on this machine: {ratio:.2f} times as fast.", quiet=quiet)
    if proof["learned_from"]:
        remark("It was trained on pictures of this data: on others it may lose more.", quiet=quiet)
    if proof["top1_before"] is None:
        remark(f"Proven on {proof['origin']}; --data VAL proves accuracy.", quiet=quiet)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    if match is None:
        raise SpecError("a size is ROWSxCOLUMNS.", got=f"{text!r}.", hint="--size 384x384.")
    return int(match[1]), int(match[2] or match[1])


def _show(proof: dict[str, Any]) -> None:
    titles = ["", "same label", "logits differ", "accuracy", "ms", "a second", "times as fast", "MB"]
    before = proof["top1_before"]
    rows = [
        ["PyTorch", "", "", _share(before), f"{proof['torch_ms']:.1f}", f"{proof['torch_throughput']:.1f}", "1.00", ""]
    ]
    for row in proof["tried"]:
        name = f"{row['format']} {row['precision']}"
        if row["refused"]:
            rows.append([name, "refused", *[""] * 6])
            continue
        rows.append(
            [
                name,
                f"{row['agreement']:.2%}",
                f"{row['max_logit_diff']:.2g}",
                _share(row["top1_after"]),
                f"{row['latency_ms']:.1f}",
                f"{row['throughput']:.1f}",
                f"{row['speedup']:.2f}",
                f"{row['size_mb']:.1f}",
            ]
        )
    print_table(titles, rows)
    for row in proof["tried"]:
        if row["refused"]:
            print(f"Refused: {row['refused']}")
    kept = f" Kept in float: {', '.join(proof['kept_in_float'])}." if proof["kept_in_float"] else ""
    print(f"\n{proof['path']}, proven on {proof['origin']}.{kept}")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2%}"
