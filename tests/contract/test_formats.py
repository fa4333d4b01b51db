"""Every weight format reads back what it writes, bit for bit, also by way of every other format."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
import torch

from tests.conftest import fill
from tests.parity.conftest import timm
from vitrail import catalogue, convert, create_model, plug, save_weights
from vitrail.errors import WeightsError
from vitrail.matching import find_matches, list_candidates
from vitrail.weights.source import FORMATS, Weights, get_format, load_weights
from vitrail.weights.tensor_files import read_tensors, write_tensors

# Each kind of model, with the formats that can store it.
KINDS = {
    "vit": ("vit_mu_patch16_224", {}, {"google", "hf", "timm", "torchvision"}),
    "non-square": ("vit_mu_patch16_224", {"image_size": (64, 96)}, {"google", "hf", "timm", "torchvision"}),
    "headless": ("vit_mu_patch16_224", {"num_classes": 0}, {"google", "hf", "timm", "torchvision"}),
    "pre_logits": ("vit_mu_patch16_224", {"pre_logits": 24}, {"google", "hf", "torchvision"}),
    "distilled": ("deit_tiny_distilled_patch16_224", {"depth": 2}, {"hf", "timm"}),
    "registers": ("vit_small_patch14_reg4_dinov2", {"depth": 2, "position_prefix": 1}, {"hf"}),
    "dinov2": ("vit_small_patch14_dinov2", {"depth": 2}, {"hf", "timm"}),
    "registers-timm": ("vit_medium_patch16_reg4_gap_256", {"depth": 2}, {"timm"}),
    "dinov3": ("vit_mu_patch16_dinov3", {}, {"hf", "timm"}),
    "dinov3-biases": ("vit_mu_patch16_dinov3_qkvb", {"image_size": (64, 96)}, {"hf", "timm"}),
    "dinov3-gated": ("vit_mu_patch16_dinov3_qkvb", {"mlp": "swiglu", "pool": "token"}, {"hf", "timm"}),
    "gated": ("vit_mu_patch16_224", {"mlp": "swiglu"}, set()),
    "no-key-bias": ("vit_mu_patch16_224", {"qkv_bias": "qv"}, set()),
    "key-bias": ("vit_mu_patch16_dinov3", {"qkv_bias": True}, {"hf"}),
    "attention-pool": ("vit_mu_patch16_siglip_224", {}, {"google", "hf", "timm"}),
    "hybrid": ("vit_mu_r50_s16_224", {"stem": {"name": "hybrid", "layers": (1, 2, 1)}}, {"google", "timm"}),
    "hybrid-root": ("vit_tiny_r_s16_p8_224", {"depth": 1}, {"google", "timm"}),
    "bit": ("resnetv2_50x1_bit", {"layers": (1, 1, 1, 1)}, {"google", "hf", "timm"}),
    "perceiver": ("perceiver_mu_32", {}, set()),
}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether names, shapes, dtypes and bits are equal."""
    return left.keys() == right.keys() and all(
        left[key].dtype == right[key].dtype and torch.equal(left[key], right[key]) for key in left
    )


@pytest.mark.parametrize("name", plug.entries(FORMATS))
def test_contract(name: str) -> None:
    weight_format = get_format(name)
    assert weight_format.__doc__
    assert weight_format.SUFFIXES
    for part in ("recognise", "read", "write"):
        assert callable(getattr(weight_format, part))
    assert weight_format.recognise(["a", "b"]) is False
    if hasattr(weight_format, "infer_fields"):
        assert weight_format.infer_fields({}, []) == {}


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_round_trips(kind: str, tmp_path: Path) -> None:
    model_name, fields, formats = KINDS[kind]
    model = fill(create_model(model_name, **fields))
    state, spec_fields = model.state_dict(), model.spec.model_dump(mode="json")
    for name in formats:
        path = tmp_path / f"{name}{get_format(name).SUFFIXES[0]}"
        save_weights(model, path, to=name)
        loaded = load_weights(path)
        assert loaded.format == name
        assert same(loaded.state, state), name
    for first, second in permutations(sorted(formats), 2):
        there = get_format(second).write(load_weights(next(tmp_path.glob(f"{first}.*"))).state, spec_fields)
        write_tensors(there, tmp_path / f"back{get_format(second).SUFFIXES[0]}")
        again = load_weights(tmp_path / f"back{get_format(second).SUFFIXES[0]}").state
        back = get_format(first).write(again, spec_fields)
        assert same(back, read_tensors(next(tmp_path.glob(f"{first}.*")))), (first, second)


