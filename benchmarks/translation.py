"""A translator on Multi30k, English to German and French in one model, and what beam search and averaging contribute.

    python benchmarks/translation.py multi30k --minutes 40 --run runs/40 > benchmarks/translation-40.json
    python benchmarks/translation.py multi30k --minutes 90 --run runs/90 > benchmarks/translation-90.json

The run resumes if it was interrupted. Then the test sentences are translated in four ways: with the average of the
weights (EMA) or the weights themselves, with a beam of 5 or greedily. BLEU is sacrebleu's: detokenised with case (13a),
and without case, as the literature on Multi30k has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("words", nargs="*", help="settings of the recipe, to try others")
    args = parser.parse_args()
    command = [
        sys.executable,
        "-m",
        "vitrail",
        "train",
        str(args.data),
        "--recipe",
        "translate",
        "--run",
        str(args.run),
    ]
    command += ["--minutes", str(args.minutes), "--seed", str(args.seed), "--json", "source=en", "target=de,fr"]
    done = subprocess.run([*command, *args.words], stdout=subprocess.PIPE, check=True)  # noqa: S603
    result = json.loads(done.stdout)
    import torch

    from vitrail.benchmark.compare import hardware

    kernels = {"kernels": torch.backends.cpu.get_cpu_capability()}
    kernels |= {key: os.environ[key] for key in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY") if key in os.environ}
    kept = ("steps", "seconds", "seconds_by_phase", "samples_per_second", "val", "test")
    document: dict[str, Any] = {
        "data": args.data.name,
        "minutes": args.minutes,
        "seed": args.seed,
        "words": args.words,
        "hardware": {**hardware(), **kernels},
        **{key: result[key] for key in kept},
        "shares": shares(args.run, args.data),
    }
    print(json.dumps(document, indent=1))


def shares(run: Path, data: Path) -> list[dict[str, Any]]:
    """BLEU of the test sentences with and without averaged weights, with and without beam search."""
    from vitrail.data.text.encoded import sentence_pairs
    from vitrail.kind.translation import open_source, score_rows, take_splits, translate_table
    from vitrail.run.text_model import load_text_model
    from vitrail.training.recipe.text.evaluation import run_settings
    from vitrail.weights.tensor_files import read_tensors

    opened = load_text_model(run)
    settings: Any = run_settings(opened)
    table = sentence_pairs(
        take_splits(open_source(data, settings), settings)["test"], opened.tokenizer, context=opened.context
    )
    best = (run / "checkpoints" / "best").read_text().strip()
    rows = []
    for weights, file in (
        ("average", run / "model.safetensors"),
        ("without averaging", run / "checkpoints" / best / "model.safetensors"),
    ):
        opened.model.load_state_dict(read_tensors(file))
        for beam in (5, 1):
            scores = score_rows(translate_table(opened.model, table, "test", beam=beam), settings.targets)
            rows.append(
                {
                    "weights": weights,
                    "beam": beam,
                    **{
                        language: {key: each[key] for key in ("bleu", "bleu_lowercase", "chrf")}
                        for language, each in scores["languages"].items()
                    },
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


if __name__ == "__main__":
    main()
