"""Does any file make Vitrail crash, hang, write or run something, or answer wrongly in silence?

    python benchmarks/fuzz.py benchmarks/fuzz.json --images 1000 --weights 1000 --runs 1000 --flips 1000

Mutates images, weight files, data of every layout, clips, and the files of a finished run and of its exports without
their sums; sends mutated requests to a running service; and flips single bits of a finished and of a half-finished run
with their sums. Each seed is one file or request; the counts go on where the JSON document says they stopped, so that a
long campaign is many short ones. Findings keep their seed: `--seed KIND NUMBER` repeats one. An outcome is `ok`
(decoded, or answered), `refused` (one VitrailError, a status of 400 or more, or a closed connection), `same` (opens,
with the same predictions), `other` (opens, with others: for a mutation without sums that is its right, for a flipped
bit a finding), or a finding. A worker process that hangs or dies is replaced. fuzz_guided.py mutates by coverage.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fuzz_inputs

sys.path.insert(0, str(Path(__file__).parent.parent))
KINDS = ("images", "weights", "data", "runs", "exports", "requests", "flips", "half_flips")
MAX_SECONDS = 10.0  # of one file; the limits for a user, on an idle machine, are shorter
BATCH = 50
INTERESTING = (b"[", b"{", b'"', b"-1", b"1e999", b"NaN", b"9" * 30, b"null", b"true", b"&a ", b"*a", b"\0", b"\xff")
FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "socket.bind"}
SUMS = "SHA256SUMS"
STATUS = ("ok", "refused", "same", "other")


def mutate(content: bytes, rng: random.Random, pieces: tuple[bytes, ...] = INTERESTING) -> bytes:
    """A few structured changes: bits, bytes, tokens, cuts, repeats."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        place, way = rng.randrange(len(data) + 1), rng.randrange(6)
        if way == 0 and place < len(data):
            data[place] ^= 1 << rng.randrange(8)
        elif way == 1:
            data[place : place + rng.randrange(8)] = rng.choice(pieces)
        elif way == 2:
            data[place:place] = rng.choice(pieces) * rng.choice((1, 1, 100, 5000))
        elif way == 3:
            del data[place : place + rng.randrange(64)]
        elif way == 4:
            start = rng.randrange(len(data) + 1)
            data[place:place] = data[start : start + rng.randrange(256)]
        elif way == 5 and rng.random() < 0.2:
            del data[place:]
    return bytes(data)