@pytest.mark.parametrize("kind", KINDS)
def test_formats_refuse_what_they_cannot_store(kind: str) -> None:
    name, fields, formats = KINDS[kind]
    model = create_model(name, **fields)
    for form in set(plug.entries(FORMATS)) - formats:
        with pytest.raises(WeightsError, match=r"has no place|no longer has a hybrid|positions to all"):
            get_format(form).write(model.state_dict(), model.spec.model_dump(mode="json"))


def test_registers_between_timm_and_transformers(tmp_path: Path) -> None:
    """transformers has a position for the class token, timm has none: a row of zeros is added and removed again."""
    model = fill(create_model("vit_small_patch14_reg4_dinov2", depth=1, image_size=56))
    save_weights(model, tmp_path / "hf", to="hf")
    there = create_model("vit_small_patch14_reg4_dinov2", depth=1, image_size=56, weights=tmp_path / "hf")
    assert there.spec.position_prefix == 1
    image = torch.randn(1, 3, 56, 56)
    with torch.no_grad():
        assert torch.equal(there.eval()(image), model.eval()(image))
    assert same(get_format("timm").write(there.state_dict(), there.spec.model_dump()), dict(model.state_dict()))


@pytest.mark.parametrize(
    ("fields", "formats", "message"),
    [
        ({"pool": "mean"}, ["hf", "torchvision"], "no place for pool=mean"),
        ({"position": "none"}, ["hf", "torchvision", "google"], "no place for position=none"),
        (
            {"position": "sincos_2d"},
            ["hf", "torchvision", "google", "timm"],
            "no place for (fixed position embeddings|position)",
        ),
        ({"pool": "mean", "norm_after_pool": True}, ["hf", "torchvision"], "no place for"),
    ],
)
def test_models_that_a_project_would_compute_differently_are_refused(
    fields: dict, formats: list[str], message: str, tmp_path: Path
) -> None:
    model = create_model("vit_mu_patch16_224", **fields)
    for form in formats:
        with pytest.raises(WeightsError, match=message):
            save_weights(model, tmp_path / form, to=form)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["hf", "torchvision", "google", "timm"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": [8, 32, 32]}, "only models of images(.|\n)*inputs of 3 dimensions"),
        ({"attention": {"name": "local", "window": 7}}, "only full attention(.|\n)*attention=local"),
    ],
)
def test_parts_that_no_other_project_has_are_refused(form: str, fields: dict, message: str) -> None:
    model = create_model("vit_mu_patch16_siglip_224" if form == "hf" else "vit_mu_patch16_224")
    with pytest.raises(WeightsError, match=message):
        get_format(form).write(model.state_dict(), {**model.spec.model_dump(mode="json"), **fields})


def test_a_folder_for_timm_needs_a_name(tmp_path: Path) -> None:
    from vitrail.catalogue import spec_named

    model = create_model(spec_named("vit_mu_patch16_224"))
    with pytest.raises(WeightsError, match=r"needs the name of its architecture"):
        save_weights(model, tmp_path / "folder")
    save_weights(model, tmp_path / "w.safetensors")
    save_weights(model, tmp_path / "v1.0", to="hf")
    assert (tmp_path / "v1.0" / "config.json").is_file()


def test_other_models_with_the_same_shapes_are_reported(tmp_path: Path) -> None:
    save_weights(create_model("deit_tiny_patch16_224"), tmp_path / "w.safetensors")
    done = convert(tmp_path / "w.safetensors", to="google", out=tmp_path / "a.npz")
    assert (done.model, done.also) == ("vit_tiny_patch16_224", ("deit_tiny_patch16_224",))
    done = convert(tmp_path / "w.safetensors", to="google", out=tmp_path / "a.npz", model="deit_tiny_patch16_224")
    assert (done.model, done.also) == ("deit_tiny_patch16_224", ())


