"""A model for where it will run, with a proof that it is still the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.benchmark.compare import hardware
from vitrail.data.find import open_data
from vitrail.engine.exported import Exported
from vitrail.errors import ExportError, SpecError
from vitrail.exports.build import Made, Say, Trial, check_asked
from vitrail.exports.graph import Graph, Takes, at_size, leaving
from vitrail.exports.images import Progress, gather
from vitrail.exports.package import keep, workplace
from vitrail.exports.proof import SECONDS, Speed, logits_of, speeds
from vitrail.exports.search import Prefer, Tried, all_forms, make_all, name_of, rank, row_of
from vitrail.exports.traced import Traced
from vitrail.run.golden import NEAR
from vitrail.run.open import open_verified
from vitrail.run.predictor import calibration_of, require_classifier
from vitrail.training.splits import learned_from

MAX_DROP = 0.5
LIMIT = 2000
TORCH = "PyTorch"


def export(
    model: str | Path,
    *,
    format: str | None = None,
    precision: str | None = None,
    best: bool = False,
    weights: str | Path | None = None,
    data: str | Path | None = None,
    calibration: str | Path | None = None,
    out: str | Path | None = None,
    size: tuple[int, int] | None = None,
    dynamic: bool = False,
    takes: Takes = "uint8",
    merge: int = 0,
    max_drop: float = MAX_DROP,
    limit: int = LIMIT,
    prefer: Prefer = "latency",
    seconds: float = SECONDS,
    say: Say = lambda _: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a model as ONNX, OpenVINO or torch.export into the folder `out`, and prove it there.

    `data` are pictures with labels to prove it on, of which some teach int8 its ranges unless `calibration` is given.
    One that loses more than `max_drop` points is refused. With `best`, all formats and precisions that are installed
    are tried, and the fastest that holds the budget is kept. `merge` cells a block are merged, which is faster and
    less exact. The proof is returned, and stands in proof.json.
    """
    chosen = _chosen(format, precision, best=best, pictures=data is not None or calibration is not None)
    network = open_verified(model, weights)
    if isinstance(network, Exported):
        raise ExportError(f"{model} is an export already.", got=f"{network.engine}.", hint="the run that it came from.")
    require_classifier(network)
    if size is not None and tuple(size) != tuple(network.preprocess.size):
        network = at_size(network, size)
    graph = Graph(leaving(network, merge=merge, dynamic=dynamic), takes=takes)
    form = "best" if best else "-".join(chosen[0])
    out = Path(out or Path("exported") / _folder(model, form, merge=merge, size=size, dynamic=dynamic, takes=takes))
    with workplace(out) as room:
        say("Reading pictures")
        ranges = any(precision == "int8" for _, precision in chosen)
        pictures = gather(
            network, str(model), data, calibration=calibration, limit=limit, ranges=ranges, progress=progress
        )
        if not best:
            check_asked(*chosen[0], pictures)
        say("Asking PyTorch")
        before = logits_of(network, pictures.judged, progress)
        traced = Traced(graph, dynamic=dynamic)
        trial = Trial(traced, pictures, before, max_drop=max_drop / 100, merge=merge, say=say, progress=progress)
        winner, proof = _contest(trial, network, chosen, room, prefer, seconds)
        proof = {
            "path": str(out / winner.file.name),
            **proof,
            "other_size": _other_size(network, winner) if dynamic else None,
            "learned_from": _learned_from(model, data),
        }
        keep(winner, out, pictures, proof)
    return proof


def _contest(
    trial: Trial, network: Any, chosen: Sequence[tuple[str, str]], room: Path, prefer: Prefer, seconds: float
) -> tuple[Made, dict[str, Any]]:
    """The fastest of those that hold the budget, and its proof."""
    made, refused = make_all(trial, chosen, room)
    trial.say("Measuring speed, in turns")
    contenders = {TORCH: network, **{name_of(each): each.opened for each in made}}
    fast = speeds(contenders, trial.pictures.judged, seconds=seconds, progress=trial.progress)
    rows = [row_of(each, fast[name_of(each)], fast[TORCH]) for each in made]
    place = min(range(len(made)), key=lambda each: rank(fast[name_of(made[each])], prefer))
    proof = _proof(trial, made[place], rows[place], fast[TORCH])
    return made[place], {**proof, "tried": [asdict(each) for each in (*rows, *refused)]}


