"""The contracts of the waist, held by every entry of its folders, and by no broken one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.contract.small_clips import noise_wav, ramp_video
from tests.contract.small_images import table_of
from tests.contract.small_vatt import new_contrast, new_fields, new_vatt
from vitrail import catalogue, plug
from vitrail.about import About
from vitrail.batch import Fields, split_fields
from vitrail.contract import Classifier, Model, Objective
from vitrail.data.augment import Augment
from vitrail.data.prepare.image import ImagePreparation, ImageRows
from vitrail.data.prepare.sound import SoundPreparation
from vitrail.data.prepare.text import TextPreparation
from vitrail.data.prepare.video import VideoPreparation
from vitrail.data.transform import Preprocess
from vitrail.metric.score import Metric, Score
from vitrail.objective.classify import Classify
from vitrail.tokens import Tokens

NUM = 6
IMAGES = torch.randn(NUM, 3, 16, 16, generator=torch.Generator().manual_seed(0))
TEXT = torch.randint(1, 20, (NUM, 9), generator=torch.Generator().manual_seed(0))
TEXT[1, 5:] = TEXT[4, 7:] = 0  # shorter ones
HIDDEN = torch.where(torch.arange(9) % 3 == 1, TEXT, 0)
OBJECTIVES: dict[str, Callable[[], tuple[Objective, int, Tensor]]] = {
    "classify": lambda: (Classify(), 3, torch.arange(NUM) % 3),
    "distill": lambda: (
        plug.load("vitrail.objective", "distill").Objective(Classify(), lambda image: image[:, :, 0, 0]),
        3,
        torch.arange(NUM) % 3,
    ),
    "regress": lambda: (plug.load("vitrail.objective", "regress").Objective(mean=2.0, std=3.0), 1, torch.randn(NUM)),
}
"""For each objective on images: an example of it, the outputs of a model for it, and labels."""
TEXT_OBJECTIVES: dict[str, tuple[dict[str, Any], Fields]] = {
    "next_token": ({"family": "language"}, {"text": TEXT}),
    "masked_tokens": ({"family": "language", "causal": False}, {"text": TEXT.clone(), "target": HIDDEN}),
    "translate": ({"family": "seq2seq"}, {"source": TEXT, "target": TEXT.flip(0)}),
}
"""For each objective on text: the model for it, and fields."""
SMALL_TEXT = {"vocab": 20, "pad": 0, "context": 12, "width": 16, "depth": 1, "heads": 2, "hidden": 32}
MODELS = {
    "vit": "vit_mu_patch4_gap_16",
    "bit": "resnetv2_50x1_bit",
    "resnet": "resnet26_sasa_32",
    "linear": "linear_16",
    "perceiver": "perceiver_mu_32",
}
"""A small model of each architecture."""


def check_objective(objective: Objective, num_outputs: int, labels: Tensor) -> None:
    """Assert the contract of an objective."""
    torch.manual_seed(0)
    model = catalogue.create_model("vit_mu_patch4_gap_16", num_classes=num_outputs)
    nn.init.normal_(model.head.weight)
    check_losses(objective, model, {"image": IMAGES, "label": labels}, {"image": IMAGES})


def check_losses(objective: Objective, model: Model, fields: Fields, unlabelled: Fields | None) -> None:
    """Assert the contract of an objective with a model; texts have no labels besides themselves."""
    assert isinstance(objective, Objective)
    assert isinstance(objective.metric, Metric)
    assert set(objective.READS) <= fields.keys()
    losses, units = objective(model, fields), objective.units(fields)
    assert losses.shape == units.shape == (NUM,), "a loss and a number of units per sample"
    assert bool((units > 0).all())
    losses.sum().backward()
    assert any(bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None)
    with torch.no_grad():
        model.eval()
        whole = objective(model, fields)
        if not objective.COUPLED:
            parts = torch.cat([objective(model, part) for part in split_fields(fields, 4)])
            assert torch.allclose(whole, parts, atol=1e-5), "no sample's loss depends on the others"
        answers = objective.answers(model, fields)
        assert all(len(tensor) == NUM for tensor in answers.values()), "one answer per sample"
        if unlabelled is not None:
            without = objective.answers(model, unlabelled)
            assert without.keys() < answers.keys(), "answers need no labels"
    score = objective.score(answers)
    assert isinstance(score, Score)
    assert score.metric == objective.metric
    assert score.n == NUM
    assert np.isfinite([score.value, score.error, score.loss]).all()
    assert objective.sample_losses(answers).shape == (NUM,)
    assert not np.isfinite(objective.score({name: tensor[:0] for name, tensor in answers.items()}).loss)


PLACES = torch.arange(16).expand(NUM, 16)
HIDING = {"hidden": PLACES[:, :8], "shown": PLACES[:, 8:]}
HIDING_OBJECTIVES: dict[str, dict[str, Any]] = {
    "masked_patches": {"cell": (4, 4), "width": 32},
    "mae": {"cell": (4, 4), "width": 32, "decoder_width": 16, "decoder_depth": 1},
}
"""The options of each objective that hides patches."""


@pytest.mark.parametrize("name", plug.entries("vitrail.objective"))
def test_objectives(name: str) -> None:
    if name in HIDING_OBJECTIVES:
        torch.manual_seed(0)
        objective = plug.load("vitrail.objective", name).Objective(**HIDING_OBJECTIVES[name])
        fields = {"image": IMAGES, **HIDING, "label": torch.arange(NUM) % 3}
        model = catalogue.create_model(MODELS["vit"], num_classes=0)
        check_losses(objective, model, fields, {"image": IMAGES, **HIDING})
        return
    if name == "contrast":
        model, fields = new_vatt(), new_fields(NUM)
        check_losses(new_contrast(model), model, {**fields, "label": torch.arange(NUM) % 3}, fields)
        return
    if name in TEXT_OBJECTIVES:
        torch.manual_seed(0)
        options, fields = TEXT_OBJECTIVES[name]
        objective = plug.load("vitrail.objective", name).Objective(pad=0)
        check_losses(objective, small_text_model(**options), fields, None)
        expected = {"next_token": TEXT[:, 1:], "masked_tokens": HIDDEN, "translate": TEXT.flip(0)[:, 1:]}[name]
        assert torch.equal(objective.units(fields), (expected != 0).sum(dim=1).float()), "padding does not count"
        return
    objective, num_outputs, labels = OBJECTIVES[name]()
    assert type(objective) is plug.load("vitrail.objective", name).Objective
    check_objective(objective, num_outputs, labels)


def small_text_model(family: str, **fields: Any) -> Any:
    module = plug.load(catalogue.MODELS, family)
    return module.Model(module.Spec.parse({**SMALL_TEXT, **fields}))


class MeanLoss(Classify):
    """One loss for the whole batch."""

    def forward(self, model: nn.Module, fields: Fields) -> Tensor:
        return super().forward(model, fields).mean()


class BatchLoss(Classify):
    """Losses relative to those of the batch."""

    def forward(self, model: nn.Module, fields: Fields) -> Tensor:
        losses = super().forward(model, fields)
        return losses / losses.sum()


class Greedy(Classify):
    """Answers only for the first samples."""

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        return {name: tensor[:2] for name, tensor in super().answers(model, fields).items()}


class Optimist(Classify):
    """A score of nothing that looks like one."""

    def score(self, answers: Fields) -> Score:
        return Score(self.metric, 1.0, 0.0, 0.0, len(answers["logits"]))


class OtherMetric(Classify):
    """A score of another metric."""

    def score(self, answers: Fields) -> Score:
        return super().score(answers)._replace(metric=Metric("other", "other"))


@pytest.mark.parametrize("broken", [MeanLoss, BatchLoss, Greedy, Optimist, OtherMetric])
def test_a_broken_objective_is_found(broken: type[Classify]) -> None:
    with pytest.raises(AssertionError):
        check_objective(broken(), 3, torch.arange(NUM) % 3)


def check_model(model: Any) -> None:
    """Assert the contract of every model."""
    assert isinstance(model, Model)
    assert model.TAKES
    assert isinstance(model.about, About)
    assert all(isinstance(head, nn.Module) for head in model.heads)
    towers: list[tuple[Any, ...]] = [()]
    if isinstance(model, Classifier):
        inputs = [torch.randn(2, model.spec.channels, *model.spec.image_size)]
    elif hasattr(model, "towers"):
        towers, fields = [(name,) for name in model.TAKES], new_fields(2)
        inputs = [fields[name] for name in model.TAKES]
    else:
        inputs = [torch.randint(0, model.spec.vocab, (2, 7)) for _ in model.TAKES]
    for tower, x in zip(towers, inputs, strict=False):  # a decoder's input has no tokens of its own
        tokens = model.tokenize(*tower, x)
        assert isinstance(tokens, Tokens)
        assert tokens.x.shape[:2] == (2, tokens.layout.num_tokens)
        assert isinstance(model.encode(*tower, tokens), Tokens)
    assert model.flops() > 0
    assert len(model(*inputs)) == 2


def check_classifier(model: Any) -> None:
    """Assert the contract of a classifier."""
    check_model(model)
    assert isinstance(model, Classifier)
    assert model.TAKES == ("image",)
    images = torch.randn(2, model.spec.channels, *model.spec.image_size)
    with torch.no_grad():
        encoded = model.encode(model.tokenize(images))
        assert torch.equal(model.classify(encoded), model(images)), "forward is its steps"
        width = model.pool(encoded).shape[1]
    assert model.first_weight in model.state_dict()
    model.replace_head(7)
    assert model(images).shape == (2, 7)
    assert not any(bool(parameter.any()) for head in model.heads for parameter in head.parameters())
    model.replace_head(0)
    assert model(images).shape == (2, width)


@pytest.mark.parametrize("name", plug.entries(catalogue.MODELS))
def test_models(name: str) -> None:
    if name == "vatt":
        check_model(new_vatt().eval())
        return
    if name not in MODELS:
        check_model(small_text_model(name).eval())
        return
    options = {"image_size": 32, "layers": (1, 1, 1, 1)} if name == "bit" else {}
    check_classifier(catalogue.create_model(MODELS[name], num_classes=3, **options).eval())


@pytest.mark.parametrize("member", ["tokenize", "encode", "pool", "replace_head", "first_weight", "flops"])
def test_a_broken_model_is_found(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = catalogue.create_model("vit_mu_patch4_gap_16", num_classes=3).eval()
    monkeypatch.setattr(type(model), member, lambda *_: None)
    with pytest.raises((AssertionError, AttributeError, TypeError)):
        check_classifier(model)


def check_preparation(prepare: Any, varied: Any, source: Any = None) -> None:
    """Assert the contract of a preparation, and of the same one that varies."""
    source = table_of([0, 1] * 5, side=20) if source is None else source
    read = prepare.reader(source)
    samples = [read(item) for item in source]
    assert not prepare.varies
    assert varied.varies
    stored = [varied.reader(source)(item) for item in source]
    first, again, other = (varied.vary(stored[0], np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, again), "a pure function of the sample and the generator"
    assert not np.array_equal(first, other)
    rows = prepare.new_rows(len(samples))
    for row, sample in enumerate(samples):
        rows.put(row, sample)
    fields = rows.stack()
    assert all(len(tensor) == len(samples) for tensor in fields.values())
    some = rows.stack([1, 3])
    assert all(torch.equal(some[name], tensor[[1, 3]]) for name, tensor in fields.items())
    assert prepare.group >= 1
    assert prepare.repeats >= 1
    assert prepare.draws >= 0
    assert prepare.cached(source, 1.0) is not None
    lengths = prepare.lengths(source)
    assert lengths is None or len(lengths) == len(source)
    reduced = prepare.reduced(0.5, (4,) * len(getattr(getattr(prepare, "preprocess", None), "size", (4, 4))))
    smaller = reduced.new_rows(1)
    smaller.put(0, reduced.reader(source)(source[0]))
    if reduced is not prepare:  # a sound has no lower resolution
        assert all(smaller.stack()[name].numel() < tensor[:1].numel() for name, tensor in fields.items())
    prepare.flush()


CLIPS: dict[str, tuple[type, Callable[[], list[bytes]]]] = {
    "sound": (SoundPreparation, lambda: [noise_wav(number) for number in range(10)]),
    "video": (VideoPreparation, lambda: [ramp_video(num_frames=60)] * 10),
}
PREPARATIONS = {
    "image": lambda **fields: ImagePreparation(preprocess=Preprocess(size=(16, 16)), **fields),
}


@pytest.mark.parametrize("name", plug.entries("vitrail.data.prepare"))
def test_preparations(name: str) -> None:
    entry = plug.load("vitrail.data.prepare", name)
    assert entry.FIELDS
    assert entry.Spec.parse({}) == entry.Spec()
    if name == "text":
        options: dict[str, Any] = {"context": 4, "pad": 0, "crops": True}
        source = replace(table_of([0] * 5, side=20), content=lambda index: np.arange(1, 9) * (1 + index))
        check_preparation(TextPreparation(**options), TextPreparation(**options, training=True), source)
        return
    if name in CLIPS:
        prepare, clips = CLIPS[name]
        source = replace(table_of([0, 1] * 5, side=20), content=clips().__getitem__)
        check_preparation(prepare(preprocess=entry.Spec()), prepare(preprocess=entry.Spec(), training=True), source)
        return
    check_preparation(PREPARATIONS[name](), PREPARATIONS[name](augment=Augment()))


class Stateful(ImagePreparation):
    """Augmentation that does not depend on the generator alone."""

    def vary(self, sample: Any, rng: np.random.Generator) -> Any:
        return super().vary(sample, np.random.default_rng())


class AllRows(ImagePreparation):
    """Rows that cannot be left out."""

    def new_rows(self, num: int) -> ImageRows:
        rows = super().new_rows(num)
        rows.stack = lambda *_: {"image": rows.images}  # type: ignore[method-assign]
        return rows


@pytest.mark.parametrize("broken", [Stateful, AllRows])
def test_a_broken_preparation_is_found(broken: type[ImagePreparation]) -> None:
    with pytest.raises(AssertionError):
        check_preparation(
            broken(preprocess=Preprocess(size=(16, 16))),
            broken(preprocess=Preprocess(size=(16, 16)), augment=Augment()),
        )


@pytest.mark.parametrize("name", plug.entries("vitrail.kind"))
def test_kinds(name: str) -> None:
    """A kind has everything that `vitrail train` asks of it."""
    kind = plug.load("vitrail.kind", name)
    for member in (
        "make_splits",
        "model_factory",
        "new_model",
        "new_objective",
        "preparation",
        "finish",
        "write_report",
    ):
        assert callable(getattr(kind, member))
    assert kind.NOUN.endswith("s")
