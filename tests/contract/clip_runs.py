"""Runs on clips that take seconds, hardly trained: models of waveforms, of spectrograms and of videos."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.contract.small_clips import ramp_video, wav
from vitrail.verbs.train import train

RATE = 8_000
MODELS = {
    "waveform": "vit_mu_patch80_sound1600",
    "spectrogram": "vit_mu_patch8_mel16x16",
    "perceiver": "perceiver_mu_sound1600",
    "perceiver_patches": "perceiver_mu_patch16_sound1600",
    "video": "vit_mu_patch2x8_gap_video4x16",
    "perceiver_video": "perceiver_mu_sound1600",
    "perceiver_spectrogram": "perceiver_mu_sound1600",
}
WORDS = {
    "perceiver_video": (
        "model.image_size=[4,16,16]",
        "model.resolution=[4,16,16]",
        "model.input_name=video",
        "model.channels=3",
        "model.patch=[1,4,4]",
    ),
    "perceiver_spectrogram": ("model.image_size=[16,16]", "model.resolution=[16,16]", "model.patch=[1,4]"),
}
"""What changes in the specification of a name."""
GRIDS = {
    "waveform": (40,),
    "spectrogram": (2, 5),
    "perceiver": (3200,),
    "perceiver_patches": (200,),
    "video": (2, 2, 2),
    "perceiver_video": (4, 4, 4),
    "perceiver_spectrogram": (16, 4),
}
"""Of the clips below, which are 0.4 seconds long."""
CLASSES = ("high", "low")


def tone(hertz: float, *, seconds: float = 0.4, seed: int = 0) -> bytes:
    """A tone with some noise."""
    time = np.arange(round(RATE * seconds)) / RATE
    noise = np.random.default_rng(seed).normal(0.0, 0.02, len(time))
    return wav((0.5 * np.sin(2 * np.pi * hertz * time) + noise).astype(np.float32), RATE)


def write_clips(folder: Path, modality: str, *, num: int = 5) -> Path:
    """Folders of two classes: high and low tones; bright and dark videos."""
    for number in range(2 * num):
        label = CLASSES[number % 2]
        path = folder / modality / label / f"{number}.{'wav' if modality == 'sound' else 'mp4'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if modality == "sound":
            path.write_bytes(tone(1_500 if label == "high" else 300, seed=number))
        else:
            path.write_bytes(ramp_video(num_frames=8 + number, still=label == "high"))
    return folder / modality


def make_run(form: str, folder: Path) -> Path:
    """Train a model of size mu for two steps."""
    torch.set_num_threads(1)  # fixtures come before the one that sets it for each test
    data = write_clips(folder / form, "video" if form.endswith("video") else "sound")
    run = folder / form / "run"
    settings = ["steps=2", "batch_size=4", "compile=off", *WORDS.get(form, ())]
    train(data, model=MODELS[form], recipe="scratch", run=run, settings=settings)
    return run
