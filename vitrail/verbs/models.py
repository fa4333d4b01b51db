"""The catalogue with sizes and costs."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail import catalogue
from vitrail.catalogue import ModelInfo
from vitrail.errors import SpecError

PREFIX = "model."


def models(pattern: str = "", *, settings: Sequence[str] = ()) -> list[ModelInfo]:
    """Describe the models whose name contains `pattern`, or the one model that it names.

    `settings` are `key=value` overrides, as for `train`: `model.attention=local`.
    """
    for word in settings:
        if not word.startswith(PREFIX):
            raise SpecError(
                f"a setting of a model is written {PREFIX}KEY=VALUE.", got=f"{word!r}.", hint=f"{PREFIX}{word}."
            )
    words = [word.removeprefix(PREFIX) for word in settings]
    return [catalogue.describe(name, words) for name in catalogue.list_models(pattern) or [pattern]]
