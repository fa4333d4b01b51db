"""A language model of characters: Vitrail's recipe and nanoGPT's published CPU settings, on the same cores, in turns.

    python benchmarks/language.py input.txt --minutes 10 --seeds 3 > benchmarks/language-10.json
    python benchmarks/language.py input.txt --minutes 30 --one-core --work DIR --out benchmarks/language-30.json
    python benchmarks/language.py input.txt --generate > benchmarks/generate.json

The last tenth of the text is for validation. nanoGPT's settings for a CPU: 4 layers of width 128, 4 heads, context 64,
batches of 12, no dropout, AdamW with betas 0.9 and 0.99, a learning rate from 1e-3 to 1e-4; it reports 1.88 after 2,000
steps. Here it gets these 2,000 steps and, as `same time`, as many as fit into the minutes. It is written with PyTorch's
own transformer layers. Vitrail's minutes cover the whole command. `--generate` trains nothing: it times generation with
and without the cache of keys and values, in turns, for each size of model that the recipe chooses from, in processor
time of one thread.

Vitrail's loss is that of the best of about ten evaluations on the validation text, as nanoGPT's is; `last_loss` is that
of its last step. The peer is scored once, at its end, with its own context of 64.

A finished seed is kept in the file `--partial` and not run again. `--one-core` gives each run one core and processor
minutes, two runs side by side (side_by_side.py), and the peer its 2,000 steps only.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CONTEXT, WIDTH, DEPTH, HEADS, BATCH_SIZE, STEPS = 64, 128, 4, 4, 12, 2000
PEAK, FLOOR, WARMUP = 1e-3, 1e-4, 100
NUM_GENERATED, ROUNDS, VOCAB = 256, 9, 70


def by_vitrail(data: Path, minutes: float, seed: int, run: Path) -> dict[str, Any]:
    """Run `vitrail train` in its own process."""
    command = [sys.executable, "-m", "vitrail", "train", str(data), "--recipe", "language", "--minutes", str(minutes)]
    command += ["--seed", str(seed), "--run", str(run), "--json", "--quiet"]
    started = time.monotonic()
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603
    config = (run / "config.yaml").read_text()
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        **row_of(result),
        "last_loss": last.get("val_loss"),
        "seconds": round(time.monotonic() - started, 1),
        "bfloat16": "bfloat16: true" in config,
    }


def new_gpt(vocab: int) -> Any:
    """nanoGPT's model for a CPU, of PyTorch's own layers."""
    import torch
    from torch import nn

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocab, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, bias=False
            )
            self.layers = nn.TransformerEncoder(layer, DEPTH, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))
            for name, parameter in self.named_parameters():
                if parameter.ndim > 1:  # smaller at the end of each residual branch
                    last = name.endswith(("out_proj.weight", "linear2.weight"))
                    nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * DEPTH) if last else 0.02)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            num = x.shape[1]
            h = self.tokens(x) + self.places.weight[:num]
            return self.layers(h, mask=self.mask[:num, :num], is_causal=True) @ self.tokens.weight.T

    return Gpt()


def peer(data: Path, minutes: float | None, seed: int) -> dict[str, Any]:
    """Train nanoGPT's model in this process, for some minutes or for its 2,000 steps."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    text = data.read_text(encoding="utf-8")
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([letters[letter] for letter in text])
    train, val = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]

    model = new_gpt(len(letters))
    matrices = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in model.parameters() if each.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, betas=(0.9, 0.99))
    started, step = time.monotonic(), 0
    while True:
        done = step / STEPS if minutes is None else (time.monotonic() - started) / (60 * minutes)
        if done >= 1.0:
            break
        rate = (
            PEAK * (step + 1) / WARMUP
            if step < WARMUP
            else FLOOR + (PEAK - FLOOR) * 0.5 * (1 + math.cos(math.pi * done))
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(train) - CONTEXT - 1, (BATCH_SIZE,))
        windows = torch.stack([train[start : start + CONTEXT + 1] for start in starts])
        loss = nn.functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
    seconds = time.monotonic() - started
    model.eval()
    num = (len(val) - 1) // CONTEXT
    rows = torch.stack([val[CONTEXT * row : CONTEXT * row + CONTEXT + 1] for row in range(num)])
    with torch.inference_mode():
        losses = [
            nn.functional.cross_entropy(
                model(part[:, :-1]).flatten(0, 1), part[:, 1:].flatten(), reduction="sum"
            ).item()
            for part in rows.split(256)
        ]
    return {"loss": sum(losses) / (num * CONTEXT), "steps": step, "seconds": round(seconds, 1)}


def by_peer(data: Path, minutes: float | None, seed: int) -> dict[str, Any]:
    """Train nanoGPT's model in its own process."""
    command = [sys.executable, __file__, str(data), "--peer", str(seed), "--minutes", str(minutes or 0)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)  # noqa: S603


