"""Every architecture: three named steps, a correct layout, a correct FLOP count, a replaceable head."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import fill
from vitrail import create_model, plug
from vitrail.catalogue import build, on_meta, spec_named
from vitrail.contract import Classifier
from vitrail.errors import ShapeError, SpecError, UnknownNameError
from vitrail.tokens import Layout, Tokens

VIT = "vit_mu_patch16_224"
STEREO: dict[str, Any] = {"image_size": (256,), "stem": {"name": "patch", "patch": (16,)}}
VIDEO: dict[str, Any] = {"image_size": (8, 32, 48), "stem": {"name": "patch", "patch": (2, 8, 16)}}
# A small model of each kind; the number of prefix tokens is a classic source of mistakes.
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_mu_patch16_224", {"image_size": 64}),
    "non-square": ("vit_mu_patch16_224", {"image_size": (48, 80)}),
    "mean": ("vit_mu_patch16_224", {"image_size": 64, "pool": "mean", "class_token": False, "norm_after_pool": True}),
    "mean-with-class-token": ("vit_mu_patch16_224", {"image_size": 64, "pool": "mean"}),
    "attention-pool": ("vit_mu_patch16_224", {"image_size": 64, "pool": "attention"}),
    "distilled": ("vit_mu_patch16_224", {"image_size": 64, "distilled": True}),
    "registers": ("vit_mu_patch16_224", {"image_size": 64, "registers": 4, "position_prefix": 1}),
    "all-tokens": ("vit_mu_patch16_224", {"image_size": 64, "registers": 3, "distilled": True}),
    "pre_logits": ("vit_mu_patch16_224", {"image_size": 64, "pre_logits": 24}),
    "sincos_1d": ("vit_mu_patch16_224", {"image_size": 64, "position": "sincos_1d"}),
    "sincos_2d": ("vit_mu_patch16_224", {"image_size": 64, "position": "sincos_2d"}),
    "rotary_2d": ("vit_mu_patch16_224", {"image_size": 64, "position": "rotary_2d"}),
    "dinov3": ("vit_mu_patch16_dinov3_qkvb", {"image_size": (48, 80), "mlp": "swiglu"}),
    "no-position": ("vit_mu_patch16_224", {"image_size": 64, "position": "none"}),
    "layer-scale": ("vit_mu_patch16_224", {"image_size": 64, "layer_scale": 0.1, "qkv_bias": False}),
    "patch2": ("vit_mu_patch2_16", {}),
    "patch14": ("vit_mu_patch14_56", {}),
    "patch-non-square": ("vit_mu_patch16_224", {"image_size": (32, 64), "stem": {"name": "patch", "patch": (8, 16)}}),
    "local": (VIT, {"image_size": (48, 160), "registers": 2, "attention": {"name": "local", "window": 3}}),
    "local-relative": (VIT, {"image_size": 64, "attention": {"name": "local", "window": 3, "relative": True}}),
    "axial": (VIT, {"image_size": (48, 80), "registers": 2, "attention": "axial"}),
    "axial-video": (VIT, {**VIDEO, "channels": 2, "attention": "axial", "pool": "mean", "class_token": False}),
    "five-channels": ("vit_mu_patch16_224", {"image_size": 64, "channels": 5}),
    "hybrid": ("vit_mu_r50_s16_224", {"image_size": 64, "stem": {"name": "hybrid", "layers": (1, 2, 1)}}),
    "hybrid-root": ("vit_mu_r_s16_p8_224", {"image_size": 64}),
    "bit": ("resnetv2_50x1_bit", {"image_size": (64, 96), "layers": (1, 1, 1, 1)}),
    "bit-odd": ("resnetv2_50x1_bit", {"image_size": (75, 50), "layers": (1, 2, 1, 1)}),
    "resnet": ("resnet26_32", {"layers": (1, 1, 1)}),
    "resnet-sasa": ("resnet26_sasa_32", {"image_size": (16, 24), "layers": (1, 1)}),
    "resnet-lrnet": ("resnet26_lrnet_32", {"image_size": (17, 21), "layers": (1, 1)}),
    "resnet-axial": ("resnet26_axial_32", {"image_size": (16, 24), "layers": (1, 1)}),
    "resnet-augmented": ("resnet26_augmented_32", {"image_size": 16, "layers": (1, 1)}),
    "san-pairwise": ("san10_pairwise_32", {"image_size": 16, "layers": (1, 1)}),
    "san-patchwise": ("san10_patchwise_32", {"image_size": 16, "layers": (1, 1)}),
    "linear": ("linear_16", {"image_size": (16, 24)}),
    "perceiver": ("perceiver_mu_32", {"image_size": (12, 20)}),
    "perceiver-unshared": ("perceiver_mu_32", {"image_size": 12, "share_weights": False, "num_stages": 3}),
    "perceiver-cross-heads": ("perceiver_mu_32", {"image_size": 12, "cross_heads": 2, "cross_width": 24}),
    "perceiver-sound": ("perceiver_mu_32", {"image_size": (50,), "resolution": None, "channels": 2}),
    "perceiver-video": ("perceiver_mu_32", {"image_size": (3, 4, 6), "resolution": None, "channels": 2}),
    "sound": (VIT, {**STEREO, "channels": 2}),
    "sound-sincos": (VIT, {**STEREO, "channels": 2, "position": "sincos_1d", "pool": "mean"}),
    "video": (VIT, {**VIDEO, "channels": 2}),
    "video-sincos": (VIT, {**VIDEO, "channels": 2, "position": "sincos_3d", "registers": 2, "pool": "attention"}),
}


def make_model(kind: str, **more: Any) -> Any:
    name, fields = SMALL[kind]
    return fill(create_model(name, num_classes=10, **fields, **more)).eval()


def image_for(model: Any, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, model.spec.channels, *model.spec.image_size)


@pytest.mark.parametrize("name", plug.entries("vitrail.model"))
def test_an_architecture_file_has_what_the_catalogue_needs(name: str) -> None:
    module = plug.load("vitrail.model", name)
    assert module.__doc__
    assert "arXiv" in module.__doc__
    if not issubclass(module.Model, Classifier):
        assert not hasattr(module, "spec_named"), "only classifiers are in the catalogue"
        return
    assert module.spec_named("no such model") is None
    for part in ("tokenize", "encode", "pool", "classify", "forward", "flops", "replace_head", "first_weight"):
        assert hasattr(module.Model, part)


@pytest.mark.parametrize("kind", SMALL)
def test_the_forward_pass_is_three_steps(kind: str) -> None:
    model = make_model(kind)
    image = image_for(model)
    with torch.no_grad():
        tokens = model.tokenize(image)
        assert tokens.x.shape[1] == tokens.layout.num_tokens
        encoded = model.encode(tokens)
        layout = getattr(model.spec, "latent_layout", model.spec.layout)  # the Perceiver's outputs are its latents
        assert encoded.layout == layout
        assert encoded.x.shape == (2, layout.num_tokens, model.spec.width)
        logits = model.classify(encoded)
        assert torch.equal(logits, model(image))
    assert logits.shape == (2, 10)
    assert logits.std() > 1e-3


# Local attention counts the pairs of its windows; blocks compute more (test_local_attention.py counts those).
@pytest.mark.parametrize("kind", [kind for kind in SMALL if not kind.startswith("local")])
def test_flops_match_pytorchs_counter(kind: str) -> None:
    model = make_model(kind).requires_grad_(False)
    # The counter has no formula for the fused CPU kernel, so it gets the unfused one.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(image_for(model, 1))
    assert model.flops() == counter.get_total_flops()


@pytest.mark.parametrize("kind", SMALL)
def test_compiled_and_exported_models_compute_the_same(kind: str) -> None:
    torch._dynamo.reset()
    has_blocks = hasattr(spec_named(SMALL[kind][0]), "depth")
    model = make_model(kind, **({"depth": 1} if has_blocks and kind != "vit" else {}))
    image = image_for(model)
    with torch.no_grad():
        expected = model(image)
        exported = torch.export.export(model, (image,)).module()
        assert torch.allclose(exported(image), expected, atol=1e-5)
        tokens = model.tokenize(image)
        # Tokens pass through as arguments and as results, with their layout.
        encoded = torch.compile(model.encode, backend="eager", fullgraph=True)(tokens)
        assert isinstance(encoded, Tokens)
        assert encoded.layout == model.encode(tokens).layout
        assert torch.allclose(torch.compile(model, backend="eager", fullgraph=True)(image), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by PyTorch's own compiler
def test_the_inductor_compiles_a_vit() -> None:
    model = make_model("registers")
    image = image_for(model)
    with torch.no_grad():
        assert torch.allclose(torch.compile(model)(image), model(image), atol=1e-4)


def test_encode_can_be_exported_alone() -> None:
    model = make_model("registers").requires_grad_(False)
    tokens = model.tokenize(image_for(model))

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Tokens) -> Tokens:
            return self.model.encode(tokens)

    exported = torch.export.export(Encoder(), (tokens,)).module()
    assert torch.allclose(exported(tokens).x, model.encode(tokens).x, atol=1e-5)
    assert exported(tokens).layout == tokens.layout


@pytest.mark.parametrize("kind", ["sincos_1d", "sincos_2d", "sound-sincos", "video-sincos"])
def test_a_fixed_table_is_built_once_and_is_not_a_weight(kind: str) -> None:
    model = make_model(kind)
    assert model.position_table(model.spec.layout.grid) is model.pos_fixed
    assert "pos_fixed" not in model.state_dict()
    with on_meta():
        assert not build(model.spec).pos_fixed.is_meta  # so that loading weights completes a meta model


OTHER_SIZES = {
    **dict.fromkeys(["vit", "registers", "sincos_2d", "rotary_2d", "dinov3", "attention-pool"], (96, 128)),
    "hybrid-root": (96, 128),
    **dict.fromkeys(["local", "local-relative", "axial"], (96, 144)),
    **dict.fromkeys(["sound", "sound-sincos"], (400,)),
    **dict.fromkeys(["video", "video-sincos", "axial-video"], (4, 40, 64)),
}


@pytest.mark.parametrize("kind", OTHER_SIZES)
def test_another_image_size_at_run_time(kind: str) -> None:
    """A learned table is resized, a fixed one rebuilt; the result is that of a model built for the size."""
    model, size = make_model(kind), OTHER_SIZES[kind]
    image = torch.randn(1, model.spec.channels, *size)
    with torch.no_grad():
        state = dict(model.state_dict())
        if model.pos_embed is not None:
            state["pos_embed"] = model.position_table(model.patch_embed(image).layout.grid)
        built = build(model.spec.override({"image_size": size})).eval()
        built.load_state_dict(state)
        assert torch.allclose(model(image), built(image), atol=1e-5)


@pytest.mark.parametrize("kind", ["vit", "distilled", "bit", "resnet-sasa", "linear", "perceiver"])
def test_a_replaced_head_is_zero(kind: str) -> None:
    model = make_model(kind)
    model.replace_head(3)
    assert model.spec.num_classes == 3
    with torch.no_grad():
        assert torch.equal(model(image_for(model)), torch.zeros(2, 3))


def test_a_new_model_has_a_zero_head() -> None:
    assert create_model("vit_mu_patch16_224").head.weight.abs().max() == 0


def test_masked_tokens_do_not_count_in_the_mean() -> None:
    model = make_model("mean")
    tokens = model.tokenize(image_for(model))
    mask = torch.arange(16)[None].expand(2, 16) < 10
    with torch.no_grad():
        short = Tokens(tokens.x[:, :10], Layout((10,)))
        assert torch.allclose(
            model.pool(model.encode(tokens._replace(mask=mask))), model.pool(model.encode(short)), atol=1e-5
        )


@pytest.mark.parametrize("field", ["drop_path_rate", "dropout_rate"])
def test_drop_path_and_dropout_act_in_training_only(field: str) -> None:
    model = make_model("vit", **{field: 0.5})
    image = image_for(model, batch=16)
    with torch.no_grad():
        assert torch.equal(model(image), model(image))
        model.train()
        assert not torch.equal(model(image), model(image))


def test_drop_path_grows_with_depth_and_preserves_the_mean() -> None:
    model = make_model("vit", drop_path_rate=0.5)
    assert [block.drop_path.rate for block in model.blocks] == [0.0, 0.5]
    dropped = model.blocks[1].drop_path.train()(torch.ones(4000, 3))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(dropped[:, 0], dropped[:, 2])
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"heads": 5}, ["heads must divide width", "heads=5, width=32", "1, 2, 4, 8, 16, 32"]),
        ({"image_size": 100}, ["patch must divide", "100 x 100, patch 16 x 16", "96 x 96 or 112 x 112"]),
        ({"hedas": 5}, ["no setting 'hedas'", "hedas=5", "heads"]),
        ({"width": "64"}, ["width", "'64' (str)", "Try width=64, without quotes."]),
        ({"norm_eps": "1e-6"}, ["norm_eps", "Try norm_eps=1e-06, without quotes."]),
        ({"class_token": False}, ["needs a class token", "pool=mean"]),
        ({"distilled": True, "pool": "mean"}, ["needs a class token and pool=token"]),
        ({"registers": 2, "position_prefix": 4}, ["position_prefix exceeds", "position_prefix=4, 3 prefix tokens"]),
        ({"depth": 0}, ["depth", "greater than 0"]),
        ({"stem": "convs"}, ["no stem has this name", "conv"]),
        ({"stem": {"name": "conv", "units": [1]}}, ["one entry per convolution", "3, 3 and 1 entries"]),
        ({"attention": "fulll"}, ["no attention has this name", "full"]),
        ({"position": "sincos_2d", "width": 30, "heads": 1}, ["width divisible by 4", "width=30", "width=32"]),
        ({"image_size": (64,)}, ["patches of 2 dimensions", "input of 1", "patch 16 x 16", "one side for each axis"]),
        ({"image_size": (2, 2, 2, 2)}, ["image_size", "at most 3"]),
        ({**STEREO, "image_size": (100,)}, ["patch must divide the input size", "100, patch 16", "96 or 112"]),
        ({**VIDEO, "position": "sincos_2d"}, ["needs a grid of 2 dimensions", "4 x 4 x 3", "sincos_3d"]),
        ({"position": "sincos_3d"}, ["needs a grid of 3 dimensions", "14 x 14", "sincos_2d"]),
        ({**VIDEO, "channels": 2, "position": "sincos_3d", "width": 28}, ["divisible by 8", "width=28", "width=32"]),
        (
            {"position": "rotary_2d", "heads": 16},
            ["rotary_2d positions need heads of a width divisible by 4", "heads=16"],
        ),
        ({**STEREO, "position": "rotary_2d"}, ["rotary_2d needs a grid of 2 dimensions", "grid of 16", "sincos_1d"]),
        ({"mlp": "swiglu", "activation": "gelu_tanh"}, ["gated MLP has its own activation", "activation=gelu_tanh"]),
        (
            {"attention": {"name": "local", "window": 3, "relative": True}, "heads": 32},
            ["at least two numbers", "heads=16"],
        ),
        ({"mlp": "glu"}, ["mlp", "'mlp' or 'swiglu'", "'glu'"]),
        ({"qkv_bias": "q"}, ["qkv_bias", "'qv'", "'q'"]),
        ({"attention": {"name": "full", "window": 7}}, ["no setting 'window'"]),
        ({"attention": 3}, ["attention needs a name"]),
    ],
)
def test_bad_specifications(fields: dict[str, Any], words: list[str]) -> None:
    def build_and_run() -> None:
        model = create_model("vit_mu_patch16_224", **fields)
        model(image_for(model))

    with pytest.raises((SpecError, ShapeError, UnknownNameError)) as caught:
        build_and_run()
    for word in words:
        assert word in str(caught.value)


def test_the_weights_of_a_block_have_timms_names() -> None:
    names = [name for name in make_model("layer-scale").state_dict() if name.startswith("blocks.1.")]
    parts = ["norm1.weight", "norm1.bias", "attn.qkv.weight", "attn.proj.weight", "attn.proj.bias", "ls1.gamma"]
    parts += ["norm2.weight", "norm2.bias", "mlp.fc1.weight", "mlp.fc1.bias", "mlp.fc2.weight", "mlp.fc2.bias"]
    assert names == [f"blocks.1.{part}" for part in [*parts, "ls2.gamma"]]


@pytest.mark.parametrize("attention", ["full", {"name": "full"}])
def test_specifications_of_earlier_versions_are_read(attention: Any) -> None:
    spec = spec_named("vit_mu_patch16_224")
    stored = {**spec.model_dump(mode="json"), "attention": attention}
    assert type(spec).parse(stored) == spec
    assert spec.model_dump(mode="json")["attention"] == {"name": "full"}
    assert spec.override_words(["attention=full"]) == spec


def test_an_image_size_that_the_patch_does_not_divide() -> None:
    with pytest.raises(ShapeError, match=r"patch must divide"):
        make_model("vit")(torch.randn(1, 3, 64, 70))


def test_an_unknown_model_lists_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"vit_base_patch16_224"):
        create_model("vit_bas_patch16_224")
    with pytest.raises(UnknownNameError, match=r"deit_tiny_patch16_224") as refused:
        create_model("deit_tiny_patch16_244")
    assert "244" in refused.value.got


def test_a_linear_classifier_takes_images_of_one_size() -> None:
    with pytest.raises(ShapeError, match="one weight per pixel") as refused:
        make_model("linear")(torch.randn(2, 3, 16, 16))
    assert refused.value.hint == "16 x 24."


def test_a_linear_classifier_is_linear() -> None:
    model = make_model("linear").double()
    one, other = (image_for(model).double() for _ in range(2))
    mixed = model(0.3 * one + 0.7 * other)
    assert torch.allclose(mixed, 0.3 * model(one) + 0.7 * model(other))
