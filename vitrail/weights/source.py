"""From a path or a name to tensors under native names: find the file, read it safely, recognise its format."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from vitrail import plug
from vitrail.data.exchange import from_hf, from_timm
from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError, WeightsError, brief
from vitrail.weights import hub, safe
from vitrail.weights.rules import State

FORMATS = "vitrail.weights.format"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+|\w+_\w+\.\w+")  # ORGANISATION/NAME, or timm's NAME.TAG
logger = logging.getLogger("vitrail")
MAX_CONFIG = 2**20  # bytes; the largest label tables of ImageNet-21k stay below


class Weights(NamedTuple):
    """Tensors under native names, the format they came in, and what the files beside them say."""

    state: State
    format: str
    facts: dict[str, Any]
    preprocess: Preprocess | None


def load_weights(source: str | Path) -> Weights:
    """Weights from a file, a folder or a name on the hub."""
    path = find_file(source)
    tensors = safe.read_tensors(path)
    for name in plug.entries(FORMATS):
        form = format_named(name)
        if form.recognise(tensors.keys()):
            folder = path if path.is_dir() else path.parent
            # Only some formats say more than the tensors themselves do.
            config = _config(folder / "config.json")
            facts = form.facts_from(config, tensors.keys()) if hasattr(form, "facts_from") else {}
            processor = _config(folder / "preprocessor_config.json") if name == "hf" else {}
            preprocess = _preprocess(config if name == "timm" else {}, processor, getattr(form, "PREPROCESS", None))
            try:
                return Weights(form.read(tensors), name, facts, preprocess)
            except (RuntimeError, IndexError, ValueError) as error:
                raise WeightsError(
                    f"{path.name} has tensors of other shapes than {name} has.", got=brief(error)
                ) from None
    shown = ", ".join(sorted(tensors)[:3])
    raise WeightsError(
        f"{path.name} is in no format that Vitrail knows.",
        got=f"{len(tensors)} tensors: {shown}.",
        hint=f"weights of a ViT, hybrid or BiT in the formats {', '.join(plug.entries(FORMATS))}.",
    )


def find_file(source: str | Path) -> Path:
    """The path that was given, or the file that the hub has under this name."""
    path = Path(source)
    if str(source) and path.exists():
        return path
    if isinstance(source, Path) or path.suffix in (*safe.KIND_OF_SUFFIX, ".json") or not HUB_NAME.fullmatch(source):
        raise WeightsError(
            f"there is no file {str(source)!r}.",
            got="a path that leads nowhere, and no name of the hub's.",
            hint="an existing file, or a name such as deit_tiny_patch16_224.fb_in1k or google/vit-base-patch16-224.",
        )
    return hub.fetch(source)


def format_named(name: str) -> ModuleType:
    """The module of a weight format."""
    return plug.load(FORMATS, name)


def _preprocess(config: dict[str, Any], processor: dict[str, Any], usual: dict[str, Any] | None) -> Preprocess | None:
    """How pictures are prepared for these weights, as far as the files beside them or the format itself tell."""
    cut = config.get("pretrained_cfg")
    try:
        if isinstance(cut, dict) and "mean" in cut:
            return from_timm(cut)
        if "image_mean" in processor:
            return from_hf(processor)
    except SpecError as error:
        logger.warning("how pictures are prepared is taken from the model's name: %s", error)
    return Preprocess.parse(usual) if usual else None


def _config(path: Path) -> dict[str, Any]:
    """The config.json beside a weight file; one that cannot be read says nothing, for it is not needed."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_CONFIG:
            return {}
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}
