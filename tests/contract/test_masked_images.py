"""Masked patch prediction and MAE: what is hidden, what is predicted, and that nothing is given away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.small_images import table_of
from vitrail.catalogue import create_model
from vitrail.data.masked_image import MASKED, PatchMasking
from vitrail.data.prepare.image import ImageRows
from vitrail.data.rng import make_rng
from vitrail.errors import SpecError
from vitrail.masking import MaskingSpec, build_objective, prepare_masked
from vitrail.metric.features import linear_accuracy, neighbour_accuracy, relative_spread
from vitrail.nn.patches import cut_patches, hide_patches, join_patches
from vitrail.objective.masked_image.targets import colour_values, downsize, find_colours, target_of

TARGETS = ("mae", "mean_colour", "downsized", "full_patch")
MODELS = {
    "patches": {"name": "vit_mu_patch4_16"},
    "convolutions": {"name": "vit_mu_conv4_16"},
    "without positions": {"name": "vit_mu_patch4_16", "position": "none"},
}
NUM_PATCHES = 16


def make(target: str, kind: str = "patches") -> tuple[Any, Any, dict[str, torch.Tensor]]:
    """A model, an objective, and four images with hidden patches."""
    torch.manual_seed(0)
    model = create_model(**MODELS[kind], num_classes=0)
    spec = MaskingSpec(target=target, mask_rate=0.5, decoder_width=32, decoder_depth=1)
    objective = build_objective(spec, model)
    torch.nn.init.normal_(objective.predictor.weight, std=0.1)
    draws = [spec.masking.draw(NUM_PATCHES, make_rng("masks", seed=3, epoch=0, index=row)) for row in range(4)]
    hidden, shown = (torch.from_numpy(np.stack(each)) for each in zip(*draws, strict=True))
    return model, objective, {"image": torch.randn(4, 3, 16, 16), "hidden": hidden, "shown": shown}


def test_rates_and_shares_over_ten_thousand_draws() -> None:
    """Exactly half is hidden; of that 80 % is masked, 10 % shows another patch, 10 % itself."""
    paper, mae, rng = PatchMasking(0.5, corrupts=True), PatchMasking(0.75, corrupts=False), np.random.default_rng(0)
    places, masked, same, num = np.zeros(196), 0, 0, 0
    for _ in range(10_000):
        hidden, shown = paper.draw(196, rng)
        assert len(hidden) == len(set(hidden.tolist())) == 98
        places[hidden] += 1
        masked += int((shown == MASKED).sum())
        same += int((shown == hidden).sum())
        num += len(hidden)
        others = shown[(shown != MASKED) & (shown != hidden)]
        assert not set(others.tolist()) & set(hidden.tolist()), "another patch is one that is not hidden"
    assert masked / num == pytest.approx(0.8, abs=0.002)
    assert same / num == pytest.approx(0.1, abs=0.002)
    assert places.min() > 4800
    assert places.max() < 5200
    hidden, shown = mae.draw(196, rng)
    assert len(hidden) == 147
    assert (shown == MASKED).all()


@pytest.mark.parametrize(("rate", "num", "count"), [(0.01, 4, 1), (0.99, 4, 3), (0.5, 5, 2)])
def test_something_is_hidden_and_something_is_not(rate: float, num: int, count: int) -> None:
    assert PatchMasking(rate, corrupts=False).count(num) == count


def numpy_targets(patch: np.ndarray) -> dict[str, Any]:
    """The paper's targets of one patch [rows, columns, RGB] with values from 0 to 1, written out in NumPy."""

    def colour(rgb: np.ndarray) -> int:
        red, green, blue = (min(int(value * 8), 7) for value in rgb)
        return red * 64 + green * 8 + blue

    rows, columns = patch.shape[0] // 4, patch.shape[1] // 4
    cells = [
        colour(patch[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns].mean(axis=(0, 1)))
        for row in range(4)
        for column in range(4)
    ]
    return {"mean_colour": [colour(patch.mean(axis=(0, 1)))], "downsized": cells, "full_patch": patch.ravel()}


