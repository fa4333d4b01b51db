"""Local and axial attention equal full attention under a mask, in outputs and gradients, without its matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import fill
from tests.contract.small_models import small
from tests.contract.test_models import STEREO, VIDEO
from vitrail import create_model, save_weights, train
from vitrail.catalogue import spec_named
from vitrail.errors import ShapeError, SpecError, WeightsError
from vitrail.exports.graph import prepare_for_export
from vitrail.masking import MaskingSpec, build_objective
from vitrail.nn.attention import axial, full, local
from vitrail.nn.dot_product import attend
from vitrail.tokens import Layout, Tokens

GRIDS = [(8, 8), (16, 16), (9, 13), (3, 20), (1, 1)]
CLOSE = 1e-10  # float64


def window_pairs(layout: Layout, window: int) -> torch.Tensor:
    """Which token may attend to which, by the definition: a loop over all pairs of cells."""
    prefix, (rows, columns) = layout.prefix, layout.grid
    pairs = torch.ones(layout.num_tokens, layout.num_tokens, dtype=torch.bool)
    for one in range(rows * columns):
        for other in range(rows * columns):
            apart = max(abs(one // columns - other // columns), abs(one % columns - other % columns))
            pairs[prefix + one, prefix + other] = apart <= window // 2
    return pairs


def line_pairs(layout: Layout, *, rows: bool) -> torch.Tensor:
    number = torch.arange(layout.num_cells)
    line = number // layout.grid[1] if rows else number % layout.grid[1]
    pairs = torch.ones(layout.num_tokens, layout.num_tokens, dtype=torch.bool)
    pairs[layout.prefix :, layout.prefix :] = line[:, None] == line[None]
    return pairs


def tokens_of(layout: Layout, *, padded: bool = False, dtype: torch.dtype = torch.float64) -> Tokens:
    x = torch.randn(2, layout.num_tokens, 24, dtype=dtype, requires_grad=True)
    mask = None
    if padded:
        mask = torch.rand(2, layout.num_tokens) < 0.6
        mask[:, -1] = True
    return Tokens(x, layout, mask)


def assert_equal(attention: Any, tokens: Tokens, expected: torch.Tensor, atol: float) -> None:
    """Outputs, and the gradients of tokens and weights."""
    found = attention(tokens)
    assert (found - expected).abs().max() < atol
    inputs = [tokens.x, *attention.parameters()]
    weight = torch.randn_like(found)
    gradients = [torch.autograd.grad((each * weight).sum(), inputs) for each in (expected, found)]
    for one, other in zip(*gradients, strict=True):
        assert (one - other).abs().max() < atol * max(1.0, one.abs().max().item())


@pytest.mark.parametrize("padded", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("window", "dtype"), [(3, torch.float64), (7, torch.float64), (5, torch.float32)])
def test_local_equals_full_attention_under_the_windows_mask(
    grid: tuple[int, int], prefix: int, window: int, padded: bool, dtype: torch.dtype
) -> None:
    layout = Layout(grid, prefix)
    attention = fill(local.Attention(local.Spec(window=window), width=24, heads=3), 0.3).to(dtype)
    reference = full.Attention(width=24, heads=3).to(dtype)
    reference.load_state_dict(attention.state_dict())  # the weights of full attention
    reference.qkv, reference.proj = attention.qkv, attention.proj
    tokens = tokens_of(layout, padded=padded, dtype=dtype)
    heads = attend(*reference.split(tokens), mask=tokens.mask, pair_mask=window_pairs(layout, window)[None])
    expected = reference.merge(heads)
    assert_equal(attention, tokens, expected, CLOSE if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("padded", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize("prefix", [0, 2])
def test_relative_positions_are_added_to_the_keys(prefix: int, padded: bool, fused: bool) -> None:
    """q (k + r) with r looked up for each pair of cells; half of it is the row's, half the column's."""
    layout, window = Layout((6, 10), prefix), 3
    attention = fill(local.Attention(local.Spec(window=window, relative=True), width=24, heads=3), 0.5).double()
    attention.fused = fused
    assert attention.rel_rows is not None
    assert attention.rel_columns is not None
    tokens = tokens_of(layout, padded=padded)
    q, k, v = attention.split(tokens)
    r = torch.zeros(layout.num_tokens, layout.num_tokens, 8, dtype=torch.float64)
    for one in range(60):
        for other in range(60):
            down, right = other // 10 - one // 10 + 1, other % 10 - one % 10 + 1
            if 0 <= down < 3 and 0 <= right < 3:
                r[prefix + one, prefix + other] = torch.cat(
                    [attention.rel_rows.table[0, down], attention.rel_columns.table[0, right]]
                )
    scores = (torch.einsum("bhne,bhme->bhnm", q, k) + torch.einsum("bhne,nme->bhnm", q, r)) / 8**0.5
    hidden = (
        ~window_pairs(layout, window) if tokens.mask is None else ~(window_pairs(layout, window) & tokens.mask[:, None])
    )
    scores = scores.masked_fill(hidden if hidden.ndim == 2 else hidden[:, None], -1e9)
    weights = scores.softmax(dim=-1)
    blind = hidden.all(dim=-1)
    weights = weights.masked_fill((blind if blind.ndim == 1 else blind[:, None])[..., None], 0.0)
    assert torch.allclose(attention.weights(tokens), weights, atol=CLOSE)
    assert_equal(attention, tokens, attention.merge(weights @ v), 1e-9)


def test_relative_positions_start_at_zero() -> None:
    tokens = tokens_of(Layout((4, 5), 1))
    plain = local.Attention(local.Spec(window=3), width=24, heads=3).double()
    relative = local.Attention(local.Spec(window=3, relative=True), width=24, heads=3).double()
    relative.load_state_dict(plain.state_dict(), strict=False)
    assert torch.allclose(plain(tokens), relative(tokens))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("padded", [False, True], ids=["all", "padded"])
@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("grid", GRIDS)
def test_axial_is_attention_along_rows_then_columns(
    grid: tuple[int, int], prefix: int, padded: bool, fused: bool
) -> None:
    layout = Layout(grid, prefix)
    attention = fill(axial.Attention(width=24, heads=3), 0.3).double()
    attention.fused = fused
    tokens = tokens_of(layout, padded=padded)
    q, k, v = attention.split(tokens)
    for pairs in (line_pairs(layout, rows=True), line_pairs(layout, rows=False)):
        v = attend(q, k, v, mask=tokens.mask, pair_mask=pairs[None])
    assert_equal(attention, tokens, attention.merge(v), CLOSE)


def test_axial_attention_of_video_reaches_every_cell() -> None:
    attention = fill(axial.Attention(width=24, heads=3), 0.3).double()
    tokens = tokens_of(Layout((2, 3, 4), 1))
    weights = attention.weights(tokens)
    assert weights.min() > 0
    assert torch.allclose(weights.sum(dim=-1), torch.ones(2, 3, 25, dtype=torch.float64))
    assert torch.allclose(attention.merge(weights @ attention.split(tokens)[2]), attention(tokens), atol=CLOSE)
    rows = torch.tensor([0, 24, 7])
    assert torch.allclose(attention.weights(tokens, rows), weights[:, :, rows], atol=CLOSE)


def test_only_the_window_and_the_prefix_are_seen() -> None:
    attention = fill(local.Attention(local.Spec(window=3), width=24, heads=3), 0.3).eval()
    layout = Layout((9, 11), 2)
    tokens = tokens_of(layout, dtype=torch.float32)
    assert torch.equal(attention.weights(tokens) > 0, window_pairs(layout, 3).expand(2, 3, -1, -1))
    moved = tokens.x.detach().clone()
    moved[:, layout.prefix + 50] += 1.0  # row 4, column 6
    with torch.no_grad():
        changed = (attention(tokens.with_x(moved)) - attention(tokens)).abs().amax(dim=(0, 2)) > 1e-6
    assert changed[:2].all()
    assert changed[2:].view(9, 11).nonzero().tolist() == [[y, x] for y in (3, 4, 5) for x in (5, 6, 7)]


@pytest.mark.parametrize("module", [local, axial])
def test_attention_dropout_acts_in_training_only(module: Any) -> None:
    attention = fill(module.Attention(width=24, heads=3, dropout_rate=0.5), 0.3)
    attention.proj_drop.p = 0.0
    tokens = tokens_of(Layout((4, 4), 1), dtype=torch.float32)
    with torch.no_grad():
        assert (attention.train()(tokens) != attention(tokens)).any(dim=2).all()  # prefix tokens too
        assert torch.equal(attention.eval()(tokens), attention(tokens))


@pytest.mark.parametrize("module", [local, axial])
def test_no_matrix_of_all_pairs_is_formed(module: Any) -> None:
    """No tensor of the forward or backward pass has as many numbers as the attention matrix."""
    largest = 0

    class Sizes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            tensors = [each for each in (out if isinstance(out, tuple) else (out,)) if isinstance(each, torch.Tensor)]
            largest = max([largest, *(tensor.numel() for tensor in tensors)])
            return out

    attention, layout = module.Attention(width=16, heads=1), Layout((64, 64), 1)
    attention.fused = False
    x = torch.randn(1, layout.num_tokens, 16, requires_grad=True)
    with Sizes():
        attention(Tokens(x, layout)).sum().backward()
    assert largest < layout.num_tokens**2 / 10


@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("relative", [False, True])
def test_flops_are_those_of_the_windows(relative: bool, prefix: int) -> None:
    attention = local.Attention(local.Spec(window=5, relative=relative), width=24, heads=3).requires_grad_(False)
    layout = Layout((16, 24), prefix)
    pairs = int(window_pairs(layout, 5).sum())
    extra = 2 * layout.num_cells * 5 * 24 if relative else 0
    assert attention.mixing_flops(layout) == 4 * 24 * pairs + extra
    # Blocks of 8 x 8 cells, each with the 12 x 12 cells around it; q r for their 12 rows and for their 12 columns.
    computed = layout.num_cells * (12 * 12 + prefix) + prefix * layout.num_tokens
    computed_extra = 2 * layout.num_cells * (12 + 12) * 12 if relative else 0
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        attention(Tokens(torch.randn(1, layout.num_tokens, 24), layout))
    linear = 2 * layout.num_tokens * 4 * 24 * 24
    assert counter.get_total_flops() - linear == 4 * 24 * computed + computed_extra


@pytest.mark.parametrize("kind", ["local", "axial"])
def test_a_subset_of_the_cells_is_refused(kind: str) -> None:
    model = small(kind)
    tokens = model.tokenize(torch.randn(1, 3, 224, 224)).keep(torch.tensor([[0, 3, 9]]))
    with pytest.raises(ShapeError, match=rf"{kind} attention needs every cell(.|\n)*3 of 196 cells"):
        model.encode(tokens)
    with pytest.raises(SpecError, match=rf"needs full attention(.|\n)*attention={kind}(.|\n)*without --merge"):
        prepare_for_export(model, merge=4)
    with pytest.raises(SpecError, match=rf"but {kind} attention needs the whole grid(.|\n)*target=full_patch"):
        build_objective(MaskingSpec(), model)
    assert build_objective(MaskingSpec(target="full_patch"), model) is not None


def test_weights_of_full_attention_load(tmp_path: Any) -> None:
    model = fill(create_model("vit_mu_patch16_224"), 0.1).eval()
    save_weights(model, tmp_path / "full.safetensors")
    load = {"weights": tmp_path / "full.safetensors", "name": "vit_mu_patch16_224"}
    near = create_model(**load, attention={"name": "local", "window": 7}).eval()
    across = create_model(**load, attention="axial").eval()
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert not torch.allclose(near(image), model(image), atol=1e-4)
        assert not torch.allclose(across(image), model(image), atol=1e-4)
    for other in (near, across):
        assert other.state_dict().keys() == model.state_dict().keys()
        assert all(map(torch.equal, other.state_dict().values(), model.state_dict().values()))
    with pytest.raises(WeightsError, match="4 missing"):
        create_model(**load, attention={"name": "local", "relative": True})


def test_a_window_over_everything_is_full_attention() -> None:
    tokens = tokens_of(Layout((4, 4), 1))
    near, everything = (
        local.Attention(local.Spec(window=7), width=24, heads=3).double(),
        full.Attention(width=24, heads=3),
    )
    everything.double().load_state_dict(near.state_dict())
    assert torch.allclose(near(tokens), everything(tokens), atol=CLOSE)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attention": {"name": "local", "window": 4}}, ["window must be odd", "window=4", "window=5"]),
        ({"attention": {"name": "local", "window": 0}}, ["window must be odd", "window=0", "window=1"]),
        ({"attention": {"name": "local", "window": -3}}, ["window must be odd", "window=-3", "window=1"]),
        ({"attention": {"name": "local", "window": 7.0}}, ["window", "valid integer"]),
        (
            {"attention": {"name": "local", "window": 15}},
            ["must not exceed the grid", "a grid of 14 x 14", "window=13"],
        ),
        (
            {"attention": "local", "image_size": (96, 224)},
            ["must not exceed", "window=7, a grid of 6 x 14", "window=5"],
        ),
        (
            {**STEREO, "attention": "local"},
            ["a window needs a grid of rows and columns", "a grid of 16", "attention=full"],
        ),
        ({**VIDEO, "attention": "local"}, ["a window needs a grid of rows and columns", "a grid of 4 x 4 x 3"]),
        ({**STEREO, "attention": "axial"}, ["axial attention needs a grid", "a grid of 16", "attention=full"]),
        ({"attention": {"name": "axial", "window": 7}}, ["no setting 'window'"]),
    ],
)
def test_bad_specifications(fields: dict[str, Any], words: list[str]) -> None:
    """Rejected when the specification is parsed, before anything is built."""
    with pytest.raises(SpecError) as caught:
        spec_named("vit_mu_patch16_224").override(fields)
    for word in words:
        assert word in str(caught.value)


def test_words_of_the_command_line() -> None:
    spec = spec_named("vit_mu_patch16_224")
    assert spec.override_words(["attention=local"]).attention == local.Spec()
    both = spec.override_words(["attention=local", "attention.window=5", "attention.relative=true"])
    assert both.attention == local.Spec(window=5, relative=True)
    assert both.override_words(["attention.window=3"]).attention == local.Spec(window=3, relative=True)
    assert both.override_words(["attention=full"]) == spec
    with pytest.raises(SpecError, match="no setting 'window'"):
        spec.override_words(["attention.window=5"])
    with pytest.raises(SpecError, match="window must be odd"):
        spec.override_words(["attention=local", "attention.window=4"])
    with pytest.raises(SpecError, match=r"'pool' in pool\.x has no fields"):
        spec.override_words(["pool.x=4"])


def test_a_model_with_local_attention_trains(tmp_path: Any) -> None:
    """And the run remembers it."""
    settings = ["steps=2", "batch_size=8", "model.attention=local", "model.attention.window=3", "model.depth=1"]
    train("digits", model="vit_mu_patch2_8", recipe="scratch", run=tmp_path / "run", settings=settings)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "name: local" in config
    assert "window: 3" in config
