"""Oxford Pets by words: breeds that training never saw, chosen among by their names.

    python benchmarks/zero_shot_pets.py pets.zip --weights model.safetensors --work DIR --out benchmarks/zero-shot.json

Images and the names of their breeds are aligned; the image tower starts from DeiT-Ti and stays as it is. Seven breeds,
others for each seed, are held out with all their images. The model then chooses among the seven names for each of their
images (chance is 1 in 7), and among the 30 trained names for test images of those. Every run has the same processor
minutes on one core (side_by_side.py).
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from side_by_side import COMMON, Results, mean_and_interval, new_parser, run_all

NUM_HELD_OUT = 7


def write_images(source: Path, folder: Path, seed: int) -> tuple[Path, Path]:
    """Write the breeds to train on, with their test images, and those that are held out."""
    seen, unseen = folder / f"seen-{seed}", folder / f"unseen-{seed}"
    if (folder / f"ready-{seed}").is_file():
        return seen, unseen
    with zipfile.ZipFile(source) as archive:
        names = [name for name in archive.namelist() if name.lower().endswith(".jpg")]
        breeds = sorted({name.split("/")[-2] for name in names})
        held_out = set(np.random.default_rng(seed).permutation(breeds)[:NUM_HELD_OUT].tolist())
        for name in names:
            split, breed, file = name.split("/")[-3:]
            words = breed.replace("_", " ").lower()
            place = (unseen / words / file) if breed in held_out else (seen / split / words / file)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(archive.read(name))
    (folder / f"ready-{seed}").touch()
    return seen, unseen


def score(run: str, images: str) -> None:
    """Choose among the names of the class folders for each of their images; print how often it is right."""
    from vitrail.metric.interval import wilson_interval
    from vitrail.verbs.predict import predict_words

    folder = Path(images)
    labels = sorted(path.name for path in folder.iterdir())
    answers = predict_words(run, [images], labels)
    right = [each.prediction.label == Path(each.path).parent.name for each in answers if each.prediction is not None]
    low, high = wilson_interval(sum(right), len(right))
    print(json.dumps({"top1": sum(right) / len(right), "n": len(right), "interval": [low, high], "labels": labels}))


def read(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The recall of the run, and both choices."""
    trained, unseen, seen = documents
    return {"recall": trained["test"], "steps": trained["steps"], "unseen": unseen, "seen": seen}


def main() -> None:
    """Run what is missing and write one JSON document."""
    if sys.argv[1] == "score":
        score(*sys.argv[2:])
        return
    parser = new_parser(minutes=6.0)
    parser.add_argument("--weights", required=True)
    args = parser.parse_args()
    results = Results(args.out, {"minutes": args.minutes, "cores": 1, "held_out": NUM_HELD_OUT})
    jobs = {}
    for seed in range(args.seeds):
        seen, unseen = write_images(args.data, args.work, seed)
        run = str(args.work / f"run-{seed}")
        train = ["train", str(seen), "--recipe", "align", "--weights", args.weights, "--minutes", str(args.minutes)]
        train += ["--seed", str(seed), "--run", run, *COMMON, "locked=image", "tokenizer=words"]
        scores = [[__file__, "score", run, str(folder)] for folder in (unseen, seen / "test")]
        jobs[str(seed)] = [train, *scores]
    rows = run_all(jobs, results, read=read)
    results.write(
        {name: mean_and_interval([row[name]["top1"] for row in rows.values()]) for name in ("unseen", "seen")}
    )


if __name__ == "__main__":
    main()
