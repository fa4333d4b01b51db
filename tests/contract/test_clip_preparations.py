"""Preparing sound and video: inputs of the stated size, random in training by their generator alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.small_clips import grey_of, noise_wav, ramp_video, wav
from tests.contract.small_images import table_of
from vitrail.data.loader import Loader
from vitrail.data.media import Clip
from vitrail.data.prepare.sound import SoundPreparation, SoundPreprocess
from vitrail.data.prepare.video import RandomCrop, VideoPreparation, VideoPreprocess
from vitrail.data.table import Table
from vitrail.errors import DataError, SpecError

RATE = 16_000
WAVEFORM, SPECTROGRAM = SoundPreprocess(seconds=0.5), SoundPreprocess(seconds=0.5, mels=32)
RAMP = ramp_video(num_frames=50, size=(40, 60))


def sounds(num: int = 6, *, broken: int = -1) -> Table:
    clips = [b"nothing" if number == broken else noise_wav(number) for number in range(num)]
    return replace(table_of([0, 1, 2] * (num // 3)), content=clips.__getitem__)


def varied(prepare: Any, content: bytes, seed: int) -> np.ndarray:
    return prepare.vary(Clip(content, "clip"), np.random.default_rng(seed))


@pytest.mark.parametrize(
    ("preprocess", "size"),
    [
        (SoundPreprocess(), (16_000,)),
        (SoundPreprocess(rate=8_000, seconds=0.25), (2_000,)),
        (SoundPreprocess(mels=40), (40, 100)),
        (SoundPreprocess(rate=44_100, seconds=0.333, mels=64, window=0.02, hop=0.02), (64, 16)),
        (SoundPreprocess(mels=128, seconds=0.01), (128, 1)),
    ],
)
def test_sound_sizes(preprocess: SoundPreprocess, size: tuple[int, ...]) -> None:
    assert (preprocess.modality, preprocess.channels, preprocess.size) == ("sound", 1, size)
    batch = preprocess.normalise(np.stack([preprocess.read(noise_wav(number)) for number in range(2)]))
    assert batch.shape == preprocess.empty_batch(2).shape == (2, 1, *size)
    assert torch.isfinite(batch).all()
    assert SoundPreprocess.parse_yaml(preprocess.to_yaml()) == preprocess


def test_sound_is_normalised() -> None:
    quiet = wav(np.random.default_rng(0).normal(0, 0.01, RATE), RATE, subtype="FLOAT")
    assert WAVEFORM.normalise(WAVEFORM.read(quiet)[None]).square().mean() == pytest.approx(1.0, abs=1e-4)
    spectrogram = SPECTROGRAM.normalise(SPECTROGRAM.read(quiet)[None])
    assert spectrogram.mean() == pytest.approx(0.0, abs=1e-5)
    assert spectrogram.std(correction=0) == pytest.approx(1.0, abs=1e-4)
    loud = SPECTROGRAM.normalise(10 * SPECTROGRAM.read(quiet)[None])
    assert torch.allclose(spectrogram, loud, atol=1e-4), "whatever the level"
    for preprocess in (WAVEFORM, SPECTROGRAM):
        assert torch.isfinite(preprocess.normalise(np.zeros((1, 8_000), dtype=np.float32))).all()


@pytest.mark.parametrize("preprocess", [WAVEFORM, SPECTROGRAM])
@pytest.mark.parametrize("seconds", [0.2, 0.5, 3.0])
def test_sound_varies_by_its_generator(preprocess: SoundPreprocess, seconds: float) -> None:
    prepare = SoundPreparation(preprocess=preprocess, training=True)
    clip = noise_wav(0, seconds=seconds)
    first, again, other = (varied(prepare, clip, seed) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.shape == (1, *preprocess.size)


def test_a_short_sound_is_placed_anywhere() -> None:
    prepare = SoundPreparation(preprocess=WAVEFORM, training=True)
    clip = noise_wav(0, seconds=0.1)
    starts = [int(np.flatnonzero(varied(prepare, clip, seed)[0])[0]) for seed in range(30)]
    assert min(starts) < 1_500
    assert max(starts) > 5_000
    lengths = {int(np.count_nonzero(varied(prepare, clip, seed))) for seed in range(30)}
    assert min(lengths) > 1_590, "all of it"


def test_training_finds_sound_among_silence() -> None:
    samples = np.zeros(10 * RATE)
    samples[:4_000] = np.random.default_rng(0).uniform(-1, 1, 4_000)
    prepare = SoundPreparation(preprocess=WAVEFORM, training=True)
    assert all(varied(prepare, wav(samples, RATE), seed).any() for seed in range(10))


def test_gains_and_masks() -> None:
    waveforms = [varied(SoundPreparation(preprocess=WAVEFORM, training=True), noise_wav(0), seed) for seed in range(40)]
    levels = 20 * np.log10([np.sqrt(np.mean(np.square(each))) for each in waveforms])
    assert -6.01 < levels.min() < -4
    assert 4 < levels.max() < 6.01
    inputs = [
        varied(SoundPreparation(preprocess=SPECTROGRAM, training=True), noise_wav(0), seed)[0] for seed in range(40)
    ]
    bands = [int((each == 0).all(axis=1).sum()) for each in inputs]
    frames = [int((each == 0).all(axis=0).sum()) for each in inputs]
    assert max(bands) == 6, "a fifth of 32"
    assert max(frames) == 10, "a fifth of 50"
    assert min(bands) == min(frames) == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hop": 0.05, "mels": 8}, r"hop must be at least one sample, and at most window and seconds"),
        ({"mels": 1_024, "window": 0.011}, r"mels must leave each band a frequency of its own"),
        ({"seconds": 0.00001}, r"rate times seconds must be at least one sample"),
        ({"seconds": 601.0}, r"seconds"),
        ({"rate": 200_000}, r"rate"),
    ],
)
def test_sound_specs_are_checked(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SoundPreprocess.parse(fields)


def test_video_size_has_three_numbers() -> None:
    with pytest.raises(SpecError, match="size must be frames, rows and columns"):
        VideoPreprocess.parse({"size": [64, 64]})


def test_video_inputs() -> None:
    preprocess = VideoPreprocess(size=(4, 16, 24), rate=5.0)
    frames = preprocess.read(RAMP)
    assert frames.shape == (4, 16, 24, 3)
    batch = preprocess.normalise(np.stack([frames, frames]))
    assert batch.shape == preprocess.empty_batch(2).shape == (2, 3, 4, 16, 24)
    expected = (np.array([grey_of(number) for number in (22, 24, 26, 28)]) / 255 - 0.5) / 0.5
    assert np.allclose(batch[0].mean(dim=(0, 2, 3)), expected, atol=0.02)
    image = preprocess.frame.normalise(frames)
    assert torch.equal(batch[1].transpose(0, 1), image), "each frame like an image"
    assert VideoPreprocess.parse_yaml(preprocess.to_yaml()) == preprocess
    smaller = VideoPreparation(preprocess=VideoPreprocess()).reduced(0.6, (4, 8, 8))
    assert smaller.preprocess.size == (8, 32, 32)


def test_all_frames_have_the_same_crop_and_flip() -> None:
    """A still video stays one, whatever the crop."""
    still = ramp_video(num_frames=30, size=(40, 60), still=True)
    prepare = VideoPreparation(preprocess=VideoPreprocess(size=(4, 16, 16)), training=True)
    firsts = []
    for seed in range(8):
        frames = varied(prepare, still, seed)
        assert np.abs(frames.astype(int) - frames[:1]).max() < 12
        firsts.append(frames[0].astype(int))
    flips = {bool(first[:, :8].mean() > first[:, 8:].mean()) for first in firsts}
    assert flips == {True, False}
    assert len({first.tobytes() for first in firsts}) == 8
    assert np.array_equal(varied(prepare, still, 3), varied(prepare, still, 3))


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (40, 60)])
def test_crops_fit_into_any_frame(shape: tuple[int, int]) -> None:
    for seed in range(20):
        crop = RandomCrop.draw(np.random.default_rng(seed)).apply(np.zeros((*shape, 3), dtype=np.uint8))
        assert 1 <= crop.shape[0] <= shape[0]
        assert 1 <= crop.shape[1] <= shape[1]
        if shape == (40, 60):
            assert 0.45 < crop.shape[0] * crop.shape[1] / 2_400 <= 1


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_sound(workers: int) -> None:
    prepare = SoundPreparation(preprocess=SPECTROGRAM, training=True, mixup=0.4)
    batch = next(Loader(source=sounds(), prepare=prepare, batch_size=6, workers=workers).epoch(0))
    assert batch.fields["sound"].shape == (6, 1, 32, 50)
    assert batch.fields["label"].shape == (6, 3)
    assert torch.allclose(batch.fields["label"].sum(dim=1), torch.ones(6))
    assert 0 < batch.fields["label"][0, 0] < 1
    again = next(Loader(source=sounds(), prepare=prepare, batch_size=6, workers=0).epoch(0))
    assert torch.equal(batch.fields["sound"], again.fields["sound"]), "for any number of workers"


@pytest.mark.parametrize("training", [True, False])
def test_an_unreadable_clip_is_named_or_skipped(training: bool) -> None:
    prepare = SoundPreparation(preprocess=WAVEFORM, training=training)
    with pytest.raises(DataError, match="002 is not a sound that Vitrail can read"):
        list(Loader(source=sounds(broken=2), prepare=prepare, batch_size=6).epoch(0))
    loader = Loader(source=sounds(broken=2), prepare=prepare, batch_size=6, policy="skip")
    assert [len(batch.names) for batch in loader.epoch(0)] == [5]
    assert [finding.path for finding in loader.skipped] == ["002"]


def test_batches_of_video() -> None:
    source = replace(table_of([0, 1, 0, 1]), content=lambda _: RAMP)
    prepare = VideoPreparation(preprocess=VideoPreprocess(size=(4, 16, 16)), training=True, mixup=0.4)
    batch = next(Loader(source=source, prepare=prepare, batch_size=4).epoch(0))
    assert batch.fields["video"].shape == (4, 3, 4, 16, 16)
    assert batch.fields["label"].shape == (4, 2)
    assert VideoPreparation(preprocess=VideoPreprocess(), mixup=0.4).group == 1, "evaluation does not mix"
