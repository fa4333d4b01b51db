"""Creates the model that aligns the modalities of a source: a small tower for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from vitrail import catalogue, matching
from vitrail.about import About
from vitrail.contract import Classifier
from vitrail.data.aligned import TEXT, AlignedTable, as_part, part_name
from vitrail.data.name_column import NameColumn
from vitrail.data.preparation import InputPreprocess
from vitrail.data.table import IMAGE, Item, Source, Table
from vitrail.errors import SpecError, WeightsError
from vitrail.model.vatt import Spec, Vatt
from vitrail.run.artefact import is_run
from vitrail.training.recipe.clip.models import fit_preprocess, measure_clips
from vitrail.training.recipe.image.candidates import list_candidates
from vitrail.training.recipe.image.models import model_of_run
from vitrail.weights.source import load_weights

SIZES = {"mu": (32, 2, 2, 128), "nano": (128, 4, 4, 256), "tiny": (192, 12, 3, 768)}
"""Width, depth, heads and hidden width of the tower of text: those of a ViT, so that they can share their blocks."""
CLIPS = ("sound", "video")
PREFIX = "vatt_"
DEFAULT = "vatt_nano"


def make_aligned_models(
    source: Source,
    model: str | None,
    weights: str | Path | None,
    overrides: Sequence[str],
    seed: int,
    prepare: Sequence[str] = (),
) -> Callable[..., Vatt]:
    """Return a function that creates the model; `weights` are those of its image tower.

    `model` is a size, such as vatt_nano; `overrides` change the specification, such as shared=true.
    """
    assert isinstance(source, AlignedTable)
    size = (model or DEFAULT).removeprefix(PREFIX)
    if size not in SIZES:
        raise SpecError(
            f"there is no model {model} for several modalities.",
            got=f"{model}.",
            hint=f"{', '.join(map(PREFIX.__add__, SIZES))}.",
        )
    _check_prepare(source, prepare)
    towers = {name: _new_tower(source, name, size, weights, prepare) for name in source.modalities if name != TEXT}
    if weights is not None and "image" not in towers:
        raise WeightsError("there is no image tower to load weights into.", got=f"{', '.join(source.modalities)}.")
    inputs = {name: _preprocess_of(tower) for name, tower in towers.items()}

    def new_model(*, vocab: int = 300, pad: int = 0, context: int = 32) -> Vatt:
        torch.manual_seed(seed)
        width, depth, heads, hidden = SIZES[size]
        text = {
            "vocab": vocab, "pad": pad, "context": context, "width": width, "depth": depth, "heads": heads,
            "hidden": hidden, "position": "learned",
        }  # fmt: skip
        specs = [
            {"name": name, "family": "vit", "spec": tower.spec.model_dump(mode="json")}
            for name, tower in towers.items()
        ]
        if TEXT in source.modalities:
            specs.append({"name": TEXT, "family": "language", "spec": text})
        spec = Spec.parse({"towers": specs})
        created = Vatt(spec.override_words(overrides))
        if weights is not None:
            created.towers["image"].load_state_dict(towers["image"].state_dict())
        created.about = About(kind="alignment", name=PREFIX + size, inputs=inputs)
        return created

    new_model()  # so that errors in the model are raised before anything starts
    return new_model


def _check_prepare(source: AlignedTable, words: Sequence[str]) -> None:
    """Refuse a setting of preprocessing that does not say of which clips, or of clips that there are none of."""
    clips = [name for name in source.modalities if name in CLIPS]
    wrong = next((word for word in words if word.partition(".")[0] not in clips), None)
    if wrong is not None:
        raise SpecError(
            "a setting of preprocessing names the clips that it is for.",
            got=f"prepare.{wrong}.",
            hint=" or ".join(f"prepare.{name}.rate" for name in clips) + "." if clips else "data with sound or video.",
        )


def _new_tower(
    source: AlignedTable, name: str, size: str, weights: str | Path | None, prepare: Sequence[str]
) -> Classifier:
    """The backbone of one modality, with its preprocessing fitted to the data."""
    if name == "image" and weights is not None:
        return _load_image_tower(weights)
    part = one_modality(source, name)
    candidate = list_candidates(part)[0].name.replace("_nano_", f"_{size}_")
    if name == "image":
        return catalogue.create_model(candidate, num_classes=0)
    words = [word.removeprefix(f"{name}.") for word in prepare if word.startswith(f"{name}.")]
    spec = catalogue.spec_named(candidate)
    fitted = fit_preprocess(spec, measure_clips(part), words, sized=False)
    tower = catalogue.create_model(candidate, num_classes=0, image_size=fitted.size)
    tower.describe(preprocess=fitted)
    return tower


def _load_image_tower(weights: str | Path) -> Classifier:
    """The backbone of a run on images, or of a weight file."""
    fields: dict[str, Any] = {}
    if is_run(weights):
        name, fields = model_of_run(Path(weights))
    else:
        name = matching.only_name(str(weights), load_weights(weights), hint="a weight file of one model.")
    tower = catalogue.create_model(name, weights=weights, **{**fields, "num_classes": 0})
    if tower.TAKES != IMAGE:
        raise WeightsError(
            f"{weights} is not a model of images.", got=f"one that takes {' and '.join(tower.TAKES)}.", hint="another."
        )
    return tower


def _preprocess_of(tower: Classifier) -> InputPreprocess:
    assert tower.about.preprocess is not None
    return tower.about.preprocess


def one_modality(source: AlignedTable, name: str) -> Table:
    """The source as one of a single modality."""

    def content(index: int) -> Any:
        item = Item(index, source.names[index], (), lambda: source.content(index), source.stamp)
        return as_part(item, name).content()

    fields = {key: getattr(source, key) for key in ("origin", "classes", "labels", "splits", "root")}
    names = NameColumn(part_name(each, name) for each in source.names)
    return Table(**fields, names=names, content=content, modalities=(name,))
