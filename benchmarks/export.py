"""Every format that `vitrail export` writes, compared with timm in PyTorch, ONNX Runtime and plain OpenVINO int8.

    python benchmarks/export.py deit_tiny_patch16_224 IMAGENET --weights FILE --out benchmarks/export-deit.json
    python benchmarks/export.py vit_base_patch16_224 IMAGENET --out benchmarks/export-vit.json

All models are timed in turns within one run, on one image and on eight. Accuracy is measured on images that none of
them was calibrated on. Without --weights the weights are random; then only the speed means anything.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ.setdefault("NNCF_CI", "1")  # no telemetry

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.parity.conftest import timm
from vitrail import create_model, save_weights
from vitrail.benchmark.compare import hardware, take_turns
from vitrail.exports.build import BuildContext
from vitrail.exports.graph import Graph, prepare_for_export
from vitrail.exports.images import load_images
from vitrail.exports.proof import compute_logits, measure_fidelity, measure_speeds
from vitrail.exports.search import available_formats, build_all, sort_key
from vitrail.exports.tracing import Tracer, quiet
from vitrail.run.open import open_model

PACKAGES = ("onnx", "onnxruntime", "onnxscript", "openvino", "nncf")
REFERENCE = "timm, PyTorch"


def main() -> None:
    """Build, prove and time all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="vitrail-bench-") as folder:
        document = measure(args, Path(folder))
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for row in document["rows"]:
        print(json.dumps({key: value for key, value in row.items() if not key.startswith("values")}))
    print(document["best"])


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure the whole table."""
    weights = args.weights or _random_weights(args.model, folder)
    network = open_model(args.model, weights)
    images = load_images(network, args.model, args.data, calibration=None, limit=args.images)
    start = time.perf_counter()
    logits = compute_logits(network, images.proof_pixels)
    seconds_per_image = (time.perf_counter() - start) / len(logits)
    peers = _peers(args.model, weights, network, images, folder)
    context = BuildContext(
        tracer=Tracer(Graph(prepare_for_export(network))),
        images=images,
        logits=logits,
        seconds_per_image=seconds_per_image,
        log=lambda text: print(text, file=sys.stderr),
    )
    builds, rejected = build_all(context, available_formats(), folder)
    speeds = measure_speeds({build.name: build.model for build in builds}, images.proof_pixels)
    models = {name: call for name, (call, _) in peers.items()}
    models |= {f"vitrail, {build.name}": build.model.run for build in builds}
    fidelities = {
        name: measure_fidelity(logits, torch.from_numpy(peer_logits), images)
        for name, (_, peer_logits) in peers.items()
    }
    fidelities |= {f"vitrail, {build.name}": build.fidelity for build in builds}
    # Peers get normalised images, Vitrail's exports raw pixels, which they normalise inside.
    batches = {}
    for num in (1, 8):
        pixels = images.proof_pixels[:num].copy()
        batches[num] = (pixels, network.preprocess.normalise(pixels).contiguous().numpy())
    inputs = {name: {num: batches[num][name in peers] for num in batches} for name in models}
    rows = _rows(models, inputs, fidelities, args.rounds)
    # As `vitrail export --best` chooses: by its own measurement, before the one above.
    best = min(builds, key=lambda build: sort_key(speeds[build.name], "latency"))
    return {
        "setting": {
            "model": args.model,
            "weights": "real" if args.weights else "random",
            "calibrated_on": len(images.calibration_pixels),
            "proven_on": len(images.proof_pixels),
            "rounds": args.rounds,
            "threads": torch.get_num_threads(),
            "seed": 0,
        },
        "hardware": {**hardware(), **{name: metadata.version(name) for name in PACKAGES}},
        "reference": REFERENCE,
        "rows": rows,
        "refused": [f"{each.format} {each.precision}: {each.refused}" for each in rejected],
        "best": f"vitrail, {best.name}",
        "kept_in_float": {build.name: build.float_layers for build in builds},
    }


def _random_weights(model: str, folder: Path) -> Path:
    network = create_model(model)
    torch.nn.init.normal_(network.head.weight, std=0.02)
    path = folder / "random.safetensors"
    save_weights(network, path)
    return path


def _peers(
    model: str, weights: Path, network: Any, images: Any, folder: Path
) -> dict[str, tuple[Callable[..., Any], Any]]:
    """The alternatives to Vitrail: each takes normalised images, as timm does, and returns logits."""
    import nncf
    import onnxruntime
    import openvino

    peer = timm.create_model(model, checkpoint_path=str(weights)).eval()
    file = folder / "timm.onnx"
    with quiet():
        dynamic = {"x": {0: torch.export.Dim("batch", min=1, max=1024)}}
        torch.onnx.export(
            peer, (torch.zeros(2, 3, 224, 224),), file, dynamo=True, dynamic_shapes=dynamic, verbose=False
        )
    session = onnxruntime.InferenceSession(file)
    core = openvino.Core()
    fp32 = core.read_model(file)
    normalised = [network.preprocess.normalise(each[None]).contiguous().numpy() for each in images.calibration_pixels]
    with quiet():
        int8 = nncf.quantize(
            fp32.clone(), nncf.Dataset(normalised), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(normalised)
        )
    input_name = session.get_inputs()[0].name
    compiled = {name: core.compile_model(each, "CPU") for name, each in (("fp32", fp32), ("int8", int8))}

    def run_pytorch(batch: Any) -> Any:
        with torch.inference_mode():
            return peer(torch.from_numpy(batch)).numpy()

    calls: dict[str, Callable[[Any], Any]] = {
        REFERENCE: run_pytorch,
        "ONNX Runtime fp32": lambda batch: session.run(None, {input_name: batch})[0],
        "OpenVINO, default": lambda batch: np.array(compiled["fp32"](batch)[0]),
        "OpenVINO int8, plain": lambda batch: np.array(compiled["int8"](batch)[0]),
    }
    peers = {}
    for name, call in calls.items():
        logits = [
            call(network.preprocess.normalise(images.proof_pixels[start : start + 32]).contiguous().numpy())
            for start in range(0, len(images.proof_pixels), 32)
        ]
        peers[name] = (call, np.concatenate(logits))
    return peers


def _rows(
    models: dict[str, Any], inputs: dict[str, Any], fidelities: dict[str, Any], rounds: int
) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in models}
    for num in (1, 8):
        timed = {name: _throughput(call, inputs[name][num]) for name, call in models.items()}
        for call in timed.values():
            call()
        for row in take_turns(timed, reference=REFERENCE, unit="images/s", rounds=rounds):
            rows[row.name][f"batch {num}"] = {
                "images/s": round(row.value, 2),
                "ratio": round(row.ratio, 3),
                "low": round(row.ratio_low, 3),
                "high": round(row.ratio_high, 3),
            }
    for name, fidelity in fidelities.items():
        rows[name] |= {
            "accuracy": fidelity.top1_after,
            "lost points": round(100 * fidelity.drop, 2),
            "same label": round(fidelity.agreement, 4),
            "max_logit_diff": fidelity.max_logit_diff,
        }
    return list(rows.values())


def _throughput(call: Callable[[Any], Any], batch: Any) -> Callable[[], float]:
    repeats = max(1, 16 // len(batch))

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call(batch)
        return repeats * len(batch) / (time.perf_counter() - start)

    return measure


if __name__ == "__main__":
    main()
