"""Creates the model that a run on clips asks for, and fits its preprocessing to the clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail import catalogue, plug
from vitrail.contract import Classifier, ImageSpec
from vitrail.data.preparation import InputPreprocess
from vitrail.data.prepare.sound import SoundPreprocess
from vitrail.data.sound import sound_info
from vitrail.data.table import Source, Table
from vitrail.data.video import video_info
from vitrail.errors import DataError, SpecError, WeightsError
from vitrail.run.artefact import is_run, open_run, read_spec, stored_preprocess
from vitrail.spec import Spec

NUM_MEASURED = 64  # clips, to learn how long they are
LONG_SHARE = 0.95  # of the clips are no longer than the model's input
MAX_SOUND_RATE = 16_000  # samples per second; speech has little above half of it
MAX_SECONDS = {"sound": 10.0, "video": 60.0}
FRAME_RATES = (0.5, 30.0)


def make_clip_models(
    source: Source,
    model: str | None,
    weights: str | Path | None,
    overrides: Sequence[str],
    seed: int,
    prepare: Sequence[str] = (),
) -> Callable[..., Classifier]:
    """Return a function that creates the model; `prepare` are `key=value` overrides of its preprocessing.

    Without a name, it is inferred from the weights, a run on clips, or from the data. The length of its input is that
    of the clips, but for a few long ones.
    """
    stored: dict[str, Any] = {}
    preprocess: InputPreprocess | None = None
    if weights is not None:
        _keep_input(overrides, prepare)
        model, stored, preprocess = _model_of_run(weights, model, source)
    elif model is None:
        model = plug.load("vitrail.training.recipe", "scratch").suggest(source)
    default_name = str(model)
    spec = catalogue.spec_named(default_name).override_words(overrides)
    if spec.takes != source.modalities:
        raise SpecError(
            f"{default_name} is not a model of {source.modalities[0]}.",
            got=f"a model that takes {' and '.join(spec.takes)}.",
            hint=f"{plug.load('vitrail.training.recipe', 'scratch').suggest(source)}.",
        )
    fields = stored | {
        key: getattr(spec, key) for key in (word.partition("=")[0].partition(".")[0] for word in overrides)
    }
    measured = None if preprocess is not None else measure_clips(source)

    def new_model(*, name: str = default_name, **more: Any) -> Classifier:
        torch.manual_seed(seed)
        own = catalogue.spec_named(name).override({**fields, **more})
        fitted = preprocess or fit_preprocess(own, measured, prepare, sized="image_size" in fields)
        created = catalogue.create_model(name, weights=weights, **{**fields, **more, "image_size": fitted.size})
        created.describe(preprocess=fitted)
        return created

    new_model(num_classes=max(1, source.num_outputs))  # so that errors in the model are raised before anything starts
    return new_model


def _keep_input(overrides: Sequence[str], prepare: Sequence[str]) -> None:
    """Refuse to change the input of a model that starts from a run."""
    changed = [*(f"prepare.{word}" for word in prepare)]
    changed += [f"model.{word}" for word in overrides if word.partition("=")[0] == "image_size"]
    if changed:
        raise SpecError(
            "a model of clips that starts from a run keeps its preprocessing.",
            got=f"{changed[0]}.",
            hint="the command without, or --recipe scratch.",
        )


def measure_clips(source: Source) -> tuple[float, float]:
    """The most common rate of some clips, and the seconds that nearly all of them fit into; unreadable ones are left
    to training, which skips or reports them.
    """
    assert isinstance(source, Table)
    rates, seconds, problem = [], [], None
    for index in sorted({int(row) for row in np.linspace(0, len(source) - 1, NUM_MEASURED)}):
        item = source[index]
        try:
            rate, length = _measure(item.content(), item.name, source.modalities[0])
        except DataError as error:
            problem = error
            continue
        rates.append(rate)
        seconds.append(length)
    if not seconds:
        raise problem or DataError("there are no clips.", got=source.origin)
    values, counts = np.unique(rates, return_counts=True)
    return float(values[counts.argmax()]), float(np.quantile(seconds, LONG_SHARE))


def _measure(content: Any, name: str, modality: str) -> tuple[float, float]:
    if modality == "video":
        video = video_info(content, name=name)
        return video.rate, video.seconds
    sound = sound_info(content, name=name)
    return sound.rate, sound.num_samples / sound.rate


def fit_preprocess(
    spec: ImageSpec, measured: tuple[float, float] | None, words: Sequence[str], *, sized: bool
) -> InputPreprocess:
    """The preprocessing for a model and the clips that were measured: the rate of most, as long as nearly all.

    The length is rounded up to whole patches. With `sized`, the size of the model's input stays.
    """
    modality, size = spec.takes[0], spec.image_size
    default: Any = plug.load(catalogue.PREPARATIONS, modality).Spec.of_size(size)
    assert measured is not None
    rate, seconds = measured
    seconds = min(seconds, MAX_SECONDS[modality])
    if modality == "video":
        low, high = FRAME_RATES
        fitted: Spec = default.override({"rate": float(min(max(size[0] / max(seconds, 1e-3), low), high))})
        return fitted.override_words(words)  # type: ignore[return-value]
    sound: SoundPreprocess = default.override({"rate": int(min(rate, MAX_SOUND_RATE))}).override_words(words)
    if not any(word.startswith("seconds=") for word in words):
        sound = sound.with_size(size) if sized else sound.override({"seconds": seconds})
    return sound.whole_cells(spec.cell)


def _model_of_run(
    weights: str | Path, model: str | None, source: Source
) -> tuple[str, dict[str, Any], InputPreprocess]:
    """The name, the changed fields and the preprocessing of the run that a model starts from."""
    path = Path(weights)
    if not is_run(path):
        raise WeightsError(
            f"clips can start from a run on {source.modalities[0]} only.",
            got=f"{weights}.",
            hint="the directory of a run.",
        )
    config, _ = open_run(path)
    spec, name = read_spec(path, config), str(config["model"].get("name", ""))
    if getattr(spec, "takes", ()) != source.modalities or not name:
        raise WeightsError(
            f"{path} is not a run on {source.modalities[0]}.", got=f"a run of the kind {config.get('kind')}."
        )
    named = catalogue.spec_named(model or name)
    changed = {
        key: value
        for key, value in spec
        if key != "num_classes" and key in type(named).model_fields and value != getattr(named, key)
    }
    return model or name, changed, stored_preprocess(config, path)