def on_one_core(data: Path, minutes: float, seeds: int, work: Path, out: Path) -> None:
    """Vitrail and nanoGPT's 2,000 steps, each on one core, side by side; writes one JSON document."""
    from side_by_side import Results, mean_and_interval, run_all

    results = Results(out, {"data": data.name, "minutes": minutes, "cores": 1})
    jobs = {}
    for seed in range(seeds):
        words = ["train", str(data), "--recipe", "language", "--minutes", str(minutes), "--seed", str(seed)]
        jobs[f"vitrail-{seed}"] = [[*words, "--run", str(work / f"language-{seed}"), "--json", "--quiet"]]
        jobs[f"nanoGPT, 2,000 steps-{seed}"] = [[__file__, str(data), "--peer", str(seed), "--minutes", "0"]]
    rows = run_all(
        jobs, results, read=lambda documents: documents[0] if "loss" in documents[0] else row_of(documents[0])
    )
    names = dict.fromkeys(name.rpartition("-")[0] for name in rows)
    results.write(
        {name: mean_and_interval([rows[f"{name}-{seed}"]["loss"] for seed in range(seeds)]) for name in names}
    )


def row_of(result: dict[str, Any]) -> dict[str, Any]:
    """What a run of Vitrail says of its language model."""
    keys = ("steps", "seconds_by_phase", "samples_per_second")
    return {**{key: result["val"][key] for key in ("loss", "interval")}, **{key: result.get(key) for key in keys}}


def time_generation(fields: dict[str, Any]) -> dict[str, Any]:
    """Processor seconds on one thread to generate 256 characters, with and without the cache, in turns.

    Weights do not matter for that.
    """
    import torch

    from vitrail.model.language import LanguageModel, Spec
    from vitrail.run.sampling import sample_tokens

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = LanguageModel(Spec(**fields, vocab=VOCAB, context=NUM_GENERATED)).eval()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    texts = {}
    for _ in range(ROUNDS):
        for cached in (True, False):
            started = time.process_time()
            texts[cached] = list(
                sample_tokens(model, [0], num=NUM_GENERATED - 1, temperature=0.8, seed=1, cached=cached)
            )
            seconds[cached].append(time.process_time() - started)
    ratios = sorted(plain / fast for fast, plain in zip(seconds[True], seconds[False], strict=True))
    return {
        "model": {key: fields[key] for key in ("width", "depth", "heads")},
        "characters": NUM_GENERATED,
        "same_tokens": texts[True] == texts[False],
        "cached_seconds": statistics.median(seconds[True]),
        "plain_seconds": statistics.median(seconds[False]),
        "ratio": statistics.median(ratios),
        "spread": [ratios[0], ratios[-1]],
        "cache_bytes": 2 * fields["depth"] * NUM_GENERATED * fields["width"] * 4,
    }


def main() -> None:
    """Run the benchmark and print one JSON document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--generate", action="store_true")
    parser.add_argument("--partial", type=Path, help="where finished rows are kept")
    parser.add_argument("--one-core", action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--peer", type=int)
    args = parser.parse_args()
    if args.peer is not None:
        print(json.dumps(peer(args.data, args.minutes or None, args.peer)))
        return
    if args.one_core:
        on_one_core(args.data, args.minutes, args.seeds, args.work, args.out)
        return
    import torch

    from vitrail.benchmark.compare import hardware

    kernels = {"kernels": torch.backends.cpu.get_cpu_capability()}
    kernels |= {key: os.environ[key] for key in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY") if key in os.environ}
    document: dict[str, Any] = {"data": args.data.name, "minutes": args.minutes, "hardware": {**hardware(), **kernels}}
    if args.generate:
        from vitrail.training.recipe.language import SIZES

        print(json.dumps({**document, "generation": [time_generation(size.fields) for size in SIZES]}, indent=1))
        return
    kept = args.partial is not None and args.partial.is_file()
    rows: list[dict[str, Any]] = json.loads(args.partial.read_text()) if kept else []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.seeds):
            contenders = {
                "vitrail": lambda seed=seed: by_vitrail(args.data, args.minutes, seed, Path(folder) / str(seed)),
                "nanoGPT, 2,000 steps": lambda seed=seed: by_peer(args.data, None, seed),
                "nanoGPT, same time": lambda seed=seed: by_peer(args.data, args.minutes, seed),
            }
            for name in sorted(contenders, reverse=bool(seed % 2)):
                key = {"name": name, "seed": seed, "data": args.data.name, "minutes": args.minutes}
                if any({**each, **key} == each for each in rows):
                    continue
                rows.append({**key, **contenders[name]()})
                print(rows[-1], file=sys.stderr, flush=True)
                if args.partial is not None:
                    args.partial.write_text(json.dumps(rows))
        document["rows"] = rows
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
