"""Exports a model to where it will run, with a proof that it is still the same model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.benchmark.compare import hardware
from vitrail.contract import Classifier
from vitrail.data.find import open_data
from vitrail.engine.exported import ExportedModel, ImageModel
from vitrail.errors import ExportError, SpecError
from vitrail.exports.budget import Budget, Progress
from vitrail.exports.build import Build, BuildContext, Log, check_format
from vitrail.exports.graph import Graph, InputDtype, prepare_for_export, resize_model
from vitrail.exports.images import MIN_IMAGES, ExportImages, ImageBudget, load_images
from vitrail.exports.package import save_package, temporary_dir
from vitrail.exports.proof import MIN_SECONDS, SECONDS, THROUGHPUT_BATCH, Speed, compute_logits, measure_speeds
from vitrail.exports.search import Candidate, Prefer, available_formats, build_all, sort_key, to_candidate
from vitrail.exports.tracing import Tracer
from vitrail.run.golden import TOLERANCE
from vitrail.run.open import open_verified
from vitrail.run.predictor import calibration_of, require_classification, require_classifier
from vitrail.training.splits import was_trained_on

MAX_DROP = 0.5
LIMIT = 2000
BEST_MINUTES = 5.0
TORCH = "PyTorch"


def export(
    model: str | Path,
    *,
    format: str | None = None,
    precision: str | None = None,
    best: bool = False,
    minutes: float | None = None,
    weights: str | Path | None = None,
    data: str | Path | None = None,
    calibration: str | Path | None = None,
    out: str | Path | None = None,
    size: tuple[int, int] | None = None,
    dynamic: bool = False,
    input_dtype: InputDtype = "uint8",
    merge: int = 0,
    max_drop: float = MAX_DROP,
    limit: int = LIMIT,
    prefer: Prefer = "latency",
    seconds: float = SECONDS,
    log: Log = lambda _: None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a model as ONNX, OpenVINO or torch.export into the folder `out`, and verify it on images.

    `data` are labelled images to verify it on, at most `limit`. Part of them calibrate int8, unless `calibration` names
    others. An export that loses more than `max_drop` points of accuracy is rejected. `best` tries every installed
    format and precision and keeps the fastest within that limit. What does not fit in `minutes` is not tried, and the
    result says so: 5 by default for `best`, else no limit. `merge` merges that many pairs of patch tokens in each
    block: faster, less accurate. Returns the result, which is also saved as proof.json.
    """
    budget = Budget(BEST_MINUTES if best and minutes is None else minutes)
    choices = _choices(format, precision, best=best, has_images=data is not None or calibration is not None)
    network = _open_network(model, weights, size)
    graph = Graph(prepare_for_export(network, merge=merge, dynamic=dynamic), input_dtype=input_dtype)
    form = "best" if best else "-".join(choices[0])
    name = _folder_name(model, form, merge=merge, size=size, dynamic=dynamic, input_dtype=input_dtype)
    out = Path(out or Path("exported") / name)
    with temporary_dir(out) as folder:
        log("Reading images")
        time_limit = _image_budget(network, budget, len(choices)) if data is not None and limit > MIN_IMAGES else None
        images = load_images(
            network,
            str(model),
            data,
            calibration=calibration,
            limit=limit,
            calibrate=any(precision == "int8" for _, precision in choices),
            time_limit=time_limit,
            progress=progress,
        )
        if not best:
            check_format(*choices[0], images)
        context = _evaluate_pytorch(network, Tracer(graph, dynamic=dynamic), images, budget, log, progress)
        context = replace(context, max_drop=max_drop / 100, merge=merge)
        winner, proof = _find_fastest(context, network, choices, folder, prefer, seconds)
        proof = {"path": str(out / winner.file.name), **proof}
        proof["other_size"] = _check_other_size(network, winner) if dynamic else None
        proof["learned_from"] = _trained_on(model, data)
        save_package(winner, out, images, proof)
    return proof


def _open_network(model: str | Path, weights: str | Path | None, size: tuple[int, int] | None) -> Classifier:
    """The PyTorch model to export, for images of `size`."""
    network = open_verified(model, weights)
    require_classification(network, "vitrail export")
    if isinstance(network, ExportedModel):
        raise ExportError(f"{model} is already an export.", got=f"{network.engine}.", hint="the run it came from.")
    require_classifier(network)
    if size is not None and tuple(size) != tuple(network.preprocess.size):
        return resize_model(network, size)
    return network


def _image_budget(network: Classifier, budget: Budget, num_choices: int) -> ImageBudget | None:
    """Time PyTorch on a small batch of noise: each image goes through it, and through about as slow an export each."""
    if not budget.limited:
        return None
    shape = (THROUGHPUT_BATCH, *network.preprocess.size, network.preprocess.channels)
    noise = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    compute_logits(network, noise[:1])  # warm-up
    start = budget.elapsed()
    compute_logits(network, noise)
    seconds_per_image = (budget.elapsed() - start) / len(noise)
    return ImageBudget(budget=budget, seconds_per_image=(1 + num_choices) * seconds_per_image)


