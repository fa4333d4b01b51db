"""What models cost at other image sizes, and with another attention."""

from __future__ import annotations

import pytest

from vitrail.catalogue import build, describe, on_meta, spec_named
from vitrail.errors import SpecError
from vitrail.verbs.models import models


@pytest.mark.parametrize("words", [[], ["attention=axial"], ["attention=local", "attention.window=5"]])
def test_what_larger_images_cost(words: list[str]) -> None:
    name = "deit_tiny_patch16_224"
    entry = describe(name, words)
    assert [cost[:2] for cost in entry.costs] == [(224, 197), (448, 785), (896, 3137)]
    assert entry.costs[0].gflops == entry.gflops
    with on_meta():
        built = build(spec_named(name).override({"image_size": 896}).override_words(words))
    assert entry.costs[2].gflops == built.flops() / 1e9
    growth = entry.costs[2].gflops / entry.costs[1].gflops  # four times the tokens
    assert growth > 8 if not words else growth < 4.5


def test_sizes_that_a_model_does_not_take_have_no_cost() -> None:
    assert describe("linear_32").costs == ()
    assert [cost.image_size for cost in describe("vit_tiny_patch32_384", ["attention=local"]).costs] == [224, 448, 896]
    too_wide = describe("vit_tiny_patch32_384", ["attention={name: local, window: 11}"])
    assert [cost.image_size for cost in too_wide.costs] == [448, 896]
    assert [cost.image_size for cost in describe("resnetv2_50x1_bit").costs] == [224, 448, 896]


def test_a_setting_of_a_listed_model_starts_with_model() -> None:
    assert (
        models("deit_tiny_patch16", settings=["model.attention=axial"])[0].gflops
        < describe("deit_tiny_patch16_224").gflops
    )
    with pytest.raises(SpecError, match=r"written model.KEY=VALUE(.|\n)*model.attention=axial"):
        models("deit", settings=["attention=axial"])
    with pytest.raises(SpecError, match="no setting 'attention'"):
        models("resnetv2_50x1_bit", settings=["model.attention=axial"])
