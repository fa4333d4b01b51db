"""Files with random bytes changed are read or refused with one of our errors; nothing else is raised."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitrail.data.decode import decode_image
from vitrail.errors import DataError, WeightsError
from vitrail.weights.tensor_files import read_tensors, write_tensors


def _weights() -> dict[str, bytes]:
    tensors = {"patch_embed.proj.weight": torch.randn(4, 3, 2, 2), "b": torch.arange(5.0), "c": torch.zeros(200)}
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        for suffix in (".safetensors", ".npz", ".pth"):
            write_tensors(tensors, Path(folder) / f"w{suffix}")
            files[f"w{suffix}"] = (Path(folder) / f"w{suffix}").read_bytes()
    packed, old = io.BytesIO(), io.BytesIO()
    np.savez_compressed(packed, **{key: tensor.numpy() for key, tensor in tensors.items()})
    torch.save(tensors, old, _use_new_zipfile_serialization=False)
    return {**files, "packed.npz": packed.getvalue(), "old.pth": old.getvalue()}


def _images() -> dict[str, bytes]:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (24, 31, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    files = {}
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP"):
        buffer = io.BytesIO()
        image.save(buffer, kind, **({"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "TIFF") else {}))
        files[kind] = buffer.getvalue()
    return files


WEIGHTS, IMAGES = _weights(), _images()
changes = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6)


def changed(data: bytes, where: list[tuple[float, int]]) -> bytes:
    result = bytearray(data)
    for position, value in where:
        result[int(position * len(result))] = value
    return bytes(result)


@pytest.mark.parametrize("name", WEIGHTS)
@settings(max_examples=150, deadline=None)
@given(where=changes)
def test_weights(name: str, where: list[tuple[float, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns about duplicate names and the like
        path = Path(folder) / name
        path.write_bytes(changed(WEIGHTS[name], where))
        with contextlib.suppress(WeightsError):
            assert read_tensors(path)


@pytest.mark.parametrize("kind", IMAGES)
@settings(max_examples=150, deadline=None)
@given(where=changes)
def test_images(kind: str, where: list[tuple[float, int]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about damaged tags
        with contextlib.suppress(DataError):
            assert decode_image(changed(IMAGES[kind], where), name="fuzzed").shape[2] == 3
