"""Layouts, cuts, resized tables and specifications, over whatever shapes hypothesis thinks of."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.adapt import adapt_channels, table_grid
from vitrail.errors import ShapeError, SpecError, VitrailError, WeightsError
from vitrail.model import vit
from vitrail.nn.position import resize_table
from vitrail.tokens import Layout, cut

sides = st.integers(1, 12)
grids = st.tuples(sides, sides)


@given(grid=grids, cell=grids)
def test_cut_is_the_inverse_of_multiplication(grid: tuple[int, int], cell: tuple[int, int]) -> None:
    size = (grid[0] * cell[0], grid[1] * cell[1])
    assert cut(size, cell) == grid


@given(size=st.tuples(st.integers(1, 300), st.integers(1, 300)), cell=st.tuples(st.integers(2, 32), st.integers(2, 32)))
def test_a_refused_cut_offers_sizes_that_work(size: tuple[int, int], cell: tuple[int, int]) -> None:
    if all(side % step == 0 for side, step in zip(size, cell, strict=True)):
        return
    with pytest.raises(ShapeError) as caught:
        cut(size, cell)
    for offer in caught.value.hint.rstrip(".").split(" or "):
        rows, columns = map(int, offer.split(" x "))
        assert math.prod(cut((rows, columns), cell)) >= 1


@settings(deadline=None)
@given(old=grids, new=grids, prefix=st.integers(0, 5), rule=st.sampled_from(["bicubic", "zoom"]))
def test_resizing_a_table(old: tuple[int, int], new: tuple[int, int], prefix: int, rule: str) -> None:
    table = torch.randn(1, prefix + math.prod(old), 4)
    resized = resize_table(table, Layout(old, prefix), Layout(new, prefix), rule)
    assert resized.shape == (1, prefix + math.prod(new), 4)
    assert torch.equal(resized[:, :prefix], table[:, :prefix])
    if old == new:
        assert torch.equal(resized, table)
    # A table that is the same everywhere stays so.
    flat = torch.ones(1, prefix + math.prod(old), 4)
    assert torch.allclose(
        resize_table(flat, Layout(old, prefix), Layout(new, prefix), rule), torch.ones(1, 1, 4), atol=1e-5
    )


def test_a_table_of_another_length_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"does not fit the layout"):
        resize_table(torch.randn(1, 10, 4), Layout((3, 4), 1), Layout((5, 5), 1))


@given(channels=st.integers(1, 9))
def test_the_channel_rules(channels: int) -> None:
    weight = torch.randn(4, 3, 2, 2)
    grey = torch.randn(1, 1, 2, 2)
    before = torch.nn.functional.conv2d(grey.expand(-1, 3, -1, -1), weight)
    after = torch.nn.functional.conv2d(grey.expand(-1, channels, -1, -1), adapt_channels(weight, channels, "sum"))
    assert torch.allclose(before, after, atol=1e-5)
    mean = adapt_channels(weight, channels, "mean")
    assert mean.shape == (4, channels, 2, 2)
    assert torch.allclose(mean[:, 0], weight.mean(1), atol=1e-6)


def test_a_tables_grid_is_looked_up_not_guessed() -> None:
    square = Layout((24, 24), 1)
    assert table_grid(197, square, (16, 16), None) == (14, 14)
    assert table_grid(577, square, (16, 16), None) == (24, 24)
    assert table_grid(181, Layout((10, 18), 1), (16, 16), None) == (10, 18)
    assert table_grid(181, square, (16, 16), (18, 10)) == (18, 10)
    # 7 x 28 and 14 x 14 have the same number of cells: that is asked, not assumed.
    with pytest.raises(WeightsError, match=r"7 x 28 or 14 x 14"):
        table_grid(197, Layout((7, 28), 1), (16, 16), None)
    with pytest.raises(WeightsError, match=r"weights_grid=\(rows, columns\)"):
        table_grid(181, square, (16, 16), None)
    with pytest.raises(WeightsError, match=r"does not fit"):
        table_grid(181, square, (16, 16), (14, 14))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200, deadline=None)
@given(field=st.sampled_from(sorted(vit.Spec.model_fields)) | st.text(max_size=8), value=json_values)
def test_any_value_of_any_field_is_taken_or_explained(field: str, value: object) -> None:
    try:
        spec = vit.Spec().override({field: value})
    except VitrailError:
        return
    assert vit.Spec.parse_yaml(spec.to_yaml()) == spec


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["depth=3", "stem.patch=[8, 8]", "layer_scale=0.1"], None),
        (["depth"], "written key=value"),
        (["=3"], "written key=value"),
        (["depth.x=3"], "which has no parts"),
        (["nowhere.x=3"], "which has no parts"),
        (["norm_eps=1e-6"], "with a dot"),
        (["depht=3"], "no field 'depht'"),
    ],
)
def test_overrides_on_the_command_line(words: list[str], message: str | None) -> None:
    if message is None:
        spec = vit.Spec().override_words(words)
        assert (spec.depth, spec.stem.patch, spec.layer_scale) == (3, (8, 8), 0.1)
        return
    with pytest.raises(SpecError, match=message):
        vit.Spec().override_words(words)


def test_numbers_of_numpy_and_what_is_no_plain_value() -> None:
    import numpy as np

    assert vit.Spec().override({"depth": np.int64(3), "layer_scale": np.float32(0.5)}).depth == 3
    for value in ({1, 2}, b"x", object()):
        with pytest.raises(SpecError, match=r"plain values"):
            vit.Spec().override({"depth": value})


@pytest.mark.parametrize(
    ("text", "message"),
    [("a: &x 3\nb: *x", "aliases"), ("a: [", "not valid YAML"), ("- 3", "mapping of keys"), ("", "mapping")],
)
def test_documents_that_are_no_specification(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        vit.Spec.parse_yaml(text)