@pytest.mark.parametrize("target", TARGETS[1:])
def test_targets_are_the_papers(target: Any) -> None:
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])
    values = torch.rand(2, 3, 16, 16, 3, dtype=torch.float64)
    found = target_of(target, (values - mean) / std, mean.double(), std.double())
    for row, patches in enumerate(values.numpy()):
        for place, patch in enumerate(patches):
            normalised = (patch - mean.numpy()) / std.numpy() if target == "full_patch" else patch
            assert found[row, place].tolist() == pytest.approx(list(numpy_targets(normalised)[target]))


def test_there_are_512_colours() -> None:
    colours = torch.arange(512)
    assert torch.equal(find_colours(colour_values(colours, 3)), colours)
    assert find_colours(torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])).tolist() == [0, 511]


def test_small_patches_keep_their_size() -> None:
    assert downsize(torch.rand(1, 1, 2, 2, 3)).shape == (1, 1, 2, 2, 3)


def test_patches_are_cut_and_joined() -> None:
    image = torch.randn(2, 3, 8, 12)
    patches = cut_patches(image, (4, 4))
    assert torch.equal(join_patches(patches, (2, 3)), image)
    assert torch.equal(patches[0, 1], image[0, :, :4, 4:8].permute(1, 2, 0))
    hidden = hide_patches(image, (4, 4), torch.tensor([[1, 2], [0, 5]]), torch.tensor([[MASKED, 0], [0, 3]]))
    shown = cut_patches(hidden, (4, 4))
    assert not shown[0, 1].any()
    assert torch.equal(shown[0, 2], patches[0, 0])
    assert torch.equal(shown[1, 0], patches[1, 0]), "shown as it is"
    assert torch.equal(shown[1, 5], patches[1, 3])
    assert torch.equal(shown[1, 1:5], patches[1, 1:5])


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_given_away(target: str, kind: str) -> None:
    """No prediction depends on the pixels of a patch that is hidden and not shown anywhere."""
    model, objective, fields = make(target, kind)
    image = fields["image"].requires_grad_()
    objective.predict(model, fields).square().sum().backward()
    gradient = cut_patches(image.grad, (4, 4)).abs().sum(dim=(2, 3, 4))
    hidden = torch.zeros(4, NUM_PATCHES, dtype=torch.bool)
    for row in range(4):
        places = fields["hidden"][row][fields["shown"][row] != fields["hidden"][row]]  # shown as it is: no secret
        assert len(places) >= 4
        hidden[row, places] = True
    assert not gradient[hidden].any()
    assert (gradient[~hidden] > 0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_only_hidden_patches_are_in_the_loss(target: str) -> None:
    model, objective, fields = make(target)
    predicted = objective.predict(model, fields)
    losses = objective.compare(predicted, fields)
    assert losses.shape == fields["hidden"].shape
    patches = cut_patches(fields["image"], (4, 4)).clone()
    for row, places in enumerate(fields["hidden"]):
        visible = [place for place in range(NUM_PATCHES) if place not in places.tolist()]
        patches[row, visible] = 9.0
    changed = {**fields, "image": join_patches(patches, (4, 4))}
    assert torch.equal(objective.compare(predicted, changed), losses)
    patches[0, fields["hidden"][0, 0]] *= -2.0
    assert not torch.equal(
        objective.compare(predicted, {**fields, "image": join_patches(patches, (4, 4))})[0, 0], losses[0, 0]
    )
    assert torch.allclose(objective(model, fields), losses.sum(dim=1), atol=1e-5)
    assert objective.units(fields).tolist() == [8.0] * 4


@pytest.mark.parametrize("target", TARGETS)
def test_predictions_are_drawn_as_pixels(target: str) -> None:
    """A prediction that is right draws the patch itself, or its colours."""
    model, objective, fields = make(target)
    fields["image"] = fields["image"].clamp(-1, 1)
    hidden = objective.draw(objective.predict(model, fields), fields)
    assert hidden.shape == (4, 8, 4, 4, 3)
    assert hidden.isfinite().all()
    rows = torch.arange(4)[:, None]
    wanted = cut_patches(fields["image"], (4, 4))[rows, fields["hidden"]]
    if target == "full_patch":
        assert torch.equal(objective.draw(wanted.flatten(2), fields), wanted)
    elif target == "mae":
        right, _, _ = objective._normalised(fields)
        assert torch.allclose(objective.draw(right, fields), wanted, atol=1e-5)
    else:
        colours = target_of(target, wanted, objective.mean, objective.std)
        drawn = objective.draw(torch.nn.functional.one_hot(colours, 512).float().flatten(2), fields)
        assert torch.equal(target_of(target, drawn, objective.mean, objective.std), colours)


def test_mae_encodes_visible_patches_only() -> None:
    model, objective, fields = make("mae")
    seen = []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].x.shape[1]))
    objective(model, fields)
    assert seen == [1 + NUM_PATCHES // 2], "the class token, and half of the patches"


def test_features_are_scored_by_what_is_left_out() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 4
    clusters = np.eye(4)[labels] * 5 + rng.normal(size=(200, 4))
    assert neighbour_accuracy(clusters, labels) > 0.95
    assert linear_accuracy(clusters, labels) > 0.95
    noise = rng.normal(size=(200, 150))
    assert neighbour_accuracy(noise, labels) < 0.4
    assert linear_accuracy(noise, labels) < 0.4, "a model that had seen its own label would be right"
    assert relative_spread(np.ones((9, 3))) == 0.0
    assert relative_spread(rng.normal(size=(999, 3))) == pytest.approx(1.0, abs=0.01)


def test_a_collapse_is_noticed() -> None:
    _, objective, _ = make("mae")
    labels = torch.arange(200) % 4
    good = torch.eye(4)[labels] + 0.1 * torch.randn(200, 4)
    answers = {"label": labels, "features": good}
    monitoring = objective.monitor(answers)
    assert monitoring.problem is None
    assert [score.metric.name for score in monitoring.scores] == ["knn", "linear"]
    assert objective.best_probe.item() > 0.9
    constant = objective.monitor({"label": labels, "features": torch.ones(200, 4) + 1e-5 * torch.randn(200, 4)})
    assert constant.problem is not None
    assert "the same" in constant.problem


def test_a_fall_to_chance_is_a_collapse() -> None:
    _, objective, _ = make("mae")
    labels = torch.arange(400) % 4
    objective.best_probe.fill_(0.9)
    adversarial = torch.randn(100, 4).repeat_interleave(4, dim=0) + 1e-3 * torch.randn(400, 4)  # never its own class
    found = objective.monitor({"label": labels, "features": adversarial})
    assert found.problem is not None
    assert "no better than chance, after 90" in found.problem


def test_features_that_a_linear_model_can_read_have_not_collapsed() -> None:
    """Nearest neighbours are lost in noise long before a linear model is."""
    torch.manual_seed(0)
    _, objective, _ = make("mae")
    labels = torch.arange(400) % 4
    objective.best_probe.fill_(0.9)
    noise = torch.randn(100, 60).repeat_interleave(4, dim=0)  # the nearest neighbours are of the other classes
    features = torch.cat([noise * 5, torch.eye(4)[labels]], dim=1)
    found = objective.monitor({"label": labels, "features": features})
    neighbours, linear = (score.value for score in found.scores)
    assert neighbours < 0.25 < 0.5 < linear
    assert found.problem is None


def test_unlabelled_answers_have_no_probes() -> None:
    _, objective, _ = make("mae")
    assert objective.monitor({"features": torch.randn(9, 4)}).scores == ()
    assert objective.monitor({"features": torch.randn(9, 4), "label": torch.randn(9)}).scores == ()
    assert objective.monitor({"features": torch.randn(9, 4), "label": torch.zeros(9).long()}).scores == ()


def test_other_models_are_refused() -> None:
    with pytest.raises(SpecError, match="needs a Vision Transformer"):
        build_objective(MaskingSpec(), create_model("linear_8", num_classes=0))


def test_preparation_hides_the_same_in_each_evaluation() -> None:
    model = create_model("vit_mu_patch4_16", num_classes=0)
    prepare = prepare_masked(MaskingSpec(target="downsized", mask_rate=0.5), model)
    table = table_of([0, 1, 0, 1], side=16)
    read = prepare.reader(table)
    first, second = read(table[1]), read(table[1])
    assert np.array_equal(first.hidden, second.hidden)
    assert (first.shown == MASKED).all(), "no answer is shown in evaluation"
    assert not np.array_equal(first.hidden, read(table[2]).hidden)
    rows = prepare.new_rows(2)
    assert isinstance(rows, ImageRows)
    rows.put(1, first)
    assert rows.stack([1])["hidden"].tolist() == [first.hidden.tolist()]