class Bench:
    """A worker's finished run, its half-finished one, and how they answer undamaged."""

    def __init__(self, root: Path, place: Path) -> None:
        import torch

        import vitrail
        from tests.hostile.run_files import without_sums

        torch.set_num_threads(1)
        self.root, self.place, self.vitrail, self.torch = root, place, vitrail, torch
        self.samples = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        self.bare = without_sums(Path(shutil.copytree(root / "run", place / "bare")))
        self.expected = self.answer(root / "run")
        self.state = vitrail.load(root / "run").state_dict()
        self.resumed = self.resume(root / "half")
        self.exported = {path: self.answer(path) for path in sorted((root / "exports").iterdir())}
        self.inputs = fuzz_inputs.ImageInputs(mutate)
        self.data_inputs = fuzz_inputs.DataInputs(place, mutate)
        self.service: fuzz_inputs.RequestInputs | None = None
        self.decode_guarded()
        sys.addaudithook(self.audit)
        self.forbidden: list[str] = []

    def decode_guarded(self) -> None:
        """Start the process that decodes costly images, which no file may cause later."""
        from vitrail.data.guard import run_guarded

        content = self.inputs.originals["png"]
        run_guarded({"task": "decode", "name": "", "mode": "rgb", "background": (0, 0, 0), "targets": []}, content)

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Note what no file may cause: other programs, connections, files written outside."""
        writes = event == "open" and isinstance(args[1], str) and any(mode in args[1] for mode in "wax+")
        outside = writes and isinstance(args[0], str) and not args[0].startswith((str(self.place), "/dev/", "/tmp"))  # noqa: S108
        guard = event == "subprocess.Popen" and "vitrail.data.guard_process" in args[1]  # in place of one that ended
        if (event in FORBIDDEN and not guard) or outside:
            self.forbidden.append(f"{event} {args[:1]}")

    def answer(self, run: Path) -> Any:
        """Labels, probabilities and verdicts for a few images."""
        from vitrail.engine.exported import ExportedModel
        from vitrail.run.open import open_verified

        model = open_verified(run)
        pixels = isinstance(model, ExportedModel)
        with self.torch.inference_mode():
            logits = model((255 * self.samples).to(self.torch.uint8) if pixels else self.samples)
        calibration = model.calibration
        return model.labels, calibration.probabilities(logits).tolist(), calibration.unknown(logits).tolist()

    def resume(self, run: Path) -> Any:
        """What a half-finished run would resume from, and with which settings."""
        from vitrail.run import checkpoint, directory
        from vitrail.training.run_progress import RunProgress

        config = directory.stored_config(run)
        check: Callable[[Any], Any] = lambda found: RunProgress.from_state(found.state)  # noqa: E731
        for path in sorted((run / "checkpoints").glob("step-*"), reverse=True):
            found = checkpoint.load(run / "checkpoints", path.name, check=check)
            if found is not None:
                tensors = {
                    kind: {k: v.numpy().tobytes() for k, v in part.items()} for kind, part in found.parts.items()
                }
                return config, path.name, found.state, tensors
        return config, None, None, None

    def attempt(self, kind: str, seed: int) -> tuple[str, str]:
        """One seed: its outcome, and the file that was changed."""
        rng, self.forbidden[:] = random.Random(f"{kind} {seed}"), []
        outcome, file = getattr(self, kind)(rng)
        return (f"forbidden: {self.forbidden[0]}" if self.forbidden else outcome), file

    def outcome(self, start: Callable[[], Any], expected: Any) -> str:
        from vitrail.errors import VitrailError

        try:
            return "same" if start() == expected else "other"
        except VitrailError:
            return "refused"
        except Exception as error:  # noqa: BLE001 - a finding
            return f"{type(error).__name__}: {str(error)[:200]}"

    def weights(self, rng: random.Random) -> tuple[str, str]:
        """A mutated weight file of each kind."""
        from vitrail.weights import tensor_files

        suffix = rng.choice((".safetensors", ".npz", ".pth"))
        original, path = self.place / f"original{suffix}", self.place / f"w{suffix}"
        if not original.exists():
            tensor_files.write_tensors(self.state, original)
        path.write_bytes(mutate(original.read_bytes(), rng))
        return self.outcome(lambda: len(tensor_files.read_tensors(path)) >= 0, True), suffix

    def damaged(
        self, run: Path, rng: random.Random, change: Callable[[bytes, random.Random], bytes]
    ) -> tuple[Path, str]:
        target = Path(shutil.copytree(run, self.place / "target"))
        files = sorted(path for path in target.rglob("*") if path.is_file() and path.stat().st_size)
        path = rng.choice(files)
        path.write_bytes(change(path.read_bytes(), rng))
        return target, str(path.relative_to(target))

    def runs(self, rng: random.Random) -> tuple[str, str]:
        """A mutated file of a run without sums, loaded and opened as serve does."""
        target, file = self.damaged(self.bare, rng, mutate)
        return self.done(self.outcome(lambda: self.answer(target), self.expected)), file

    def exports(self, rng: random.Random) -> tuple[str, str]:
        """A mutated file of an export without sums, opened as serve does."""
        export = rng.choice(list(self.exported))
        target, file = self.damaged(export, rng, mutate)
        return self.done(self.outcome(lambda: self.answer(target), self.exported[export])), f"{export.name}/{file}"

    def images(self, rng: random.Random) -> tuple[str, str]:
        """A mutated image."""
        start, file = self.inputs.attempt(rng)
        outcome = self.outcome(start, True)
        return ("ok" if outcome == "same" else outcome), file

    def data(self, rng: random.Random) -> tuple[str, str]:
        """A mutated file of a data set, or a mutated clip."""
        start, file = self.data_inputs.attempt(rng)
        outcome = self.outcome(start, True)
        return ("ok" if outcome == "same" else outcome), file

    def requests(self, rng: random.Random) -> tuple[str, str]:
        """A mutated request to a service, which starts with the first one."""
        if self.service is None:
            self.service = fuzz_inputs.RequestInputs(self.root / "run", mutate)
        found = self.service.attempt(rng)
        self.forbidden.clear()  # connecting is the client's part
        return found

    def flips(self, rng: random.Random) -> tuple[str, str]:
        """One bit of a finished run."""
        target, file = self.damaged(self.root / "run", rng, flip)
        outcome = self.outcome(lambda: self.answer(target), self.expected)
        return self.done("other: a wrong answer in silence" if outcome == "other" else outcome), file

    def half_flips(self, rng: random.Random) -> tuple[str, str]:
        """One bit of a half-finished run: it resumes as before, or from the checkpoint before, or is refused."""
        target, file = self.damaged(self.root / "half", rng, flip)

        def resume() -> Any:
            config, name, state, tensors = self.resume(target)
            if name != self.resumed[1]:  # skipped; the one before is as intact as in the original
                return self.resumed if config == self.resumed[0] else config
            return config, name, state, tensors

        outcome = self.outcome(resume, self.resumed)
        return self.done("other: another state in silence" if outcome == "other" else outcome), file

    def done(self, outcome: str) -> str:
        shutil.rmtree(self.place / "target")
        return outcome


def flip(content: bytes, rng: random.Random) -> bytes:
    """Change a single bit."""
    data, place = bytearray(content), rng.randrange(8 * len(content))
    data[place // 8] ^= 1 << place % 8
    return bytes(data)


def work(pipe: Connection, root: str) -> None:
    """A worker: seeds in, outcomes out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with tempfile.TemporaryDirectory(prefix="vitrail-fuzz-") as folder:
        bench = Bench(Path(root), Path(folder))
        pipe.send("ready")
        while (message := pipe.recv()) is not None:
            started = time.monotonic()
            outcome, file = bench.attempt(*message)
            pipe.send((outcome, file, time.monotonic() - started))
        if bench.service is not None:
            bench.service.service.stop()


