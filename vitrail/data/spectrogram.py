"""Log-mel spectrograms, on one thread: the power of each frame in bands that are evenly spaced on the mel scale.

The mel scale is HTK's, 2595 log10(1 + f / 700); the bands are triangles of height 1.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitrail.errors import SpecError

MAX_MELS = 1_024
LOWEST = 20.0  # Hz, as in Kaldi: below is no sound, but an offset of the microphone
MAX_PADDING = 8  # times the window to which frames are padded, so that each band has a frequency of its own
DYNAMIC_RANGE = 1e-8  # what is quieter than the loudest by more than this power is cut off (80 dB, as in Whisper)
BLOCK = 2_048  # frames transformed at once
TINY = 1e-30


class MelBank(NamedTuple):
    """The weight of each frequency in each band."""

    weights: Any
    """A sparse matrix of bands and frequencies."""
    fft_size: int


@cache
def mel_bank(rate: int, mels: int, window: int) -> MelBank:
    """The bands for frames of this many samples, zero-padded until no band is empty."""
    from scipy.sparse import csr_array

    shortest = 1 << max(0, window - 1).bit_length()
    padding = 1
    while padding <= MAX_PADDING:
        weights = triangles(rate, mels, shortest * padding)
        if weights.any(axis=1).all():
            return MelBank(csr_array(weights), shortest * padding)
        padding *= 2
    raise SpecError(
        "mels must leave each band a frequency of its own.",
        got=f"mels={mels}, a window of {window} samples.",
        hint="fewer mels, or a longer window.",
    )


def triangles(rate: int, mels: int, fft_size: int) -> NDArray[np.float32]:
    """The weights of the bands, from `LOWEST` to half the rate."""
    edges = to_hertz(np.linspace(to_mel(LOWEST), to_mel(rate / 2), mels + 2))
    frequencies = np.linspace(0.0, rate / 2, fft_size // 2 + 1)
    rise = (frequencies - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - frequencies) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0.0, np.minimum(rise, fall)).astype(np.float32)


def to_mel(hertz: float) -> float:
    """From Hz to mels."""
    return float(2595.0 * np.log10(1.0 + hertz / 700.0))


def to_hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    """From mels to Hz."""
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


def log_mel(waveform: NDArray[np.float32], bank: MelBank, *, window: int, hop: int) -> NDArray[np.float32]:
    """The spectrogram of a waveform as bands x (samples // hop) frames, with mean 0 and variance 1.

    Frame i is centred on the i-th hop; beyond the ends are zeros.
    """
    from scipy.fft import rfft

    num, before = len(waveform) // hop, (window - hop) // 2
    padded = np.zeros(before + len(waveform) + window, dtype=np.float32)
    padded[before : before + len(waveform)] = waveform / max(float(np.abs(waveform).max(initial=0.0)), TINY)
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop][:num]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)).astype(np.float32)
    mel = np.empty((bank.weights.shape[0], num), dtype=np.float32)
    for start in range(0, num, BLOCK):
        spectrum = rfft(frames[start : start + BLOCK] * hann, bank.fft_size, axis=1)
        # Sparse, and so without the threads of a matrix product.
        mel[:, start : start + BLOCK] = bank.weights @ np.square(np.abs(spectrum)).T
    logs = np.log(np.maximum(mel, max(float(mel.max(initial=0.0)) * DYNAMIC_RANGE, TINY)))
    return (logs - logs.mean()) / max(float(logs.std()), 1e-5)
