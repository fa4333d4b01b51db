"""What training does to a picture before the model sees it, drawn from one generator a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from vitrail.data.decode import Pixels
from vitrail.data.resize import resize, resize_part, to_image
from vitrail.data.transform import Preprocess
from vitrail.spec import Spec

Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]
TRIES = 10  # to find a crop that fits in the picture
MAX_MAGNITUDE = 10.0
GREY = 128


class Augment(Spec):
    """How pictures are changed at random for training. The defaults are a crop and a flip."""

    crop: Literal["resized", "random", "padded"] = "resized"
    """`resized`: a part of random area and shape. `random`: the covered picture, cropped anywhere (as of DeiT III).
    `padded`: a small picture, framed by its mirror image and cropped anywhere."""
    scale: tuple[Share, Share] = (0.08, 1.0)
    """The smallest and largest part of the area for `resized`."""
    ratio: tuple[PositiveFloat, PositiveFloat] = (3 / 4, 4 / 3)
    """The narrowest and widest shape for `resized`."""
    padding: Share = 0.125
    """The frame for `padded`, as a part of the size: 4 of 32 pixels."""
    flip_rate: Rate = 0.5
    policy: Literal["none", "rand", "three"] = "none"
    """`rand` is RandAugment (arXiv 1909.13719), `three` is 3-Augment (arXiv 2204.07118)."""
    num_ops: PositiveInt = 2
    """The number of RandAugment's operations a picture."""
    magnitude: Annotated[float, Field(ge=0.0, le=MAX_MAGNITUDE)] = 9.0
    """The strength of RandAugment's operations, of 10."""
    jitter: NonNegativeFloat = 0.0
    """The strength by which brightness, contrast and saturation change."""
    erase_rate: Rate = 0.0
    """How often a rectangle is filled with noise (arXiv 1708.04896)."""
    mixup: NonNegativeFloat = 0.0
    """The parameter of mixup's Beta distribution (arXiv 1710.09412); 0 is off."""
    cutmix: NonNegativeFloat = 0.0
    """The parameter of CutMix's Beta distribution (arXiv 1905.04899); 0 is off. With both, each half of the time."""
    repeats: PositiveInt = 1
    """How often a picture comes in a row, each time augmented anew."""
    spare: Annotated[float, Field(ge=1.0)] = 1.25
    """Larger pictures are first reduced to this many times the model's size, short side; the cache holds them so."""

    def stored_size(self, preprocess: Preprocess, rows: int, columns: int) -> tuple[int, int]:
        """The size in which a picture waits to be augmented."""
        if self.crop == "padded":
            return preprocess.target(rows, columns)
        short = math.ceil(self.spare * max(preprocess.size))
        if min(rows, columns) <= short:
            return rows, columns
        scale = short / min(rows, columns)
        return max(short, round(rows * scale)), max(short, round(columns * scale))

    def stored(self, preprocess: Preprocess, picture: Pixels) -> Pixels:
        """A picture as it waits to be augmented, in the cache if there is one."""
        if self.crop == "padded":
            return preprocess.pixels(picture)
        return resize(picture, *self.stored_size(preprocess, *picture.shape[:2]), preprocess.kernel)

    def pixels(self, preprocess: Preprocess, stored: Pixels, random: np.random.Generator) -> Pixels:
        """The augmented picture in the model's size."""
        crops = {"resized": self._crop_resized, "random": self._crop_random, "padded": self._crop_padded}
        picture = crops[self.crop](preprocess, stored, random)
        if random.random() < self.flip_rate:
            picture = picture[:, ::-1]
        if self.policy != "none" or self.jitter:
            image = to_image(np.ascontiguousarray(picture))
            if self.policy == "rand":
                image = self._rand(image, random)
            elif self.policy == "three":
                image = _three(image, random)
            picture = np.array(self._jittered(image, random)).reshape(picture.shape)
        return self._erased(picture, random)

    def _crop_resized(self, preprocess: Preprocess, stored: Pixels, random: np.random.Generator) -> Pixels:
        rows, columns = stored.shape[:2]
        for _ in range(TRIES):
            area = rows * columns * random.uniform(*self.scale)
            shape = math.exp(random.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            height, width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
            if 0 < height <= rows and 0 < width <= columns:
                break
        else:  # a very long picture: a part as long as the ratio allows
            height = min(rows, max(1, round(columns / self.ratio[0])))
            width = min(columns, max(1, round(rows * self.ratio[1])))
        top, left = random.integers(rows - height + 1), random.integers(columns - width + 1)
        part = np.ascontiguousarray(stored[top : top + height, left : left + width])
        return resize(part, *preprocess.size, preprocess.kernel)

    def _crop_random(self, preprocess: Preprocess, stored: Pixels, random: np.random.Generator) -> Pixels:
        rows, columns = preprocess.size
        whole = preprocess.override({"crop": 1.0}).target(*stored.shape[:2])
        top, left = int(random.integers(whole[0] - rows + 1)), int(random.integers(whole[1] - columns + 1))
        return resize_part(stored, whole, (top, left), (rows, columns), preprocess.kernel)

    def _crop_padded(self, preprocess: Preprocess, stored: Pixels, random: np.random.Generator) -> Pixels:
        rows, columns = preprocess.size
        frame = [max(1, round(side * self.padding)) for side in (rows, columns)]
        framed = np.pad(
            stored, ((frame[0],) * 2, (frame[1],) * 2, (0, 0)), mode="reflect" if min(rows, columns) > 1 else "edge"
        )
        top, left = random.integers(2 * frame[0] + 1), random.integers(2 * frame[1] + 1)
        return framed[top : top + rows, left : left + columns]

    def _rand(self, image: Image.Image, random: np.random.Generator) -> Image.Image:
        for name in random.choice(len(OPERATIONS), size=self.num_ops):
            strength = np.clip(random.normal(self.magnitude, 0.5), 0.0, MAX_MAGNITUDE) / MAX_MAGNITUDE
            sign = 1.0 if random.random() < 0.5 else -1.0
            if random.random() < 0.5:  # as in timm, each operation is applied half of the time
                image = OPERATIONS[name](image, float(strength), sign)
        return image

    def _jittered(self, image: Image.Image, random: np.random.Generator) -> Image.Image:
        if not self.jitter:
            return image
        enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for number in random.permutation(len(enhancers)):
            factor = random.uniform(max(0.0, 1.0 - self.jitter), 1.0 + self.jitter)
            image = enhancers[number](image).enhance(factor)
        return image

    def _erased(self, picture: Pixels, random: np.random.Generator) -> Pixels:
        if random.random() >= self.erase_rate:
            return picture
        rows, columns, channels = picture.shape
        for _ in range(TRIES):
            area = rows * columns * random.uniform(0.02, 1 / 3)
            shape = math.exp(random.uniform(math.log(0.3), math.log(1 / 0.3)))
            height, width = round(math.sqrt(area / shape)), round(math.sqrt(area * shape))
            if 0 < height < rows and 0 < width < columns:
                top, left = random.integers(rows - height + 1), random.integers(columns - width + 1)
                picture = picture.copy()
                noise = random.integers(256, size=(height, width, channels), dtype=np.uint8)
                picture[top : top + height, left : left + width] = noise
                break
        return picture


def _three(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """One of three: grey, solarised or blurred."""
    choice = random.integers(3)
    if choice == 0:
        return image.convert("L").convert(image.mode)
    if choice == 1:
        return ImageOps.solarize(image, GREY)
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def _moved(image: Image.Image, matrix: tuple[float, float, float, float, float, float]) -> Image.Image:
    fill = GREY if image.mode == "L" else (GREY,) * 3
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill)


def _enhanced(enhancer: Callable[[Image.Image], ImageEnhance._Enhance]) -> Operation:
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
    _enhanced(ImageEnhance.Color),
    _enhanced(ImageEnhance.Contrast),
    _enhanced(ImageEnhance.Brightness),
    _enhanced(ImageEnhance.Sharpness),
    lambda image, strength, sign: image.rotate(
        30.0 * sign * strength, Image.Resampling.BILINEAR, fillcolor=GREY if image.mode == "L" else (GREY,) * 3
    ),
    lambda image, strength, sign: _moved(image, (1.0, 0.3 * sign * strength, 0.0, 0.0, 1.0, 0.0)),
    lambda image, strength, sign: _moved(image, (1.0, 0.0, 0.0, 0.3 * sign * strength, 1.0, 0.0)),
    lambda image, strength, sign: _moved(image, (1.0, 0.0, 0.45 * sign * strength * image.width, 0.0, 1.0, 0.0)),
    lambda image, strength, sign: _moved(image, (1.0, 0.0, 0.0, 0.0, 1.0, 0.45 * sign * strength * image.height)),
)
