"""Fuzzing that is guided by coverage: inputs that reach new code of Vitrail are kept and mutated further.

    pip install atheris
    python benchmarks/fuzz_guided.py TARGET --corpus DIR --seconds 600 --out benchmarks/fuzz-guided.json

`TARGET` is one of: image, safetensors, npz, pth, table, arrays, config, result, calibration, wav. The corpus starts
from good files, and grows in DIR, so that the next call goes on where this one stopped. An input is a finding if it
raises anything but a VitrailError, takes longer than 10 seconds, or needs more than 1 GiB; libFuzzer ends there and
leaves it in DIR, and the JSON document names it. With `--input FILE`, one input is tried and its error shown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
MAX_SECONDS, MAX_MIB, MAX_LENGTH = 10, 1024, 65_536
Try = Callable[[bytes], object]


def file_target(suffix: str, read: Callable[[Path], object]) -> Try:
    """A target that reads a file, which each input overwrites."""
    path = Path(tempfile.mkdtemp(prefix="vitrail-guided-")) / f"input{suffix}"

    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        read(path)

    return attempt


def small_run() -> Path:
    """A finished run, whose files mutations start from."""
    import vitrail

    run = Path(tempfile.mkdtemp(prefix="vitrail-guided-")) / "run"
    settings = ("steps=2", "batch_size=32", "precision=float32", "cache_gb=0.0", "workers=0")
    vitrail.train("digits", recipe="scratch", model="vit_mu_patch4_8", run=run, settings=settings, report=False)
    return run


def build_target(name: str) -> tuple[Try, list[bytes]]:
    """What an input is given to, and the inputs to start from."""
    import fuzz_inputs
    import numpy as np

    from vitrail.data.decode import decode_image
    from vitrail.run import directory
    from vitrail.run.calibrate import read_calibration
    from vitrail.weights import tensor_files

    if name == "image":
        decode: Try = lambda content: decode_image(content, name="input", target_size=lambda _y, _x: (16, 16))  # noqa: E731
        return decode, list(fuzz_inputs.original_images().values())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if name in ("safetensors", "npz", "pth"):
            import torch

            path = place / f"weights.{name}"
            tensor_files.write_tensors({"head.weight": torch.rand(3, 4), "head.bias": torch.rand(3)}, path)
            return file_target(path.suffix, tensor_files.read_tensors), [path.read_bytes()]
        if name == "table":
            starts = [
                b"path,label,split\na.png,cat,train\nb.png,dog,test\n",
                b'image,labels\n"a.png","cat dog"\nb.png,""\n',
            ]
            return file_target(".csv", fuzz_inputs.check_data), starts
        if name == "arrays":
            np.savez(place / "set.npz", x=np.zeros((2, 4, 4, 3), np.uint8), y=np.arange(2))
            return file_target(".npz", fuzz_inputs.check_data), [(place / "set.npz").read_bytes()]
        if name == "wav":
            inputs = fuzz_inputs.DataInputs(place, lambda content, *_: content)
            return lambda content: fuzz_inputs.read_clip(content, "wav"), [inputs.clips["wav"], inputs.clips["flac"]]
        run = small_run()
        file, read = {
            "config": ("config.yaml", directory.stored_config),
            "result": ("result.json", directory.read_result),
            "calibration": ("calibration.json", read_calibration),
        }[name]
        start = (run / file).read_bytes()

        def read_run(content: bytes) -> None:
            (run / file).write_bytes(content)
            read(run)

        return read_run, [start]


TARGETS = ("image", "safetensors", "npz", "pth", "table", "arrays", "config", "result", "calibration", "wav")


def findings_of(corpus: Path) -> Path:
    """The folder of what was found, beside the corpus: in it, the next call would start with the same finding."""
    folder = corpus.with_name(f"{corpus.name}-findings")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fuzz(name: str, corpus: Path, seconds: int) -> None:
    """Fuzz in this process, which libFuzzer ends."""
    import atheris

    with atheris.instrument_imports(include=["vitrail"], enable_loader_override=False):
        attempt, starts = build_target(name)
        from vitrail.errors import VitrailError

        for content in starts:
            attempt(content)  # what is imported only here is instrumented too

    for number, content in enumerate(starts):
        (corpus / f"start-{number}").write_bytes(content)

    def one_input(content: bytes) -> None:
        with contextlib.suppress(VitrailError):
            attempt(content)

    options = [
        *(f"-max_total_time={seconds}", f"-timeout={MAX_SECONDS}", f"-rss_limit_mb={MAX_MIB + 1024}"),
        *(f"-max_len={MAX_LENGTH}", f"-artifact_prefix={findings_of(corpus)}/", "-print_final_stats=1"),
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
    atheris.Fuzz()


def main() -> None:
    """Start a process that fuzzes, and keep what it found in a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--input", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    corpus = args.corpus / args.target
    corpus.mkdir(parents=True, exist_ok=True)
    if args.input:
        build_target(args.target)[0](args.input.read_bytes())
        return
    if args.inside:
        fuzz(args.target, corpus, args.seconds)
        return
    known = set(findings_of(corpus).iterdir())
    started = time.monotonic()
    words = [sys.executable, __file__, args.target, "--corpus", str(args.corpus), "--seconds", str(args.seconds)]
    done = subprocess.run([*words, "--inside"], capture_output=True, text=True, errors="replace", check=False)  # noqa: S603
    row: dict[str, Any] = {"seconds": round(time.monotonic() - started), "exit": done.returncode}
    found = re.search(r"stat::number_of_executed_units: +(\d+)", done.stderr)
    row["inputs"] = int(found[1]) if found else None
    coverage = re.findall(r"cov: (\d+)", done.stderr)
    row |= {"coverage": int(coverage[-1]) if coverage else None, "corpus": sum(1 for _ in corpus.iterdir())}
    row["findings"] = sorted(path.name for path in set(findings_of(corpus).iterdir()) - known)
    if done.returncode or not row["inputs"]:
        row["error"] = done.stderr[-1500:]
    print(json.dumps({args.target: row}, indent=1))
    if args.out is not None:
        stored = json.loads(args.out.read_text()) if args.out.is_file() else {}
        stored.setdefault(args.target, []).append(row)
        args.out.write_text(json.dumps(stored, indent=1) + "\n")
    sys.exit(1 if "error" in row else 0)


if __name__ == "__main__":
    main()