def _evaluate_pytorch(
    network: Classifier, tracer: Tracer, images: ExportImages, budget: Budget, log: Log, progress: Progress | None
) -> BuildContext:
    """Compute the logits that exports are compared with."""
    log(f"Evaluating PyTorch on {images.origin}")
    start = budget.elapsed()
    logits = compute_logits(network, images.proof_pixels, progress)
    return BuildContext(
        tracer=tracer,
        images=images,
        logits=logits,
        seconds_per_image=(budget.elapsed() - start) / len(logits),
        budget=budget,
        log=log,
        progress=progress,
    )


def _find_fastest(
    context: BuildContext,
    network: Classifier,
    choices: Sequence[tuple[str, str]],
    folder: Path,
    prefer: Prefer,
    seconds: float,
) -> tuple[Build, dict[str, Any]]:
    """The fastest export within the accuracy limit, and its proof."""
    builds, rejected = build_all(context, choices, folder, speed_seconds=seconds)
    models: dict[str, ImageModel] = {TORCH: network, **{each.name: each.model for each in builds}}
    seconds = min(seconds, max(MIN_SECONDS, context.budget.left() / (2 * len(models))))
    context.log(f"Timing in turns: {', '.join(models)}")
    speeds = measure_speeds(models, context.images.proof_pixels, seconds=seconds, progress=context.progress)
    rows = [to_candidate(each, speeds[each.name], speeds[TORCH]) for each in builds]
    fastest = min(range(len(builds)), key=lambda index: sort_key(speeds[builds[index].name], prefer))
    proof = _proof(context, builds[fastest], rows[fastest], speeds[TORCH])
    return builds[fastest], {**proof, "tried": [asdict(each) for each in (*rows, *rejected)]}


def _choices(format: str | None, precision: str | None, *, best: bool, has_images: bool) -> list[tuple[str, str]]:
    """The formats and precisions to try."""
    if not best:
        choice = (format or "onnx", precision or "fp32")
        check_format(*choice)
        return [choice]
    if format is not None or precision is not None:
        raise SpecError(
            "--best chooses format and precision.",
            got=f"{format or precision}.",
            hint="--best alone, or --format and --precision.",
        )
    return [choice for choice in available_formats() if choice[1] != "int8" or has_images]


def _folder_name(
    model: str | Path, form: str, *, merge: int, size: tuple[int, int] | None, dynamic: bool, input_dtype: InputDtype
) -> str:
    """A name that is different for every kind of export of every model."""
    parts = [Path(str(model)).name, form]
    parts += [f"merge{merge}"] if merge else []
    parts += [f"{size[0]}x{size[1]}"] if size else []
    return "-".join([*parts, *["any-size"] * dynamic, *["float-input"] * (input_dtype == "float")])


def _trained_on(model: str | Path, data: str | Path | None) -> bool:
    """Whether a run was trained on part of the proof images: on data without splits, which it split itself."""
    source = None if data is None else open_data(data)
    return source is not None and not source.split_names and was_trained_on(model, source)


def _check_other_size(network: Classifier, build: Build) -> dict[str, Any]:
    """Compare a dynamic export with PyTorch at a size that it was not traced with."""
    cell = network.spec.cell
    rows, columns = network.preprocess.size
    size = (rows + cell[0], columns + 2 * cell[1])
    pixels = np.random.default_rng(0).integers(0, 256, (2, *size, network.preprocess.channels), dtype=np.uint8)
    with torch.inference_mode():
        expected = network(network.preprocess.override({"size": size}).normalise(pixels)).float()
        gap = (build.model(build.model.preprocess.normalise(pixels)) - expected).abs().max().item()
    if build.precision == "fp32" and not gap <= TOLERANCE * max(1.0, expected.abs().max().item()):
        raise ExportError(
            f"{build.name} is correct at one image size only.",
            got=f"logits that differ by {gap:.3g} at {size[0]} x {size[1]}.",
            hint="--size instead of --dynamic.",
        )
    return {"size": size, "max_logit_diff": gap}


def _unknown_agreement(context: BuildContext, winner: Build) -> float | None:
    """The fraction of images with the same verdict, known or unknown; None for a model without that verdict."""
    calibration = calibration_of(context.tracer.graph.model)
    if calibration.limit is None:
        return None
    return (calibration.unknown(context.logits) == calibration.unknown(winner.logits)).double().mean().item()


def _proof(context: BuildContext, winner: Build, row: Candidate, torch_speed: Speed) -> dict[str, Any]:
    fidelity, machine = winner.fidelity, hardware()
    assert row.throughput is not None
    return {
        "name": winner.model.name,
        **{key: value for key, value in asdict(row).items() if key != "refused"},
        "top1_before": fidelity.top1_before,
        "interval": fidelity.interval,
        "drop": fidelity.drop,
        "drop_interval": fidelity.drop_interval,
        "torch_ms": torch_speed.latency_ms,
        "torch_throughput": torch_speed.throughput,
        "throughput_ratio": row.throughput / torch_speed.throughput,
        "same_unknown": _unknown_agreement(context, winner),
        "kept_in_float": list(winner.float_layers),
        "calibrated_on": len(context.images.calibration_pixels) if winner.precision == "int8" else 0,
        "origin": context.images.origin,
        "size": list(context.tracer.graph.model.preprocess.size),
        "dynamic": context.tracer.dynamic,
        "merge": context.merge,
        "max_drop": 100 * context.max_drop,
        "minutes": context.budget.minutes,
        "takes": context.tracer.graph.input_dtype,
        "machine": f"{machine['cpu']}, {machine['cores']} cores",
        "hardware": machine,
    }
