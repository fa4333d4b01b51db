"""Load weights from a path or a name: find the file, read it safely, recognise its format, rename the tensors."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from vitrail import documents, plug
from vitrail.data.exchange import from_hf, from_timm
from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError, WeightsError, brief
from vitrail.weights import hub, tensor_files
from vitrail.weights.rules import State

FORMATS = "vitrail.weights.format"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+|\w+_\w+\.\w+")  # ORGANISATION/NAME, or timm's NAME.TAG
logger = logging.getLogger("vitrail")
MAX_CONFIG = 2**20  # bytes; even the label tables of ImageNet-21k are smaller


class Weights(NamedTuple):
    """Tensors under native names, their original format, and what the config files next to them say."""

    state: State
    format: str
    spec_fields: dict[str, Any]
    preprocess: Preprocess | None


def load_weights(source: str | Path) -> Weights:
    """Weights from a file, a folder or a name on the hub."""
    path = find_file(source)
    tensors = tensor_files.read_tensors(path)
    for name in plug.entries(FORMATS):
        weight_format = get_format(name)
        if weight_format.recognise(tensors.keys()):
            folder = path if path.is_dir() else path.parent
            # Only some formats say more than the tensors themselves do.
            config = _read_config(folder / "config.json")
            infer_fields = getattr(weight_format, "infer_fields", None)
            fields = infer_fields(config, tensors.keys()) if infer_fields else {}
            processor = _read_config(folder / "preprocessor_config.json") if name == "hf" else {}
            default = getattr(weight_format, "PREPROCESS", None)
            preprocess = _find_preprocess(config if name == "timm" else {}, processor, default)
            try:
                return Weights(weight_format.read(tensors), name, fields, preprocess)
            except (RuntimeError, IndexError, ValueError) as error:
                raise WeightsError(
                    f"{path.name} has tensors of the wrong shapes for {name}.", got=brief(error)
                ) from None
    shown = ", ".join(sorted(tensors)[:3])
    raise WeightsError(
        f"{path.name} is in a format that Vitrail does not know.",
        got=f"{len(tensors)} tensors: {shown}.",
        hint=f"weights of a ViT, hybrid or BiT in one of the formats {', '.join(plug.entries(FORMATS))}.",
    )


def find_file(source: str | Path) -> Path:
    """The path itself if it exists, else the file of that name on the hub."""
    path = Path(source)
    if str(source) and path.exists():
        return path
    if (
        isinstance(source, Path)
        or path.suffix in (*tensor_files.KIND_OF_SUFFIX, ".json")
        or not HUB_NAME.fullmatch(source)
    ):
        raise WeightsError(
            f"there is no file {str(source)!r}.",
            got="a path that does not exist and is not a name on the hub.",
            hint="an existing file, or a name such as deit_tiny_patch16_224.fb_in1k or google/vit-base-patch16-224.",
        )
    return hub.fetch(source)


def get_format(name: str) -> ModuleType:
    """The module of a weight format."""
    return plug.load(FORMATS, name)


def _find_preprocess(
    config: dict[str, Any], processor: dict[str, Any], default: dict[str, Any] | None
) -> Preprocess | None:
    """The preprocessing for these weights: from the config files, else the format's default."""
    pretrained = config.get("pretrained_cfg")
    try:
        if isinstance(pretrained, dict) and "mean" in pretrained:
            return from_timm(pretrained)
        if "image_mean" in processor:
            return from_hf(processor)
    except SpecError as error:
        logger.warning("preprocessing is taken from the model's name: %s", error)
    return Preprocess.parse(default) if default else None


def _read_config(path: Path) -> dict[str, Any]:
    """A JSON file next to the weights; empty if it cannot be read, because it is optional."""
    try:
        config = documents.parse_json(documents.read_bytes(path, max_bytes=MAX_CONFIG)) if path.is_file() else {}
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
