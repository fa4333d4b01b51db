"""Random augmentation of training images, with one seeded generator per image."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, Self

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from vitrail.data.decode import Pixels
from vitrail.data.resize import resize, resize_part, to_image
from vitrail.data.transform import Preprocess
from vitrail.errors import SpecError
from vitrail.spec import PositiveFraction, Probability, Spec

MAX_TRIES = 10  # to find a rectangle that fits into the image
MAX_MAGNITUDE = 10.0
GREY = 128


class Augment(Spec):
    """How training images are augmented. The default is a random resized crop and a flip."""

    crop: Literal["resized", "random", "padded"] = "resized"
    """`resized`: a crop of random area and aspect ratio. `random`: the image resized to cover the model's size, then
    cropped at a random position (DeiT III). `padded`: a small image, reflection-padded and cropped at random."""
    scale: tuple[PositiveFraction, PositiveFraction] = (0.08, 1.0)
    """The smallest and largest fraction of the area for `resized`."""
    ratio: tuple[PositiveFloat, PositiveFloat] = (3 / 4, 4 / 3)
    """The smallest and largest aspect ratio for `resized`."""
    padding: PositiveFraction = 0.125
    """The padding for `padded`, as a fraction of the size: 4 of 32 pixels."""
    flip_rate: Probability = 0.5
    policy: Literal["none", "rand", "three"] = "none"
    """`rand` is RandAugment (arXiv 1909.13719), `three` is 3-Augment (arXiv 2204.07118)."""
    num_ops: PositiveInt = 2
    """RandAugment operations per image."""
    magnitude: Annotated[float, Field(ge=0.0, le=MAX_MAGNITUDE)] = 9.0
    """The strength of RandAugment's operations, from 0 to 10."""
    jitter: NonNegativeFloat = 0.0
    """The strength of the random changes of brightness, contrast and saturation."""
    erase_rate: Probability = 0.0
    """The probability that a rectangle is filled with noise (random erasing, arXiv 1708.04896)."""
    mixup: NonNegativeFloat = 0.0
    """The parameter of mixup's Beta distribution (arXiv 1710.09412); 0 is off."""
    cutmix: NonNegativeFloat = 0.0
    """The parameter of CutMix's Beta distribution (arXiv 1905.04899); 0 is off. With both, either at random."""
    repeats: PositiveInt = 1
    """How many times in a row each image is shown, with a new augmentation each time."""
    draws: NonNegativeInt = 0
    """How many augmentations each image has, one per epoch and then the same ones again, so that a teacher's answers
    can be kept; 0 for a new one in every epoch."""
    spare: Annotated[float, Field(ge=1.0)] = 1.25
    """Larger images are first reduced, their short side to this many times the model's size; the cache stores these."""

    @model_validator(mode="after")
    def _check_draws(self) -> Self:
        if self.draws and (self.mixup or self.cutmix):
            raise SpecError(
                "augment.draws needs images that are not mixed: pairs change from epoch to epoch.",
                got=f"draws={self.draws}, mixup={self.mixup}, cutmix={self.cutmix}.",
                hint="augment.mixup=0 augment.cutmix=0, or augment.draws=0.",
            )
        return self

    def stored_size(self, preprocess: Preprocess, rows: int, columns: int) -> tuple[int, int]:
        """The size in which an image is stored until it is augmented."""
        if self.crop == "padded":
            return preprocess.resize_size(rows, columns)
        short = math.ceil(self.spare * max(preprocess.size))
        if min(rows, columns) <= short:
            return rows, columns
        scale = short / min(rows, columns)
        return max(short, round(rows * scale)), max(short, round(columns * scale))

    def resize_to_stored(self, preprocess: Preprocess, image: Pixels) -> Pixels:
        """The image as it is stored until it is augmented, in the cache if there is one."""
        if self.crop == "padded":
            return preprocess.resize_and_crop(image)
        return resize(image, *self.stored_size(preprocess, *image.shape[:2]), preprocess.kernel)

    def apply(self, preprocess: Preprocess, stored: Pixels, rng: np.random.Generator) -> Pixels:
        """The augmented image in the model's size."""
        crops = {"resized": self._crop_resized, "random": self._crop_random, "padded": self._crop_padded}
        pixels = crops[self.crop](preprocess, stored, rng)
        if rng.random() < self.flip_rate:
            pixels = pixels[:, ::-1]
        if self.policy != "none" or self.jitter:
            image = to_image(np.ascontiguousarray(pixels))
            if self.policy == "rand":
                image = self._rand_augment(image, rng)
            elif self.policy == "three":
                image = _three_augment(image, rng)
            pixels = np.array(self._colour_jitter(image, rng)).reshape(pixels.shape)
        return self._random_erase(pixels, rng)

    def _crop_resized(self, preprocess: Preprocess, stored: Pixels, rng: np.random.Generator) -> Pixels:
        rows, columns = stored.shape[:2]
        for _ in range(MAX_TRIES):
            area = rows * columns * rng.uniform(*self.scale)
            shape = math.exp(rng.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            height, width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
            if 0 < height <= rows and 0 < width <= columns:
                break
        else:  # a very long image: as much of it as the ratio allows
            height = min(rows, max(1, round(columns / self.ratio[0])))
            width = min(columns, max(1, round(rows * self.ratio[1])))
        top, left = rng.integers(rows - height + 1), rng.integers(columns - width + 1)
        crop = np.ascontiguousarray(stored[top : top + height, left : left + width])
        return resize(crop, *preprocess.size, preprocess.kernel)

    def _crop_random(self, preprocess: Preprocess, stored: Pixels, rng: np.random.Generator) -> Pixels:
        rows, columns = preprocess.size
        whole = preprocess.size_to_cover(stored.shape[0], stored.shape[1], crop=1.0)
        top, left = int(rng.integers(whole[0] - rows + 1)), int(rng.integers(whole[1] - columns + 1))
        return resize_part(stored, whole, (top, left), (rows, columns), preprocess.kernel)

    def _crop_padded(self, preprocess: Preprocess, stored: Pixels, rng: np.random.Generator) -> Pixels:
        rows, columns = preprocess.size
        pad = [max(1, round(side * self.padding)) for side in (rows, columns)]
        padded = np.pad(
            stored, ((pad[0],) * 2, (pad[1],) * 2, (0, 0)), mode="reflect" if min(rows, columns) > 1 else "edge"
        )
        top, left = rng.integers(2 * pad[0] + 1), rng.integers(2 * pad[1] + 1)
        return padded[top : top + rows, left : left + columns]

    def _rand_augment(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        for number in rng.choice(len(OPERATIONS), size=self.num_ops):
            strength = np.clip(rng.normal(self.magnitude, 0.5), 0.0, MAX_MAGNITUDE) / MAX_MAGNITUDE
            sign = 1.0 if rng.random() < 0.5 else -1.0
            if rng.random() < 0.5:  # as in timm, each operation is applied with probability 0.5
                image = OPERATIONS[number](image, float(strength), sign)
        return image

    def _colour_jitter(self, image: Image.Image, rng: np.random.Generator) -> Image.Image:
        if not self.jitter:
            return image
        enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for number in rng.permutation(len(enhancers)):
            factor = rng.uniform(max(0.0, 1.0 - self.jitter), 1.0 + self.jitter)
            image = enhancers[number](image).enhance(factor)
        return image

    def _random_erase(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        if rng.random() >= self.erase_rate:
            return pixels
        rows, columns, channels = pixels.shape
        for _ in range(MAX_TRIES):
            area = rows * columns * rng.uniform(0.02, 1 / 3)
            shape = math.exp(rng.uniform(math.log(0.3), math.log(1 / 0.3)))
            height, width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
            if 0 < height < rows and 0 < width < columns:
                top, left = rng.integers(rows - height + 1), rng.integers(columns - width + 1)
                pixels = pixels.copy()
                noise = rng.integers(256, size=(height, width, channels), dtype=np.uint8)
                pixels[top : top + height, left : left + width] = noise
                break
        return pixels


def _three_augment(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """One of three: greyscale, solarised or blurred."""
    choice = rng.integers(3)
    if choice == 0:
        return image.convert("L").convert(image.mode)
    if choice == 1:
        return ImageOps.solarize(image, GREY)
    return image.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0)))


def _affine(image: Image.Image, matrix: tuple[float, float, float, float, float, float]) -> Image.Image:
    fill = GREY if image.mode == "L" else (GREY,) * 3
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill)