class Worker:
    """A worker process that is replaced when it hangs or dies."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.start()

    def start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, other = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(other, str(self.root)), daemon=True)
        self.process.start()
        other.close()
        assert self.pipe.recv() == "ready"

    def attempt(self, kind: str, seed: int) -> tuple[str, str, float]:
        try:
            self.pipe.send((kind, seed))
            if self.pipe.poll(MAX_SECONDS):
                return self.pipe.recv()
            problem = f"hang: over {MAX_SECONDS:g} s"
        except (EOFError, OSError):
            problem = "crash: the process died"
        self.process.kill()
        self.process.join()
        self.start()
        return problem, "?", MAX_SECONDS


def make_runs(root: Path) -> None:
    """A finished run on a few digits, and the same one before its end."""
    import numpy as np
    from sklearn.datasets import load_digits

    import vitrail

    digits = load_digits()
    images, labels = (digits.images[:200] * 15).astype(np.uint8), digits.target[:200]
    parts = {"train": slice(None, 160), "test": slice(160, None)}
    arrays = {
        f"{name}_{part}": array[rows] for part, rows in parts.items() for name, array in (("x", images), ("y", labels))
    }
    np.savez(root / "digits.npz", **arrays)
    settings = ("steps=4", "eval_every=2", "batch_size=32", "precision=float32", "cache_gb=0.0", "workers=0")
    vitrail.train(
        root / "digits.npz",
        recipe="scratch",
        model="vit_mu_patch4_8",
        run=root / "run",
        settings=settings,
        report=False,
    )
    for name in ("onnx", "openvino", "pt2"):
        vitrail.export(root / "run", format=name, data=root / "digits.npz", out=root / "exports" / name, seconds=0.05)
        (root / "exports" / name / SUMS).unlink()
    half = Path(shutil.copytree(root / "run", root / "half"))
    for path in half.iterdir():
        if path.is_file() and path.name not in ("config.yaml", "metrics.jsonl", "timing.jsonl"):
            path.unlink()


def campaign(worker: Worker, kind: str, goal: int, report: dict[str, Any], out: Path) -> None:
    """Go on with one kind of file until its goal, and write the report now and then."""
    entry = report.setdefault(kind, {"done": 0, "outcomes": {}, "by_file": {}, "findings": [], "slowest": 0.0})
    for seed in range(entry["done"], goal):
        outcome, file, seconds = worker.attempt(kind, seed)
        name = outcome if outcome in STATUS else "finding"
        entry["outcomes"] = dict(Counter(entry["outcomes"]) + Counter([name]))
        by_file = entry["by_file"].setdefault(file if "step-" not in file else f"checkpoint/{Path(file).name}", {})
        by_file[name] = by_file.get(name, 0) + 1
        entry["slowest"], entry["done"] = max(entry["slowest"], round(seconds, 3)), seed + 1
        if name == "finding":
            entry["findings"].append({"seed": seed, "file": file, "outcome": outcome})
        if not entry["done"] % BATCH or entry["done"] == goal:
            out.write_text(json.dumps(report, indent=1) + "\n")
            print(kind, entry["done"], entry["outcomes"], file=sys.stderr, flush=True)


def main() -> None:
    """Continue the campaign in a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for kind in KINDS:
        parser.add_argument(f"--{kind.replace('_', '-')}", type=int, default=0, help="seeds in all")
    parser.add_argument("--seed", nargs=2, help="repeat one: KIND NUMBER")
    options = parser.parse_args()
    report = json.loads(options.out.read_text()) if options.out.is_file() else {}
    with tempfile.TemporaryDirectory(prefix="vitrail-fuzz-") as folder:
        make_runs(Path(folder))
        worker = Worker(Path(folder))
        if options.seed:
            print(worker.attempt(options.seed[0], int(options.seed[1])))
        for kind in KINDS:
            campaign(worker, kind, getattr(options, kind), report, options.out)
        worker.pipe.send(None)
        worker.process.join()


if __name__ == "__main__":
    main()
