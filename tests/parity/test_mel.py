"""The log-mel spectrogram against transformers' filters, and against its definition written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from transformers.audio_utils import mel_filter_bank

from vitrail.data.spectrogram import LOWEST, log_mel, mel_bank, triangles


@pytest.mark.parametrize(("rate", "mels", "fft_size"), [(16_000, 40, 512), (8_000, 64, 256), (44_100, 128, 2_048)])
def test_filters(rate: int, mels: int, fft_size: int) -> None:
    theirs = mel_filter_bank(
        num_frequency_bins=fft_size // 2 + 1,
        num_mel_filters=mels,
        min_frequency=LOWEST,
        max_frequency=rate / 2,
        sampling_rate=rate,
        norm=None,
        mel_scale="htk",
    )
    assert np.allclose(triangles(rate, mels, fft_size), theirs.T, atol=1e-6)


def written_out(waveform: np.ndarray, rate: int, mels: int, window: int, hop: int, fft_size: int) -> np.ndarray:
    """Sums over samples and frequencies, as in a textbook."""
    mel = lambda hertz: 2595 * math.log10(1 + hertz / 700)  # noqa: E731
    edges = [
        700 * (10 ** ((mel(20) + (mel(rate / 2) - mel(20)) * step / (mels + 1)) / 2595) - 1) for step in range(mels + 2)
    ]
    result = np.zeros((mels, len(waveform) // hop))
    times = np.arange(window)
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * times / window)
    for frame in range(result.shape[1]):
        first = frame * hop - (window - hop) // 2
        samples = np.array([waveform[t] if 0 <= t < len(waveform) else 0.0 for t in first + times]) * hann
        for number in range(fft_size // 2 + 1):
            power = abs(np.sum(samples * np.exp(-2j * np.pi * number * times / fft_size))) ** 2
            hertz = number * rate / fft_size
            for band in range(mels):
                low, centre, high = edges[band : band + 3]
                if low < hertz < high:
                    rises = (hertz - low) / (centre - low)
                    result[band, frame] += power * min(rises, (high - hertz) / (high - centre))
    logs = np.log(np.maximum(result, result.max() * 1e-8))
    return (logs - logs.mean()) / logs.std()


def test_the_spectrogram() -> None:
    waveform = np.random.default_rng(0).normal(size=1_000).astype(np.float32)
    waveform[300:500] = 0.0
    ours = log_mel(waveform, mel_bank(8_000, 20, 100), window=100, hop=40)
    assert mel_bank(8_000, 20, 100).fft_size == 128
    assert ours.shape == (20, 25)
    assert np.allclose(ours, written_out(waveform, 8_000, 20, 100, 40, 128), atol=1e-3)


def test_frames_are_padded_until_no_band_is_empty() -> None:
    assert not triangles(16_000, 128, 512).any(axis=1).all()
    bank = mel_bank(16_000, 128, 400)
    assert bank.fft_size == 1_024
    assert (bank.weights.sum(axis=1) > 0).all()
