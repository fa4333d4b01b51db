"""DeiT-Ti with its real weights on 1,000 real pictures: the labels that timm gives, through our own decoding."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.parity.conftest import timm

BATCH_SIZE = 50
EVERY = 5  # timm, which takes as long as the evaluation, classifies every fifth image


@pytest.fixture(scope="session")
def pictures(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("imagenet")
    with zipfile.ZipFile(data_dir / "imagenet" / "imagenet_val_1000_short256.zip") as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.data
def test_evaluate(pictures: Path, deit_tiny: Path, data_dir: Path) -> None:
    command = [sys.executable, "-m", "vitrail", "evaluate", "deit_tiny_patch16_224", str(pictures)]
    command += ["--weights", str(deit_tiny), "--real", str(data_dir / "imagenet" / "real.json")]
    run = subprocess.run([*command, "--json", "--predictions"], capture_output=True, text=True, check=True)
    result = json.loads(run.stdout)
    assert result["n"] == 1000
    assert abs(result["top1"] - 0.696) <= 0.003
    assert abs(result["top5"] - 0.901) <= 0.003
    assert result["interval"][0] < result["top1"] < result["interval"][1]
    assert 0.77 < result["real_top1"] < 0.81
    assert 0 < result["ece"] < 0.2

    model = timm.create_model("deit_tiny_patch16_224", checkpoint_path=str(deit_tiny)).eval()
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))
    checked = result["predictions"][::EVERY]
    theirs: list[int] = []
    for start in range(0, len(checked), BATCH_SIZE):
        paths = [pictures / path for path, _ in checked[start : start + BATCH_SIZE]]
        batch = torch.stack([transform(Image.open(path).convert("RGB")) for path in paths])
        with torch.inference_mode():
            theirs += model(batch).argmax(1).tolist()
    assert len(theirs) == 200
    assert sum(label == their_label for (_, label), their_label in zip(checked, theirs, strict=True)) >= 198
