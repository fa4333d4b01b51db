"""VATT: its towers, its common spaces, shared blocks, DropToken, and what its specification refuses."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.contract.small_vatt import IMAGE, SMALL, SOUND, TEXT, VIDEO, new_contrast, new_fields, new_spec, new_vatt
from vitrail import create_model
from vitrail.batch import apply_model
from vitrail.errors import ShapeError, SpecError, UnknownNameError
from vitrail.training.ema import Ema
from vitrail.training.learner import Learner


def test_the_spaces_are_the_papers() -> None:
    """Video and sound meet in the fine space; video and text in the coarse one (section 3.3)."""
    spec = new_spec(TEXT, VIDEO, SOUND)
    assert spec.takes == ("text", "video", "sound")
    assert spec.outputs == (("video", "fine"), ("sound", "fine"), ("video", "coarse"), ("text", "coarse"))
    assert spec.pairs == ((0, 1), (2, 3))
    assert spec.level_between("sound", "text") == "coarse"
    assert spec.level_between("sound", "video") == "fine"
    everything = new_spec(TEXT, VIDEO, SOUND, all_pairs=True)
    coarse = (("video", "coarse"), ("sound", "coarse"), ("text", "coarse"))
    assert everything.outputs == (("video", "fine"), ("sound", "fine"), *coarse)
    assert everything.pairs == ((0, 1), (2, 4), (3, 4))


@pytest.mark.parametrize(
    ("towers", "fields", "outputs", "pairs"),
    [
        ((IMAGE, SOUND, TEXT), {"hierarchical": False}, ("image", "sound", "text"), ((0, 1), (0, 2))),
        (
            (SOUND, TEXT, IMAGE),
            {"hierarchical": False, "all_pairs": True},
            ("sound", "image", "text"),
            ((1, 0), (1, 2), (0, 2)),
        ),
        ((SOUND, IMAGE), {}, ("sound", "image"), ((1, 0),)),
        ((TEXT, IMAGE), {}, ("image", "text"), ((0, 1),)),
        ((SOUND, TEXT), {}, ("sound", "text"), ((0, 1),)),
        ((IMAGE, SOUND, VIDEO), {}, ("image", "sound", "video"), ((2, 0), (2, 1))),
    ],
)
def test_one_space(towers: Any, fields: dict[str, Any], outputs: tuple[str, ...], pairs: Any) -> None:
    spec = new_spec(*towers, **fields)
    assert spec.outputs == tuple((name, "common") for name in outputs)
    assert spec.pairs == pairs
    assert new_vatt(*towers, **fields).coarsen is None


def test_four_modalities() -> None:
    spec = new_spec(IMAGE, SOUND, TEXT, VIDEO)
    fine = (("image", "fine"), ("sound", "fine"), ("video", "fine"))
    assert spec.outputs == (*fine, ("video", "coarse"), ("text", "coarse"))
    assert spec.pairs == ((2, 0), (2, 1), (3, 4))


def test_a_specification_survives_yaml() -> None:
    spec = new_spec(shared=True, drop_token_rate=0.5)
    for again in (type(spec).parse_yaml(spec.to_yaml()), type(spec).parse(spec.model_dump(mode="json"))):
        assert again == spec
        assert type(again.towers[2].spec) is type(spec.towers[2].spec)
    assert spec.towers[0].spec.num_classes == 0
    assert not spec.towers[2].spec.causal
    assert spec.override({"embed_width": 8}).embed_width == 8


@pytest.mark.parametrize(
    ("towers", "fields", "words"),
    [
        ((IMAGE,), {}, ["towers", "at least 2"]),
        ((IMAGE, IMAGE), {}, ["each modality has one tower", "image, image"]),
        ((IMAGE, {**SOUND, "family": "vitt"}), {}, ["no model has this name", "vitt", "vit"]),
        ((IMAGE, {**SOUND, "name": "smell"}), {}, ["towers.1.name", "'smell'"]),
        ((IMAGE, {**TEXT, "name": "sound"}), {}, ["does not take sound", "family=language", "family=vit"]),
        ((IMAGE, {**SOUND, "name": "text"}), {}, ["does not take text", "family=vit", "family=language"]),
        ((IMAGE, {**TEXT, "family": "seq2seq"}), {}, ["does not take text", "family=seq2seq"]),
        ((IMAGE, {**SOUND, "spec": {**SOUND["spec"], "hedas": 1}}), {}, ["no setting 'hedas'", "heads"]),
        ((IMAGE, {**SOUND, "spec": 3}), {}, ["spec of a tower is a mapping", "3", "model/vit.py"]),
        ((IMAGE, {**SOUND, "spec": {**SOUND["spec"], "num_classes": 7}}), {}, ["without a head", "num_classes=0"]),
        ((IMAGE, {**TEXT, "spec": {**TEXT["spec"], "causal": True}}), {}, ["all it sees", "causal=False"]),
        ((IMAGE, {**SOUND, "spec": {**SOUND["spec"], "pre_logits": 7}}), {}, ["without a head", "pre_logits=null"]),
        ((IMAGE, SOUND), {"drop_token_rate": 1.0}, ["drop_token_rate", "less than 1"]),
        ((IMAGE, SOUND), {"embed_width": 0}, ["embed_width", "greater than 0"]),
    ],
)
def test_bad_specifications(towers: Any, fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((SpecError, UnknownNameError)) as refused:
        new_spec(*towers, **fields)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"width": 64}, ["the same width", "width=32 for image, width=64 for sound", "shared=False"]),
        ({"depth": 1}, ["the same depth"]),
        ({"heads": 4}, ["the same heads"]),
        ({"hidden": 32}, ["the same hidden"]),
    ],
)
def test_towers_that_cannot_share(changed: dict[str, Any], words: list[str]) -> None:
    other = {**SOUND, "spec": {**SOUND["spec"], **changed}}
    assert new_spec(IMAGE, other)
    with pytest.raises(SpecError) as refused:
        new_spec(IMAGE, other, shared=True)
    for word in words:
        assert word in str(refused.value)


def test_blocks_that_cannot_be_shared() -> None:
    rotary = {**TEXT, "spec": {**TEXT["spec"], "position": "rotary"}}
    assert new_vatt(IMAGE, rotary).towers["text"].rotary is not None
    with pytest.raises(SpecError, match=r"added before them[\s\S]*position=rotary for text[\s\S]*position=learned"):
        new_spec(IMAGE, rotary, shared=True)
    axial = {**IMAGE, "spec": {**IMAGE["spec"], "attention": "axial"}}
    with pytest.raises(SpecError, match=r"full attention[\s\S]*attention=axial, position=learned for image"):
        new_spec(axial, TEXT, shared=True)
    linear = {"name": "image", "family": "linear", "spec": {"image_size": 16}}
    with pytest.raises(SpecError, match=r"cannot share its blocks[\s\S]*family=linear for image"):
        new_spec(linear, TEXT, shared=True)


def test_dropped_tokens_need_an_attention_without_a_grid() -> None:
    axial = {**IMAGE, "spec": {**IMAGE["spec"], "attention": "axial"}}
    with pytest.raises(SpecError, match=r"gaps in the grid[\s\S]*attention=axial for image[\s\S]*drop_token_rate=0"):
        new_spec(axial, SOUND, drop_token_rate=0.5)


@pytest.mark.parametrize("num_texts", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_forward_is_the_embeddings_of_each_modality(num_texts: int, shared: bool) -> None:
    model, fields = new_vatt(shared=shared).eval(), new_fields(5, num_texts)
    with torch.no_grad():
        found = apply_model(model, fields)
        each = {name: model.embed(name, fields[name]) for name in model.TAKES}
    assert found.shape == (5, 3 + num_texts, 16)
    assert torch.allclose(found.norm(dim=2), torch.ones(5, 3 + num_texts))
    for row, (name, level) in enumerate(model.spec.outputs[:-1]):
        assert torch.equal(found[:, row], each[name][level])
    texts = each["text"]["coarse"]
    assert torch.equal(found[:, 3:], texts if num_texts > 1 else texts[:, None])
    assert each["sound"].keys() == {"fine", "coarse"}, "so that sound and text can be compared"
    assert each["text"].keys() == {"coarse"}


def test_an_embedding_depends_on_its_sample_alone() -> None:
    """Not on the batch, nor on the padding of a text."""
    model, fields = new_vatt().train(), new_fields(5)
    with torch.no_grad():
        whole = apply_model(model, fields)
        alone = apply_model(model, {name: tensor[2:3] for name, tensor in fields.items()})
        short = model.embed("text", fields["text"][2:3, :5])["coarse"]
        nothing = apply_model(model, {name: tensor[:0] for name, tensor in fields.items()})
    assert torch.allclose(whole[2:3], alone, atol=1e-6)
    assert torch.allclose(alone[:, -1], short, atol=1e-6)
    assert nothing.shape == (0, 4, 16)


def test_texts_are_the_mean_of_their_tokens() -> None:
    model = new_vatt().eval()
    text = torch.tensor([[3, 7, 9, 0, 0, 0]])
    tower = model.towers["text"]
    with torch.no_grad():
        expected = tower.encode(tower.tokenize(text[:, :3])).x.mean(dim=1)
        assert torch.allclose(model.features("text", text), expected, atol=1e-6)


def test_shared_blocks_are_there_once() -> None:
    apart, model = new_vatt(), new_vatt(shared=True)
    names = [name for name in model.state_dict() if ".blocks." in name]
    assert names
    assert all(name.startswith("towers.image.blocks.") for name in names)
    num_blocks = sum(parameter.numel() for parameter in model.towers["image"].blocks.parameters())
    count = [sum(parameter.numel() for parameter in each.parameters()) for each in (apart, model)]
    assert count[0] - count[1] == 2 * num_blocks
    assert len(list(model.parameters())) == len({id(parameter) for parameter in model.parameters()})
    assert model.flops() == apart.flops()


def test_shared_blocks_stay_shared() -> None:
    """After deepcopy, a change of type or mode, a state dict and an EMA."""
    model, fields = new_vatt(shared=True), new_fields(4)
    twin = copy.deepcopy(model).double().eval()
    blocks = twin.towers["image"].blocks
    assert blocks is not model.towers["image"].blocks
    assert all(tower.blocks is blocks for tower in twin.towers.values())
    assert not blocks[0].attn.training
    other = new_vatt(shared=True).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
        other.load_state_dict(model.state_dict())
        expected = apply_model(model.eval(), fields)
        assert torch.equal(apply_model(other, fields), expected)
        doubles = {name: x.double() if x.is_floating_point() else x for name, x in fields.items()}
        assert torch.allclose(apply_model(twin, doubles).float(), expected, atol=1e-4)
        ema = Ema(Learner(model, new_contrast(model)), 0.9)
        for parameter in model.parameters():
            parameter.add_(0.1)
        assert not torch.equal(apply_model(model, fields), expected)
        with ema.applied():
            assert torch.equal(apply_model(model, fields), expected)


@pytest.mark.parametrize("name", ["image", "sound", "text"])
def test_every_modality_trains_shared_blocks(name: str) -> None:
    model, fields = new_vatt(shared=True), new_fields(4)
    next(iter(model.embed(name, fields[name]).values()))[:, 0].sum().backward()
    assert all(bool(parameter.grad.any()) for parameter in model.towers["image"].blocks[1].mlp.parameters())


def test_every_parameter_has_a_gradient() -> None:
    """Or DDP would wait for it."""
    for fields in ({}, {"shared": True}, {"hierarchical": False}):
        model = new_vatt(**fields)
        new_contrast(model)(model, new_fields(5, 3)).sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters())


def test_drop_token_keeps_some_cells_in_training() -> None:
    model, fields = new_vatt(drop_token_rate=0.75), new_fields(3)
    tokens = {name: model.tokenize(name, fields[name]) for name in model.TAKES}
    kept = {name: model.drop_tokens(name, each) for name, each in tokens.items()}
    assert kept["image"].x.shape[1] == 1 + 4, "the class token and a quarter of 16 cells"
    assert kept["sound"].cells.shape[1] == 2
    assert kept["text"] is tokens["text"]
    places = kept["image"].places
    assert all(len(row.unique()) == 4 for row in places)
    assert len(places.unique(dim=0)) > 1, "each sample has its own"
    assert torch.equal(kept["image"].cells[1], tokens["image"].cells[1, places[1]])
    assert not torch.equal(model.drop_tokens("image", tokens["image"]).places, places)
    assert model.eval().drop_tokens("image", tokens["image"]) is tokens["image"]
    with torch.no_grad():
        assert torch.equal(apply_model(model, fields), apply_model(new_vatt().eval(), fields))
    one = new_vatt(drop_token_rate=0.99).train()
    assert one.drop_tokens("sound", one.tokenize("sound", fields["sound"])).cells.shape[1] == 1


def count_flops(model: Any) -> int:
    # The counter has no formula for the fused CPU kernel, so it gets the unfused one.
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
        apply_model(model, new_fields(1))
    return counter.get_total_flops()


@pytest.mark.parametrize("fields", [{}, {"shared": True}, {"hierarchical": False}, {"all_pairs": True}])
def test_flops_match_pytorchs_counter(fields: dict[str, Any]) -> None:
    model = new_vatt(**fields, drop_token_rate=0.5)
    assert model.flops() == count_flops(model.eval())
    assert count_flops(model.train()) < 0.8 * model.flops()


def test_pretrained_weights_load_into_a_tower() -> None:
    fields = {"image_size": 16, "stem": {"name": "patch", "patch": 4}, "num_classes": 0}
    pretrained = create_model("vit_mu_patch4_16", **{**fields, **SMALL}).eval()
    model = new_vatt().eval()
    model.towers["image"].load_state_dict(pretrained.state_dict())
    image = new_fields(2)["image"]
    with torch.no_grad():
        assert torch.equal(model.features("image", image), pretrained(image))


def test_wrong_inputs() -> None:
    model = new_vatt()
    with pytest.raises(ShapeError, match=r"image and sound and text[\s\S]*2 inputs"):
        model(torch.randn(1, 3, 16, 16), torch.randn(1, 1, 64))
    with pytest.raises(UnknownNameError, match=r"no tower has this name[\s\S]*sound"):
        model.embed("sounds", torch.randn(1, 1, 64))
    with pytest.raises(ShapeError, match=re.escape("[batch, up to 8]")):
        model.embed("text", torch.ones(1, 9, dtype=torch.int64))
