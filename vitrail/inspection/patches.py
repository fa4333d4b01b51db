"""How a model cuts an image into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail import catalogue
from vitrail.data.decode import Pixels, read_file
from vitrail.data.table import IMAGE
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, InspectionError, RunError
from vitrail.model import perceiver
from vitrail.run.artefact import is_run, kind_of, load
from vitrail.run.text_model import TEXT_KINDS

REGISTER = "register"


class Patches(NamedTuple):
    """An image as a model sees it, and the grid by which it is cut."""

    image: str
    model: str
    pixels: Pixels
    """The image at the model's size."""
    grid: tuple[int, int]
    patch: tuple[int, int]
    """Rows and columns of pixels that one token covers."""
    channels: int
    prefix: tuple[str, ...]
    """Tokens that stand before those of the image."""
    cut: bool
    """Whether pixels are cut as they are; otherwise convolutions come first, and a token stands for their outputs."""
    embedded: bool
    """Whether a patch is projected linearly; a Perceiver's latents read its pixels as they are."""

    @property
    def noun(self) -> str:
        """What the parts of the image are called."""
        if not self.cut:
            return "cells"
        return "pixels" if self.patch == (1, 1) else "patches"

    @property
    def parts(self) -> str:
        """The grid in words: 14 x 14 = 196 patches of 16 x 16 pixels."""
        product = f"{self.grid[0]} x {self.grid[1]} = {self.num_patches:,} {self.noun}"
        return product if self.noun == "pixels" else f"{product} of {self.patch[0]} x {self.patch[1]} pixels"

    @property
    def num_numbers(self) -> int:
        """The numbers in a patch."""
        return self.patch[0] * self.patch[1] * self.channels

    @property
    def num_patches(self) -> int:
        """The number of tokens with a place in the image."""
        return self.grid[0] * self.grid[1]

    @property
    def num_tokens(self) -> int:
        """The number of all tokens."""
        return len(self.prefix) + self.num_patches

    @property
    def prefix_groups(self) -> list[str]:
        """The tokens before those of the image, counted: 1 class token, 4 registers."""
        return count_prefix(self.prefix)


def cut_image(image: str | Path, model: str | Path) -> Patches:
    """Cut an image as a model of the catalogue, or that of a run, does."""
    spec, preprocess = _find_model(model)
    stem = getattr(spec, "stem", None)
    if stem is None and not isinstance(spec, perceiver.Spec):
        raise InspectionError(
            f"{model} does not cut images into patches.", got="a model without tokens.", hint="vit_base_patch16_224."
        )
    try:
        content = read_file(image)
    except (OSError, ValueError) as error:
        got = error.strerror if isinstance(error, OSError) else str(error)
        raise DataError(f"{image} cannot be read.", got=f"{got}.", hint="the path of an image.") from None
    pixels = preprocess.read(content, name=str(image))
    rows, columns = spec.layout.grid
    patch_rows, patch_columns = spec.cell
    return Patches(
        image=str(image),
        model=str(model),
        pixels=pixels,
        grid=(rows, columns),
        patch=(patch_rows, patch_columns),
        channels=spec.channels,
        prefix=() if stem is None else prefix_names(spec),
        cut=stem is None or stem.name == "patch",
        embedded=stem is not None,
    )


def prefix_names(spec: Any) -> tuple[str, ...]:
    """What the tokens before those of the image are."""
    names = ["class token"] * spec.class_token + ["distillation token"] * spec.distilled
    return (*names, *(f"{REGISTER} {number}" for number in range(1, spec.registers + 1)))


def count_prefix(prefix: Sequence[str]) -> list[str]:
    """Tokens without a place, counted: 1 class token, 4 registers."""
    names = [name for name in prefix if not name.startswith(REGISTER)]
    num_registers = len(prefix) - len(names)
    groups = [f"1 {name}" for name in names]
    return [*groups, f"{num_registers} {REGISTER}{'s' * (num_registers > 1)}"] if num_registers else groups


def _find_model(model: str | Path) -> tuple[Any, Preprocess]:
    if is_run(model):
        refuse_text(model, "images")
        opened = load(model)
        _check_takes(model, opened.spec)
        return opened.spec, opened.preprocess
    spec = catalogue.spec_named(str(model))
    _check_takes(model, spec)
    return spec, catalogue.preprocess_named(str(model))


def refuse_text(run: str | Path, wanted: str) -> None:
    """Refuse a run on text."""
    if kind_of(run) in TEXT_KINDS:
        raise RunError(f"{run} is a run on text, not on {wanted}.", got=f"a run of the kind {kind_of(run)}.")


def _check_takes(model: str | Path, spec: Any) -> None:
    if spec.takes != IMAGE:
        raise InspectionError(
            f"{model} does not cut images.",
            got=f"a model that takes {' and '.join(spec.takes)}.",
            hint="vit_base_patch16_224.",
        )
