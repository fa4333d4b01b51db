"""Windows in blocks: every cell sees exactly the cells of its window, wherever the blocks end."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.nn.window import Windows, count_visible, neighbours

sides, odd = st.integers(1, 11), st.sampled_from([1, 3, 5, 7])


@settings(deadline=None, max_examples=60)
@given(rows=sides, columns=sides, window=odd, block=st.integers(1, 9))
def test_a_cell_sees_its_window(rows: int, columns: int, window: int, block: int) -> None:
    windows = Windows((rows, columns), window, block)
    own, around, visible, offsets = (
        windows.block_cells(),
        windows.halo_cells(),
        windows.visible(),
        windows.offsets(),
    )
    place = windows.place_in_blocks()
    assert torch.equal(own.flatten()[place], torch.arange(rows * columns))  # each cell stands where it is looked for
    found = {}
    for cell, at in enumerate(place.tolist()):
        group, within = divmod(at, block * block)
        seen = visible[group, within]
        found[cell] = dict(zip(offsets[within][seen].tolist(), around[group][seen].tolist(), strict=True))
    reach = window // 2
    for cell, seen in found.items():
        y, x = divmod(cell, columns)
        expected = {
            (dy + reach) * window + dx + reach: (y + dy) * columns + x + dx
            for dy in range(-reach, reach + 1)
            for dx in range(-reach, reach + 1)
            if 0 <= y + dy < rows and 0 <= x + dx < columns
        }
        assert seen == expected
    assert sum(map(len, found.values())) == count_visible((rows, columns), window)


@pytest.mark.parametrize("size", [(6, 9), (5, 5)])
def test_neighbours_are_what_a_convolution_sees(size: tuple[int, int]) -> None:
    image, weight = torch.randn(2, 3, *size), torch.randn(3, 3, 3)  # one filter for each channel
    cells = neighbours(image, 3)
    found = torch.einsum("bckyx,ck->bcyx", cells, weight.flatten(1))
    assert torch.allclose(found, F.conv2d(image, weight[:, None], padding=1, groups=3), atol=1e-5)