def _chosen(format: str | None, precision: str | None, *, best: bool, pictures: bool) -> list[tuple[str, str]]:
    """The formats and precisions that are tried."""
    if not best:
        chosen = (format or "onnx", precision or "fp32")
        check_asked(*chosen)
        return [chosen]
    if format is not None or precision is not None:
        raise SpecError(
            "--best chooses format and precision.", got=f"{format or precision}.", hint="the one or the other."
        )
    return [form for form in all_forms() if form[1] != "int8" or pictures]


def _folder(
    model: str | Path, form: str, *, merge: int, size: tuple[int, int] | None, dynamic: bool, takes: Takes
) -> str:
    """A name that tells apart whatever is exported of whichever model."""
    marks = [Path(str(model)).name, form]
    marks += [f"merge{merge}"] if merge else []
    marks += [f"{size[0]}x{size[1]}"] if size else []
    return "-".join([*marks, *["any-size"] * dynamic, *["float-input"] * (takes == "float")])


def _learned_from(model: str | Path, data: str | Path | None) -> bool:
    """Whether a run was trained on the pictures that it is judged on: data of one piece, from which it drew."""
    source = None if data is None else open_data(data)
    return source is not None and not source.split_names and learned_from(model, source)


def _other_size(network: Any, made: Made) -> dict[str, Any]:
    """How far an export for any size is from PyTorch at a size that it was not traced with."""
    cell = network.spec.stem.cell if hasattr(network.spec, "stem") else (1, 1)
    rows, columns = network.preprocess.size
    size = (rows + cell[0], columns + 2 * cell[1])
    pixels = np.random.default_rng(0).integers(0, 256, (2, *size, network.preprocess.channels), dtype=np.uint8)
    with torch.inference_mode():
        wanted = network(network.preprocess.override({"size": size}).normalise(pixels)).float()
        gap = (made.opened(made.opened.preprocess.normalise(pixels)) - wanted).abs().max().item()
    if made.precision == "fp32" and not gap <= NEAR * max(1.0, wanted.abs().max().item()):
        raise ExportError(
            f"{name_of(made)} is right at one size only.", got=f"logits that differ by {gap:.3g}.", hint="--size."
        )
    return {"size": size, "max_logit_diff": gap}


def _same_unknown(trial: Trial, winner: Made) -> float | None:
    """The share of pictures that both call known, or both unknown; None of a model that calls none so."""
    calibration = calibration_of(trial.traced.graph.model)
    if calibration.limit is None:
        return None
    return (calibration.unknown(trial.before) == calibration.unknown(winner.after)).double().mean().item()


def _proof(trial: Trial, winner: Made, row: Tried, torch_speed: Speed) -> dict[str, Any]:
    faith, machine = winner.faith, hardware()
    assert row.throughput is not None
    return {
        "name": winner.opened.name,
        **{key: value for key, value in asdict(row).items() if key != "refused"},
        "top1_before": faith.top1_before,
        "interval": faith.interval,
        "drop": faith.drop,
        "drop_interval": faith.drop_interval,
        "torch_ms": torch_speed.latency_ms,
        "torch_throughput": torch_speed.throughput,
        "throughput_ratio": row.throughput / torch_speed.throughput,
        "same_unknown": _same_unknown(trial, winner),
        "kept_in_float": list(winner.kept),
        "calibrated_on": len(trial.pictures.calibration) if winner.precision == "int8" else 0,
        "origin": trial.pictures.origin,
        "size": list(trial.traced.graph.model.preprocess.size),
        "dynamic": trial.traced.dynamic,
        "merge": trial.merge,
        "max_drop": 100 * trial.max_drop,
        "takes": trial.traced.graph.takes,
        "machine": f"{machine['cpu']}, {machine['cores']} cores",
        "hardware": machine,
    }
