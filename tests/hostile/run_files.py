"""Run directories that a stranger could send: each function damages a copy of a tiny finished run.

A case is a function with the file that its message must name. Adding one is adding a function; `benchmarks/fuzz.py`
finds more. The sums of the run are removed first, so that bounds and schemas have to stand alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file, save_file

from vitrail.sums import SUMS

Damage = Callable[[Path], None]
CASES: dict[str, tuple[Damage, str]] = {}
CONFIG, RESULT, LABELS, CALIBRATION = "config.yaml", "result.json", "labels.json", "calibration.json"
DEEP = 100_000


def case(file: str) -> Callable[[Damage], Damage]:
    """Register a function that damages a run, and the file that the message names."""

    def register(damage: Damage) -> Damage:
        CASES[damage.__name__] = (damage, file)
        return damage

    return register


def without_sums(run: Path) -> Path:
    """Accept all files of a run as they are."""
    (run / SUMS).unlink(missing_ok=True)
    lines = (run / CONFIG).read_text().splitlines(keepends=True)
    (run / CONFIG).write_text("".join(line for line in lines if not line.startswith("# SHA-256")))
    return run


def set_config(run: Path, value: Any, *keys: str) -> None:
    """Change a field of config.yaml."""
    config = target = yaml.safe_load((run / CONFIG).read_text())
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = value
    (run / CONFIG).write_text(yaml.safe_dump(config))


def set_json(path: Path, value: Any, *keys: str) -> None:
    """Change a field of a JSON file."""
    document = target = json.loads(path.read_text())
    for key in keys[:-1]:
        target = target[key]
    target[keys[-1]] = value
    path.write_text(json.dumps(document))


@case(CONFIG)
def billion_laughs(run: Path) -> None:
    laughs = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
    (run / CONFIG).write_text(f"a0: &a0 [ha]\n{laughs}{(run / CONFIG).read_text()}")


@case(CONFIG)
def alias_of_itself(run: Path) -> None:
    (run / CONFIG).write_text(f"a: &a [*a]\n{(run / CONFIG).read_text()}")


@case(CONFIG)
def config_nested_deep(run: Path) -> None:
    (run / CONFIG).write_text("{request: " * 10_000)


@case(CONFIG)
def config_of_lists(run: Path) -> None:
    (run / CONFIG).write_text("- " * DEEP)


@case(CONFIG)
def config_too_large(run: Path) -> None:
    (run / CONFIG).write_text((run / CONFIG).read_text() + "# x\n" * 10**6)


@case(CONFIG)
def config_of_many_keys(run: Path) -> None:
    (run / CONFIG).write_text((run / CONFIG).read_text() + "".join(f"k{n}: 1\n" for n in range(60_000)))


@case(CONFIG)
def config_a_number(run: Path) -> None:
    (run / CONFIG).write_text("17\n")


@case(CONFIG)
def config_of_bytes(run: Path) -> None:
    (run / CONFIG).write_bytes(bytes(range(256)))


@case(CONFIG)
def config_with_a_date(run: Path) -> None:
    (run / CONFIG).write_text((run / CONFIG).read_text() + "masking: {a: 2020-01-01}\n")


@case(CONFIG)
def foreign_key(run: Path) -> None:
    set_config(run, 1, "surprise")


@case(CONFIG)
def request_a_list(run: Path) -> None:
    set_config(run, [1], "request")


@case(CONFIG)
def no_model(run: Path) -> None:
    config = yaml.safe_load((run / CONFIG).read_text())
    del config["model"]
    (run / CONFIG).write_text(yaml.safe_dump(config))


@case(CONFIG)
def kind_a_list(run: Path) -> None:
    set_config(run, ["classification"], "kind")


@case(CONFIG)
def family_of_a_path(run: Path) -> None:
    set_config(run, "../../os", "model", "family")


@case(CONFIG)
def depth_100_000(run: Path) -> None:
    set_config(run, 100_000, "model", "spec", "depth")


@case(CONFIG)
def one_block_more(run: Path) -> None:
    set_config(run, 3, "model", "spec", "depth")


@case(CONFIG)
def width_of_63_bits(run: Path) -> None:
    set_config(run, 2**63, "model", "spec", "width")


@case(CONFIG)
def width_of_a_million(run: Path) -> None:
    set_config(run, 2**20, "model", "spec", "width")


@case(CONFIG)
def hidden_of_two_to_the_18(run: Path) -> None:
    set_config(run, 2**18, "model", "spec", "hidden")


@case(CONFIG)
def image_of_a_million_pixels_a_side(run: Path) -> None:
    set_config(run, [10**6, 10**6], "model", "spec", "image_size")


@case(CONFIG)
def large_images_without_positions(run: Path) -> None:
    set_config(run, [16_384, 16_384], "model", "spec", "image_size")
    set_config(run, "sincos", "model", "spec", "position")


@case(CONFIG)
def negative_width(run: Path) -> None:
    set_config(run, -32, "model", "spec", "width")


@case(CONFIG)
def spec_of_text(run: Path) -> None:
    set_config(run, {"width": "32"}, "model", "spec")


@case(CONFIG)
def epsilon_not_a_number(run: Path) -> None:
    set_config(run, float("nan"), "model", "spec", "norm_eps")


@case(CONFIG)
def preprocessing_of_huge_size(run: Path) -> None:
    set_config(run, [10**6, 10**6], "prepare", "size")


@case(CONFIG)
def preprocessing_of_a_tiny_crop(run: Path) -> None:
    set_config(run, 1e-9, "prepare", "crop")


@case(CONFIG)
def preprocessing_of_another_size(run: Path) -> None:
    set_config(run, [12, 12], "prepare", "size")


@case(CONFIG)
def preprocessing_a_number(run: Path) -> None:
    set_config(run, 5, "prepare")


@case(CONFIG)
def preprocessing_of_nothing(run: Path) -> None:
    set_config(run, "nothing", "prepare", "name")


@case(RESULT)
def result_a_list(run: Path) -> None:
    (run / RESULT).write_text("[]")


@case(RESULT)
def result_a_number(run: Path) -> None:
    (run / RESULT).write_text("3")


@case(RESULT)
def result_a_string(run: Path) -> None:
    (run / RESULT).write_text('"done"')


@case(RESULT)
def result_nested_deep(run: Path) -> None:
    (run / RESULT).write_text("[" * DEEP)


@case(RESULT)
def result_cut(run: Path) -> None:
    (run / RESULT).write_text((run / RESULT).read_text()[:50])


@case(RESULT)
def val_a_number(run: Path) -> None:
    set_json(run / RESULT, 7, "val")


@case(RESULT)
def story_of_numbers(run: Path) -> None:
    set_json(run / RESULT, [1, None], "story")


@case(RESULT)
def steps_of_a_thousand_digits(run: Path) -> None:
    (run / RESULT).write_text((run / RESULT).read_text().replace('"steps": 4', f'"steps": {"9" * 1000}'))


@case(LABELS)
def labels_of_numbers(run: Path) -> None:
    (run / LABELS).write_text(json.dumps(list(range(10))))


@case(LABELS)
def labels_of_nulls(run: Path) -> None:
    (run / LABELS).write_text(json.dumps([None] * 10))


@case(LABELS)
def labels_of_lists(run: Path) -> None:
    (run / LABELS).write_text(json.dumps([[]] * 10))


@case(LABELS)
def labels_a_mapping(run: Path) -> None:
    (run / LABELS).write_text(json.dumps({str(n): n for n in range(10)}))


@case(LABELS)
def labels_nested_deep(run: Path) -> None:
    (run / LABELS).write_text("[" * DEEP + "]" * DEEP)


@case(LABELS)
def one_label_too_few(run: Path) -> None:
    (run / LABELS).write_text(json.dumps(list("012345678")))


@case(LABELS)
def labels_of_ten_megabytes(run: Path) -> None:
    (run / LABELS).write_text(json.dumps(["x" * 10**6] * 10))


@case(LABELS)
def labels_missing(run: Path) -> None:
    (run / LABELS).unlink()


@case(CALIBRATION)
def a_million_thresholds(run: Path) -> None:
    set_json(run / CALIBRATION, [0.5] * 10**6, "thresholds")


@case(CALIBRATION)
def many_thresholds(run: Path) -> None:
    set_json(run / CALIBRATION, [0.5] * 150_000, "thresholds")


@case(CALIBRATION)
def tiny_temperature(run: Path) -> None:
    set_json(run / CALIBRATION, 1e-300, "temperature")


@case(CALIBRATION)
def infinite_limit(run: Path) -> None:
    (run / CALIBRATION).write_text('{"limit": 1e999}')


@case(CALIBRATION)
def calibration_nested_deep(run: Path) -> None:
    (run / CALIBRATION).write_text('{"a": ' * DEEP)


@case(CALIBRATION)
def calibration_a_list(run: Path) -> None:
    (run / CALIBRATION).write_text("[1]")


@case("model.safetensors")
def weights_of_100_dimensions(run: Path) -> None:
    state = load_file(run / "model.safetensors")
    save_file({**state, "norm.bias": state["norm.bias"].reshape([1] * 99 + [-1])}, run / "model.safetensors")


@case(CONFIG)
def a_tensor_missing(run: Path) -> None:
    state = load_file(run / "model.safetensors")
    del state["norm.bias"]
    save_file(state, run / "model.safetensors")


@case("model.safetensors")
def weights_not_finite(run: Path) -> None:
    state = load_file(run / "model.safetensors")
    save_file({**state, "norm.bias": state["norm.bias"] * float("nan")}, run / "model.safetensors")


@case("model.safetensors")
def weights_with_a_deep_header(run: Path) -> None:
    header = b'{"a": ' * 50_000
    (run / "model.safetensors").write_bytes(np.uint64(len(header)).tobytes() + header)


GOLDEN: dict[str, Damage] = {}
"""Damage that only those notice who replay the golden samples: serve and export."""


def golden(damage: Damage) -> Damage:
    """Register a function that damages the golden samples."""
    GOLDEN[damage.__name__] = damage
    return damage


@golden
def no_golden_images(run: Path) -> None:
    whole = load_file(run / "golden.safetensors")
    empty = {name: whole[name][:0].contiguous() for name in ("pixels", "logits")}
    save_file({**whole, **empty}, run / "golden.safetensors")


@golden
def golden_of_eighth_precision(run: Path) -> None:
    whole = load_file(run / "golden.safetensors")
    save_file({**whole, "logits": whole["logits"].to(torch.float8_e4m3fn)}, run / "golden.safetensors")


@golden
def golden_not_finite(run: Path) -> None:
    whole = load_file(run / "golden.safetensors")
    save_file({**whole, "logits": whole["logits"] * float("nan")}, run / "golden.safetensors")


@golden
def golden_of_other_images(run: Path) -> None:
    whole = load_file(run / "golden.safetensors")
    save_file({**whole, "pixels": torch.zeros(8, 4, 4, 3, dtype=torch.uint8)}, run / "golden.safetensors")