def test_dinov3_is_identified_and_converted_there_and_back(tmp_path: Path) -> None:
    """By way of transformers' folder, whose config.json has another image size, and without the name in any path."""
    name = "vit_tiny_patch16_dinov3_qkvb"
    save_weights(fill(create_model(name, image_size=224)), tmp_path / "a.safetensors", to="timm")
    there = convert(tmp_path / "a.safetensors", to="hf", out=tmp_path / "b", image_size=(224, 224))
    back = convert(tmp_path / "b", to="timm", out=tmp_path / "c.safetensors")
    assert (there.model, back.model, back.also) == (name, name, ())
    assert same(read_tensors(tmp_path / "a.safetensors"), read_tensors(tmp_path / "c.safetensors"))


@pytest.mark.parametrize("form", ["hf", "timm"])
def test_every_dinov3_is_identified_by_its_tensors(form: str) -> None:
    for name in catalogue.list_models("dinov3"):
        spec = catalogue.spec_named(name)
        with catalogue.on_meta():
            theirs = get_format(form).write(catalogue.build(spec).state_dict(), spec.model_dump(mode="json"))
        fields = get_format(form).infer_fields({}, theirs) if form == "hf" else {}
        loaded = Weights(get_format(form).read(theirs), form, fields, None)
        assert [found for found, _ in find_matches(loaded, list_candidates(""))] == [name]


