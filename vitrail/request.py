"""A request to train, checked before anything starts: data, settings, model, and what else a recipe needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from vitrail import plug
from vitrail.contract import Classifier
from vitrail.data.find import as_numbers, open_data
from vitrail.data.table import IMAGE, Source
from vitrail.data.unlabelled import open_unlabelled
from vitrail.errors import DataError, SpecError, VitrailError, WeightsError
from vitrail.inspection.adopt import adopt
from vitrail.run.open import open_model
from vitrail.training.recipe.image.pseudo import check_tables
from vitrail.training.settings import LENGTHS, CommonSettings
from vitrail.training.splits import Splits, fingerprint
from vitrail.training.task import Task
from vitrail.training.tensorboard import writer_class
from vitrail.training.view import View
from vitrail.training.world import World

RECIPES, KINDS = "vitrail.training.recipe", "vitrail.kind"
DEFAULT_MINUTES = 10.0
MODEL_PREFIX, PREPARE_PREFIX = "model.", "prepare."


class TrainRequest(NamedTuple):
    """A validated request to train."""

    kind: Any
    """The module of its kind, an entry of `vitrail/kind`."""
    source: Source
    settings: CommonSettings
    recipe: str
    new_model: Callable[..., Classifier]
    has_weights: bool
    can_choose_model: bool
    fields: dict[str, Any]
    """The request as stored in config.yaml."""
    teacher: Any = None
    unlabelled: Source | None = None

    def divide_minutes(self, num: int) -> TrainRequest:
        """Return the request with its minutes divided by `num`."""
        if self.settings.minutes is None:
            return self
        return self._replace(settings=self.settings.override({"minutes": self.settings.minutes / num}))

    def with_source(self, source: Source) -> TrainRequest:
        """Return the request for other data."""
        return self._replace(source=source, fields={**self.fields, "data_fingerprint": fingerprint(source)})

    def make_task(self, path: Path, splits: Splits, view: View, world: World, **fields: Any) -> Task:
        """Create the task for the recipe."""
        return Task(
            run=path,
            kind=self.kind,
            splits=splits,
            settings=self.settings,
            new_model=self.new_model,
            has_weights=self.has_weights,
            can_choose_model=self.can_choose_model,
            teacher=self.teacher,
            unlabelled=self.unlabelled,
            view=view,
            world=world,
            **fields,
        )


def parse_request(
    data: str | Path | Source,
    model: str | None,
    weights: str | Path | None,
    recipe: str,
    minutes: float | None,
    settings: Sequence[str],
    seed: int,
    data_dir: str | Path | None,
    target: str | None = None,
    *,
    teacher: str | Path | nn.Module | None = None,
    unlabelled: str | Path | Source | None = None,
) -> TrainRequest:
    """Validate a request."""
    parsed = parse_settings(recipe, settings, minutes=minutes, seed=seed, has_weights=weights is not None)
    module = plug.load(RECIPES, recipe)
    source = _open_source(data, parsed, getattr(module, "KIND", None), data_dir, target)
    if weights is None and getattr(module, "NEEDS_WEIGHTS", False):
        raise WeightsError(
            f"the recipe {recipe} needs pretrained weights.",
            hint="--weights with a file, a run or a Hugging Face Hub name; or --recipe scratch.",
        )
    opened_teacher = _open_teacher(teacher, recipe, needed=getattr(module, "NEEDS_TEACHER", False))
    more = _open_unlabelled(unlabelled, recipe, data_dir)
    model_overrides, prepare_overrides = (
        [word.removeprefix(prefix) for word in settings if word.startswith(prefix)]
        for prefix in (MODEL_PREFIX, PREPARE_PREFIX)
    )
    kind = plug.load(KINDS, getattr(module, "KIND", source.kind))
    if source.kind == "clips" and not hasattr(kind, "open_source"):
        plug.load(KINDS, source.kind).check_recipe(recipe, has_weights=weights is not None)
    if more is not None:
        check_tables(source, more)
    options = _prepare_options(kind, prepare_overrides)
    new_model = kind.model_factory(source, model, weights, model_overrides, parsed.seed, **options)
    if hasattr(kind, "check_request"):
        kind.check_request(parsed, new_model)
    if hasattr(module, "check_request"):
        module.check_request(parsed, new_model, source, opened_teacher)
    fields = {
        "data": source.origin if isinstance(data, Source) else str(data),
        "model": model,
        "weights": None if weights is None else str(weights),
        "recipe": recipe,
        "settings": parsed.model_dump(mode="json"),
        "model_settings": model_overrides,
        "data_fingerprint": fingerprint(source),
        **({"prepare_settings": prepare_overrides} if prepare_overrides else {}),
        **({} if target is None else {"target": target}),
        **({} if teacher is None else {"teacher": _name_teacher(teacher)}),
        **({} if more is None else {"unlabelled": more.origin, "unlabelled_fingerprint": fingerprint(more)}),
    }
    can_choose_model = model is None and not model_overrides
    has_weights = weights is not None
    return TrainRequest(
        kind, source, parsed, recipe, new_model, has_weights, can_choose_model, fields, opened_teacher, more
    )


def _prepare_options(kind: Any, overrides: list[str]) -> dict[str, Any]:
    """The overrides of preprocessing for a kind whose preprocessing is fitted to its data."""
    if overrides and not getattr(kind, "PREPARES", False):
        raise SpecError(
            "prepare.key=value is for sound and video.",
            got=f"{PREPARE_PREFIX}{overrides[0]}.",
            hint="model.image_size for the size of images.",
        )
    return {"prepare": overrides} if overrides else {}


def _name_teacher(teacher: str | Path | nn.Module) -> str:
    return type(teacher).__name__ if isinstance(teacher, nn.Module) else str(teacher)


def _open_teacher(teacher: str | Path | nn.Module | None, recipe: str, *, needed: bool) -> Any:
    """Open the teacher, for a recipe that has one."""
    if needed and teacher is None:
        raise WeightsError(f"the recipe {recipe} needs a teacher.", hint="--teacher with a run or a weight file.")
    if not needed and teacher is not None:
        raise WeightsError(
            f"the recipe {recipe} has no teacher.", got=f"--teacher {teacher}.", hint="--recipe distill."
        )
    if isinstance(teacher, nn.Module):
        return adopt(teacher)
    try:
        return None if teacher is None else open_model(teacher)
    except VitrailError as error:
        hint = "a run, an exported model or a weight file of one of the catalogue's models that knows these classes."
        raise WeightsError(f"the teacher cannot be opened: {error.wrong}", got=error.got, hint=hint) from None


def _open_unlabelled(data: str | Path | Source | None, recipe: str, data_dir: str | Path | None) -> Source | None:
    """Open the unlabelled data, for a recipe that needs it or can use it."""
    module = plug.load(RECIPES, recipe)
    needed = getattr(module, "NEEDS_UNLABELLED", False)
    if needed and data is None:
        raise DataError(
            f"the recipe {recipe} needs images without labels.", got="none.", hint="--unlabelled with a folder of them."
        )
    if data is not None and not needed and not getattr(module, "USES_UNLABELLED", False):
        raise DataError(
            f"the recipe {recipe} uses no unlabelled images.",
            got="--unlabelled.",
            hint="--recipe auto or noisy_student.",
        )
    try:
        return data if data is None or isinstance(data, Source) else open_unlabelled(data, data_dir=data_dir)
    except DataError as error:
        wrong = f"the unlabelled images cannot be opened: {error.wrong}"
        raise DataError(wrong, got=error.got or f"--unlabelled {data}.", hint=error.hint) from None


def _open_source(
    data: str | Path | Source,
    settings: CommonSettings,
    kind: str | None,
    data_dir: str | Path | None,
    target: str | None,
) -> Source:
    """Open the data as the recipe's kind does, or by what it looks like."""
    own = None if kind is None else getattr(plug.load(KINDS, kind), "open_source", None)
    if own is not None:
        if target is not None:
            raise DataError("--target names a number to predict from images.", got=f"--target {target}.")
        return data if isinstance(data, Source) else own(data, settings)
    open_images = open_data if kind is None else getattr(plug.load(KINDS, kind), "open_data", open_data)
    source = data if isinstance(data, Source) else open_images(data, data_dir=data_dir, target=target)
    if target is not None and source.modalities != IMAGE:
        raise DataError(
            "--target names a number to predict from images.", got=f"{source.modalities[0]}s.", hint="no --target."
        )
    return as_numbers(source) if target is not None and source.values is None else source


