"""Every form that `vitrail export` writes, beside timm in PyTorch, ONNX Runtime and plain int8 of OpenVINO.

    python benchmarks/export.py deit_tiny_patch16_224 IMAGENET --weights FILE --out benchmarks/export-deit.json
    python benchmarks/export.py vit_base_patch16_224 IMAGENET --out benchmarks/export-vit.json

All contenders are measured in turns within one run, with one picture and with eight. Accuracy is that on pictures that
teach no contender its ranges. Without weights the model's are random: then only the speed means anything.
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
from vitrail.exports.build import Trial
from vitrail.exports.graph import Graph, leaving
from vitrail.exports.images import gather
from vitrail.exports.proof import faith_of, logits_of, speeds
from vitrail.exports.search import all_forms, make_all, name_of, rank
from vitrail.exports.traced import Traced, quiet
from vitrail.run.open import open_model

PACKAGES = ("onnx", "onnxruntime", "onnxscript", "openvino", "nncf")
REFERENCE = "timm, PyTorch"


def main() -> None:
    """Make, prove and measure all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pictures", type=int, default=800)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(prefix="vitrail-bench-") as folder:
        document = measure(asked, Path(folder))
    asked.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for row in document["rows"]:
        told = {key: value for key, value in row.items() if not key.startswith("values")}
        print(json.dumps(told))
    print(document["best"])


def measure(asked: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole table."""
    weights = asked.weights or _random_weights(asked.model, folder)
    network = open_model(asked.model, weights)
    pictures = gather(network, asked.model, asked.data, calibration=None, limit=asked.pictures)
    before = logits_of(network, pictures.judged)
    peers = _peers(asked.model, weights, network, pictures, folder)
    traced = Traced(Graph(leaving(network)))
    say = lambda text: print(text, file=sys.stderr)  # noqa: E731
    made, refused = make_all(Trial(traced, pictures, before, say=say), all_forms(), folder)
    fast = speeds({name_of(each): each.opened for each in made}, pictures.judged)
    contenders = {name: call for name, (call, _) in peers.items()}
    contenders |= {f"vitrail, {name_of(each)}": each.opened.run for each in made}
    faiths = {name: faith_of(before, torch.from_numpy(logits), pictures) for name, (_, logits) in peers.items()}
    faiths |= {f"vitrail, {name_of(each)}": each.faith for each in made}
    # Peers get prepared pictures, Vitrail's exports pixels, which they prepare by themselves.
    batches = {
        num: (pictures.judged[:num].copy(), network.preprocess.normalise(pictures.judged[:num]).contiguous().numpy())
        for num in (1, 8)
    }
    inputs = {name: {num: batches[num][name in peers] for num in batches} for name in contenders}
    rows = _rows(contenders, inputs, faiths, asked.rounds)
    # As `vitrail export --best` chooses: by its own measurement, before the one above.
    best = min(made, key=lambda each: rank(fast[name_of(each)], "latency"))
    return {
        "setting": {
            "model": asked.model,
            "weights": "real" if asked.weights else "random",
            "calibrated_on": len(pictures.calibration),
            "judged_on": len(pictures.judged),
            "rounds": asked.rounds,
            "threads": torch.get_num_threads(),
            "seed": 0,
        },
        "hardware": {**hardware(), **{name: metadata.version(name) for name in PACKAGES}},
        "reference": REFERENCE,
        "rows": rows,
        "refused": [f"{each.format} {each.precision}: {each.refused}" for each in refused],
        "best": f"vitrail, {name_of(best)}",
        "kept_in_float": {name_of(each): each.kept for each in made},
    }


def _random_weights(model: str, folder: Path) -> Path:
    network = create_model(model)
    torch.nn.init.normal_(network.head.weight, std=0.02)
    path = folder / "random.safetensors"
    save_weights(network, path)
    return path


def _peers(
    model: str, weights: Path, network: Any, pictures: Any, folder: Path
) -> dict[str, tuple[Callable[..., Any], Any]]:
    """What one would do without Vitrail: each takes prepared pictures as timm does, and gives logits."""
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
    whole = core.read_model(file)
    prepared = [network.preprocess.normalise(each[None]).contiguous().numpy() for each in pictures.calibration]
    with quiet():
        small = nncf.quantize(
            whole.clone(), nncf.Dataset(prepared), model_type=nncf.ModelType.TRANSFORMER, subset_size=len(prepared)
        )
    entry = session.get_inputs()[0].name
    compiled = {name: core.compile_model(each, "CPU") for name, each in (("fp32", whole), ("int8", small))}

    def eager(images: Any) -> Any:
        with torch.inference_mode():
            return peer(torch.from_numpy(images)).numpy()

    calls: dict[str, Callable[[Any], Any]] = {
        REFERENCE: eager,
        "ONNX Runtime fp32": lambda images: session.run(None, {entry: images})[0],
        "OpenVINO as it comes": lambda images: np.array(compiled["fp32"](images)[0]),
        "OpenVINO int8, plain": lambda images: np.array(compiled["int8"](images)[0]),
    }
    normal = {}
    for name, call in calls.items():
        logits = [
            call(network.preprocess.normalise(pictures.judged[start : start + 32]).contiguous().numpy())
            for start in range(0, len(pictures.judged), 32)
        ]
        normal[name] = (call, np.concatenate(logits))
    return normal


def _rows(
    contenders: dict[str, Any], inputs: dict[str, Any], faiths: dict[str, Any], rounds: int
) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {name: {"name": name} for name in contenders}
    for num in (1, 8):
        timed = {name: _figure(call, inputs[name][num]) for name, call in contenders.items()}
        for call in timed.values():
            call()
        for row in take_turns(timed, reference=REFERENCE, unit="pictures/s", rounds=rounds):
            found[row.name][f"batch {num}"] = {
                "pictures/s": round(row.value, 2),
                "ratio": round(row.ratio, 3),
                "low": round(row.ratio_low, 3),
                "high": round(row.ratio_high, 3),
            }
    for name, faith in faiths.items():
        found[name] |= {
            "accuracy": faith.top1_after,
            "lost points": round(100 * faith.drop, 2),
            "same label": round(faith.agreement, 4),
            "max_logit_diff": faith.max_logit_diff,
        }
    return list(found.values())


def _figure(call: Callable[[Any], Any], batch: Any) -> Callable[[], float]:
    repeats = max(1, 16 // len(batch))

    def once() -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            call(batch)
        return repeats * len(batch) / (time.perf_counter() - start)

    return once


if __name__ == "__main__":
    main()