def _enhance(enhancer: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
    return lambda image, strength, sign: enhancer(image).enhance(max(0.1, 1.0 + 0.9 * sign * strength))


Operation = Callable[[Image.Image, float, float], Image.Image]
OPERATIONS: tuple[Operation, ...] = (
    lambda image, _, __: ImageOps.autocontrast(image),
    lambda image, _, __: ImageOps.equalize(image),
    lambda image, _, __: ImageOps.invert(image),
    lambda image, strength, _: ImageOps.posterize(image, 4 - round(4 * strength) or 1),
    lambda image, strength, _: ImageOps.solarize(image, 256 - round(256 * strength)),
    lambda image, strength, _: ImageOps.solarize(
        image.point(lambda value: min(255, value + 110 * strength)), 256 - round(128 * strength)
    ),
    _enhance(ImageEnhance.Color),
    _enhance(ImageEnhance.Contrast),
    _enhance(ImageEnhance.Brightness),
    _enhance(ImageEnhance.Sharpness),
    lambda image, strength, sign: image.rotate(
        30.0 * sign * strength, Image.Resampling.BILINEAR, fillcolor=GREY if image.mode == "L" else (GREY,) * 3
    ),
    lambda image, strength, sign: _affine(image, (1.0, 0.3 * sign * strength, 0.0, 0.0, 1.0, 0.0)),
    lambda image, strength, sign: _affine(image, (1.0, 0.0, 0.0, 0.3 * sign * strength, 1.0, 0.0)),
    lambda image, strength, sign: _affine(image, (1.0, 0.0, 0.45 * sign * strength * image.width, 0.0, 1.0, 0.0)),
    lambda image, strength, sign: _affine(image, (1.0, 0.0, 0.0, 0.0, 1.0, 0.45 * sign * strength * image.height)),
)