def parse_settings(
    recipe: str, overrides: Sequence[str], *, minutes: float | None, seed: int, has_weights: bool
) -> CommonSettings:
    """Apply `key=value` overrides to the recipe's settings; the default length is ten minutes."""
    module = plug.load(RECIPES, recipe)
    spec = module.spec(has_weights=has_weights) if hasattr(module, "spec") else module.Spec
    recipe_overrides = [word for word in overrides if not word.startswith((MODEL_PREFIX, PREPARE_PREFIX))]
    settings: CommonSettings = spec().override_words(recipe_overrides)
    fields: dict[str, Any] = {"seed": seed} if seed else {}
    if minutes is not None:
        fields["minutes"] = minutes
    settings = settings.override(fields)
    if all(getattr(settings, name, None) is None for name in LENGTHS):
        settings = settings.override({"minutes": DEFAULT_MINUTES})
    if getattr(settings, "tensorboard", False):
        writer_class()
    return settings


def make_splits(
    request: TrainRequest,
    view: View,
    world: World,
    decisions: dict[str, Any] | None = None,
    path: Path | None = None,
) -> Splits:
    """Make the splits; a recipe that cross-validates trains on all training data."""
    recipe = plug.load(RECIPES, request.recipe)
    return request.kind.make_splits(
        request.source,
        request.settings,
        view,
        world,
        allow_hold_out=not getattr(recipe, "CROSS_VALIDATES", False),
        check=getattr(recipe, "CHECKS_DATA", False),
        decisions=decisions,
        path=path,
    )