@pytest.mark.parametrize("suffixes", [(".safetensors", ".pth"), (".bin", ".safetensors")])
def test_containers_preserve_every_bit(suffixes: tuple[str, str], tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(2).bfloat16(), "c": torch.arange(3), "d": torch.randn(())}
    for suffix in suffixes:
        write_tensors(tensors, tmp_path / f"w{suffix}")
        assert same(read_tensors(tmp_path / f"w{suffix}"), tensors)


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pth"])
def test_a_failed_write_leaves_the_old_file(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitrail.weights import tensor_files

    path = tmp_path / f"w{suffix}"
    write_tensors({"a": torch.ones(3)}, path)

    def fail(*words: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    for module, name in ((tensor_files, "save_file"), (tensor_files.np, "savez"), (tensor_files.torch, "save")):
        monkeypatch.setattr(module, name, fail)
    with pytest.raises(WeightsError, match=r"cannot be written(.|\n)*No space left"):
        write_tensors({"a": torch.zeros(3)}, path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert same(read_tensors(path), {"a": torch.ones(3)})


def test_a_non_square_position_table_is_converted(tmp_path: Path) -> None:
    model = fill(create_model("vit_tiny_patch16_224", image_size=(96, 160)))
    save_weights(model, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError, match=r"no model of the catalogue"):
        convert(tmp_path / "w.safetensors", to="hf", out=tmp_path / "hf")
    done = convert(tmp_path / "w.safetensors", to="hf", out=tmp_path / "hf", image_size=(96, 160))
    back = convert(tmp_path / "hf", to="timm", out=tmp_path / "back.safetensors")  # the config.json has the size
    assert done.model == back.model == "vit_tiny_patch16_224"
    assert same(read_tensors(tmp_path / "back.safetensors"), dict(model.state_dict()))


def test_the_model_of_the_right_size_is_chosen(tmp_path: Path) -> None:
    save_weights(create_model("vit_tiny_patch16_384", depth=12), tmp_path / "hf", to="hf")
    done = convert(tmp_path / "hf", to="timm", out=tmp_path / "w.safetensors")
    assert (done.model, done.also) == ("vit_tiny_patch16_384", ())


def test_tensors_of_wrong_shapes_are_not_converted(tmp_path: Path) -> None:
    tensors = dict(create_model("vit_mu_patch16_224").state_dict())
    for key in ("head.weight", "patch_embed.proj.weight", "pos_embed"):
        write_tensors({**tensors, key: torch.zeros(())}, tmp_path / "w.safetensors")
        with pytest.raises(WeightsError, match=r"no model of the catalogue"):
            convert(tmp_path / "w.safetensors", to="google", out=tmp_path / "w.npz")


def test_the_tensors_determine_the_number_of_channels(tmp_path: Path) -> None:
    for name in ("vit_mu_patch16_224", "vit_tiny_r_s16_p8_224"):
        save_weights(create_model(name, channels=1), tmp_path / "w.safetensors")
        assert convert(tmp_path / "w.safetensors", to="google", out=tmp_path / "w.npz").model == name


def test_a_folder_never_overwrites_itself(tmp_path: Path) -> None:
    save_weights(create_model("vit_mu_patch16_224"), tmp_path / "hf", to="hf")
    for out in (tmp_path / "hf", tmp_path / "hf" / "model.safetensors"):
        with pytest.raises(WeightsError, match=r"overwrite its source"):
            convert(tmp_path / "hf", to="timm", out=out)
    convert(
        tmp_path / "hf" / "model.safetensors", to="google", out=tmp_path / "hf"
    )  # a different file in the same folder


PREPARED = "preprocessing from the file or its format, not the default for this name"


@pytest.mark.parametrize("first", plug.entries(FORMATS))
@pytest.mark.parametrize("second", plug.entries(FORMATS))
def test_convert_works_in_every_direction(first: str, second: str, tmp_path: Path) -> None:
    model = fill(create_model("vit_mu_patch16_224"))
    source = tmp_path / f"source{get_format(first).SUFFIXES[0]}"
    target = tmp_path / f"target{get_format(second).SUFFIXES[-1]}"
    save_weights(model, source, to=first)
    done = convert(source, to=second, out=target)
    assert (done.model, done.from_format, done.to_format) == ("vit_mu_patch16_224", first, second)
    reloaded = create_model("vit_mu_patch16_224", weights=target)
    # torchvision's own checkpoints were trained with other preprocessing, and the files do not say so.
    assert reloaded.changes == ((PREPARED,) if second == "torchvision" else ())
    assert same(reloaded.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("vit_tiny_patch16_224", {"depth": 2}),
        ("vit_base_r50_s16_224", {"depth": 1}),
        ("vit_tiny_r_s16_p8_224", {"depth": 1}),
        ("resnetv2_50x1_bit", {}),
    ],
)
def test_timm_reads_our_npz(name: str, fields: dict[str, int], tmp_path: Path) -> None:
    """Most people read Google's files with timm: it must find every tensor in ours."""
    model = fill(create_model(name, **fields))
    save_weights(model, tmp_path / "w.npz", to="google")
    theirs = timm.create_model(name, num_classes=1000, **fields)
    theirs.load_pretrained(str(tmp_path / "w.npz"))
    assert same(dict(theirs.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("prefix", ["opt/target/", "params/"])
def test_google_training_states_are_read_too(prefix: str, tmp_path: Path) -> None:
    model = fill(create_model("vit_mu_patch16_224"))
    save_weights(model, tmp_path / "w.npz", to="google")
    write_tensors({prefix + key: t for key, t in read_tensors(tmp_path / "w.npz").items()}, tmp_path / "state.npz")
    assert same(load_weights(tmp_path / "state.npz").state, model.state_dict())


def test_old_hybrids_with_four_dimensional_norms(tmp_path: Path) -> None:
    model = fill(create_model("vit_tiny_r_s16_p8_224", depth=1))
    save_weights(model, tmp_path / "w.npz", to="google")
    old = {k: t.view(1, 1, 1, -1) if "gn_" in k else t for k, t in read_tensors(tmp_path / "w.npz").items()}
    write_tensors(old, tmp_path / "old.npz")
    assert same(load_weights(tmp_path / "old.npz").state, model.state_dict())


def test_first_release_of_torchvision(tmp_path: Path) -> None:
    model = fill(create_model("vit_mu_patch16_224"))
    new = get_format("torchvision").write(model.state_dict(), {})
    old = {k.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): t for k, t in new.items()}
    assert old.keys() != new.keys()
    assert same(get_format("torchvision").read(old), dict(model.state_dict()))


def test_training_checkpoints_are_unwrapped(tmp_path: Path) -> None:
    model = fill(create_model("vit_mu_patch16_224"))
    wrapped = {"model": {f"module.{key}": t for key, t in model.state_dict().items()}, "epoch": 3}
    torch.save(wrapped, tmp_path / "w.pth")
    assert same(load_weights(tmp_path / "w.pth").state, model.state_dict())


def test_sharded_folders(tmp_path: Path) -> None:
    import json

    model = fill(create_model("vit_mu_patch16_224"))
    tensors = get_format("hf").write(model.state_dict(), {})
    keys = sorted(tensors)
    index = {}
    for number, part in enumerate((keys[:10], keys[10:])):
        write_tensors({key: tensors[key] for key in part}, tmp_path / f"model-{number}.safetensors")
        index.update(dict.fromkeys(part, f"model-{number}.safetensors"))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert same(load_weights(tmp_path).state, model.state_dict())
