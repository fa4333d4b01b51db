"""Every recipe and an export, killed at random times and started again: do they end as if they had not been disturbed?

    python benchmarks/kill_recipes.py benchmarks/kill-recipes.json --kills 300

Each kill -9 comes after a random part of the time that the undisturbed command took, so that it may meet the start,
the steps, a change of stage, an evaluation, or the files that are written at the end. Then the same command runs to its
end, and every file must have the same contents (weights, EMA, optimizer, metrics, predictions; without times). A killed
export must leave nothing at its place, or all of it. Finished rows of the document are not run again.

A probe's number format is measured when it starts, so it is set to float32 here, as `precision` is for the others.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.contract import aligned_tables, clip_runs, small_texts
from tests.contract.forked import bits
from tests.forge import Forge, command
from vitrail.benchmark.compare import hardware

KILLED = -signal.SIGKILL
FAST = ("batch_size=32", "precision=float32", "eval_every=4", "save_every=2", "workers=0")
IMAGES = ("--model", "vit_mu_patch4_8", *FAST)


def write_data(folder: Path) -> None:
    """Small data of every kind: digits with and without labels, tones, texts, and rows of images, sounds and words."""
    digits = load_digits()
    images, labels = (digits.images * 15).astype(np.uint8), digits.target
    parts = {"x_train": images[:160], "y_train": labels[:160], "x_test": images[160:220], "y_test": labels[160:220]}
    np.savez(folder / "few.npz", **parts)
    np.savez(folder / "validated.npz", **parts, x_val=images[1200:1500], y_val=labels[1200:1500])
    np.savez(folder / "others.npz", x=images[220:620], y=np.zeros(400, np.int64))
    clip_runs.write_clips(folder, "sound", num=12)
    small_texts.write_texts(folder / "texts")
    (folder / "aligned").mkdir()
    aligned_tables.write_aligned(folder / "aligned")


def commands(data: Path) -> dict[str, list[str]]:
    """The command of each row, but for `--run` or `--out`; `start` is what some of the others start from."""
    few, start = str(data / "few.npz"), str(data / "start")

    def image(recipe: str, *more: str, images: str = few, steps: int = 12) -> list[str]:
        return ["train", images, "--recipe", recipe, *IMAGES, f"steps={steps}", *more]

    found = {
        "auto": image("auto", "ema=0.9"),
        "scratch": image("scratch", "ema=0.9", "accumulate=2"),
        "sam": image("scratch", "sam=0.05"),
        "finetune": image("finetune", "--weights", start),
        "probe": ["train", few, "--recipe", "probe", "--weights", start, "workers=0"],
        "pretrain": image("pretrain", "ema=0.9"),
        "distill": image("distill", "--teacher", start, "augment.draws=2"),
        "noisy_student": image(
            *("noisy_student", "--unlabelled", str(data / "others.npz"), "confidence=0.3", "generations=2"),
            images=str(data / "validated.npz"),
            steps=120,
        ),
        "sound": ["train", str(data / "sound"), "--recipe", "scratch", "--model", "vit_mu_patch80_sound1600", *FAST],
    }
    found["sound"] += ["steps=12", "batch_size=8"]
    for recipe in small_texts.RECIPES:
        found[recipe] = without_run(small_texts.words_of(recipe, data / "texts", data, "steps=12"))
    found["align"] = without_run(aligned_tables.words_of(next((data / "aligned").glob("*.csv")), data, steps=12))
    found["export"] = ["export", start, "--format", "onnx", "--data", few]
    return found


def without_run(words: list[str]) -> list[str]:
    """A command without its `--run`."""
    place = words.index("--run")
    return [*words[:place], *words[place + 2 :]]


def contents(name: str, path: Path) -> dict[str, Any]:
    """The files that must be the same; of an export, the model, since the rest holds measured times: its names."""
    if name != "export":
        return bits(path)
    names = {str(file.relative_to(path)): b"" for file in path.rglob("*") if file.is_file()}
    return names | {"model.onnx": (path / "model.onnx").read_bytes() if "model.onnx" in names else b""}


def difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """The names of files that differ."""
    return ", ".join(sorted(each for each in found.keys() | expected if found.get(each) != expected.get(each)))


def in_float32() -> None:
    """Compute a probe's features in float32, whatever is faster."""
    from vitrail.training import throughput

    throughput.bfloat16_answers_faster = lambda *_args: False


def kill_command(forge: Forge, place: Path, name: str, words: list[str], num_kills: int) -> dict[str, Any]:
    """Run a command undisturbed, and then again and again with a kill on the way."""
    option, log, calm = "--out" if name == "export" else "--run", place / "log", place / f"{name}-calm"
    started = time.monotonic()
    assert forge.run(command, [*words, option, str(calm)], in_float32, log=log) == 0, log.read_text()
    seconds, expected = time.monotonic() - started, contents(name, calm)
    assert name != "noisy_student" or (calm / "stages" / "student-2").is_dir(), "kills shall meet a second generation"
    rng, kills, ended, failures = random.Random(name), 0, 0, []
    while kills < num_kills:
        disturbed = place / f"{name}-killed"
        code = KILLED
        for _ in range(rng.randint(1, 3)):  # kills of one run
            pid = forge.start(command, [*words, option, str(disturbed)], in_float32, log=log)
            time.sleep(rng.uniform(0.0, seconds))
            os.kill(pid, signal.SIGKILL)
            code = forge.wait(pid)
            kills, ended = kills + (code == KILLED), ended + (code == 0)
            if code not in (0, KILLED):
                failures.append(f"kill {kills}: exit {code}: {log.read_text()[-500:]}")
            if name == "export" and disturbed.exists() and contents(name, disturbed) != expected:
                failures.append(f"kill {kills}: half an export")
        again = [*words, option, str(disturbed)]
        if name == "export" and disturbed.exists():
            shutil.rmtree(disturbed)
        code = forge.run(command, again, in_float32, log=log)
        problem = log.read_text()[-500:] if code else difference(contents(name, disturbed), expected)
        failures += [f"kill {kills}: {problem}"] if problem else []
        for path in (disturbed, *place.glob(f".{disturbed.name}.*")):  # what killed exports were built in
            shutil.rmtree(path, ignore_errors=True)
        log.unlink()
    return {"kills": kills, "ended_before": ended, "seconds": round(seconds, 2), "failures": failures}


def main() -> None:
    """Run the missing rows and write one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kills", type=int, default=300, help="of all commands together")
    args = parser.parse_args()
    stored = json.loads(args.out.read_text()) if args.out.is_file() else {"rows": {}}
    rows, forge = stored["rows"], Forge()
    with tempfile.TemporaryDirectory(prefix="vitrail-kill-") as folder:
        place = Path(folder)
        write_data(place)
        start = ["train", str(place / "few.npz"), "--recipe", "scratch", *IMAGES, "steps=12", "--run"]
        assert forge.run(command, [*start, str(place / "start")], log=place / "log") == 0, (place / "log").read_text()
        jobs = commands(place)
        each = -(-args.kills // len(jobs))
        for name, words in jobs.items():
            if rows.get(name, {}).get("kills", 0) < each:
                rows[name] = kill_command(forge, place, name, words, each)
                print(name, rows[name], file=sys.stderr, flush=True)
            total = sum(row["kills"] for row in rows.values())
            document = {"hardware": hardware(), "kills": total, "rows": rows}
            args.out.write_text(json.dumps(document, indent=1) + "\n")
    forge.stop()


if __name__ == "__main__":
    main()
