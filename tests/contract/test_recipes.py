"""Every recipe trains on a few small images and leaves a run that can be loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from tests.conftest import fill
from tests.forge import Forge
from vitrail import create_model, load, plug, save_weights
from vitrail.errors import DataError, SpecError, WeightsError
from vitrail.training import throughput, world
from vitrail.verbs.train import Training, find_lr, train

RECIPES = plug.entries("vitrail.training.recipe")
IMAGE_RECIPES = [name for name in RECIPES if not hasattr(plug.load("vitrail.training.recipe", name), "KIND")]
TINY = "vit_mu_patch4_gap_16"
COLOURS = {"blue": (40, 60, 200), "green": (40, 200, 60), "red": (200, 40, 60)}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes that differ in colour, with a test split."""
    folder = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for split, num in (("train", 20), ("test", 4)):
        for name, colour in COLOURS.items():
            (folder / split / name).mkdir(parents=True)
            for number in range(num):
                noise = random.normal(0, 25, (20, 20, 3))
                pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_weights(fill(create_model(TINY, num_classes=5), 0.2), path)
    return path


def small(images: Path, run: Path, *words: str, **more: object) -> Training:
    fast = ("steps=12", "batch_size=12", "precision=float32", "cache_gb=0.0")
    options = {"model": TINY, "recipe": "scratch", "run": run, **more}
    settings = [word for word in fast if word.partition("=")[0] not in {each.partition("=")[0] for each in words}]
    return train(images, settings=[*settings, *words], **options)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_how_it_is_run_and_what_it_scores(name: str) -> None:
    docstring = plug.load("vitrail.training.recipe", name).__doc__ or ""
    assert "    vitrail train " in docstring
    assert "two cores" in docstring


@pytest.mark.parametrize("name", IMAGE_RECIPES)
def test_a_recipe_learns_colours_and_leaves_a_run(name: str, images: Path, weights: Path, tmp_path: Path) -> None:
    words = () if name == "probe" else ("steps=40", "batch_size=12", "precision=float32", "cache_gb=0.0")
    run, more = tmp_path / "run", {}
    if name == "noisy_student":
        more = {"unlabelled": images}
    elif name == "distill":
        small(images, tmp_path / "teacher", "steps=40")
        more = {"teacher": tmp_path / "teacher"}
    result = train(images, model=TINY, weights=weights, recipe=name, run=run, settings=words, **more)
    assert result.test is not None
    assert result.test["n"] == 12
    assert result.test["top1"] > 0.8
    model = load(run)
    assert model.labels == ("blue", "green", "red")
    golden = load_file(run / "golden.safetensors")
    with torch.inference_mode():
        logits = model(model.preprocess.normalise(golden["pixels"].numpy()))
    assert torch.equal(logits, golden["logits"])
    document = json.loads((run / "result.json").read_text())
    assert document.keys() >= {"recipe", "steps", "seconds", "val", "test"}
    for file in ("config.yaml", "config.json", "labels.json", "README.md", "model.safetensors"):
        assert (run / file).is_file()


def test_auto_without_weights_trains_from_scratch(images: Path, tmp_path: Path) -> None:
    result = small(images, tmp_path / "run", recipe="auto", model=None)
    assert "from scratch" in result.story[0]


def test_lora_ends_as_an_ordinary_model(images: Path, weights: Path, tmp_path: Path) -> None:
    small(images, tmp_path / "run", "lora=2", recipe="finetune", weights=weights)
    before, after = load_file(weights), load_file(tmp_path / "run" / "model.safetensors")
    assert before.keys() == after.keys()
    key = "blocks.0.attn.qkv.weight"
    update = (after[key] - before[key]).double()
    values = torch.linalg.svdvals(update)
    assert values[1] > 1e-6
    assert values[2] < 1e-4 * values[0]
    assert torch.equal(before["pos_embed"], after["pos_embed"])


def test_a_higher_resolution_resizes_the_positions(images: Path, weights: Path, tmp_path: Path) -> None:
    small(images, tmp_path / "run", "model.image_size=24", recipe="finetune", weights=weights)
    model = load(tmp_path / "run")
    assert model.spec.image_size == model.preprocess.size == (24, 24)
    assert model.pos_embed.shape[1] == 36


def test_a_warm_start_from_another_run(images: Path, tmp_path: Path) -> None:
    small(images, tmp_path / "one")
    result = small(images, tmp_path / "two", "steps=1", "warmup=0.9", recipe="finetune", weights=tmp_path / "one")
    one, two = (load_file(tmp_path / run / "model.safetensors") for run in ("one", "two"))
    assert result.steps == 1
    assert (one["pos_embed"] - two["pos_embed"]).abs().max() < 0.01


def test_few_shot_training_uses_that_many_images(images: Path, weights: Path, tmp_path: Path) -> None:
    from vitrail.data.find import open_data
    from vitrail.training.recipe.probe import sample_shots

    source = open_data(images).split("train")
    sample = sample_shots(source, 5, 0)
    assert np.bincount(sample.labels).tolist() == [5, 5, 5]
    assert sample_shots(source, 5, 1).names != sample.names
    result = train(images, weights=weights, model=TINY, recipe="probe", run=tmp_path / "run", settings=["shots=5"])
    assert result.val["n"] == 15


def test_multi_label_data_is_scored_by_average_precision(images: Path, weights: Path, tmp_path: Path) -> None:
    rows = ["path,labels"]
    rows += [
        f"{path},{path.parent.name};{'dark' if int(path.stem) % 2 else 'bright'}"
        for path in sorted(images.glob("train/*/*.png"))
    ]
    (tmp_path / "table.csv").write_text("\n".join(rows))
    for recipe, words in (("scratch", ["steps=3", "batch_size=12"]), ("probe", [])):
        result = train(
            tmp_path / "table.csv", model=TINY, weights=weights, recipe=recipe, run=tmp_path / recipe, settings=words
        )
        assert 0.0 < result.val["map"] <= 1.0
        assert load(tmp_path / recipe).calibration.multi_label


@pytest.mark.parametrize("words", [("class_weights=true",), ("balanced=true",), ("augment.mixup=0.4", "accumulate=3")])
def test_everyday_settings(words: tuple[str, ...], images: Path, tmp_path: Path) -> None:
    assert small(images, tmp_path / "run", *words).steps == 12


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "muon"])
@pytest.mark.parametrize("schedule", ["cosine", "linear", "wsd"])
def test_optimizers_and_schedules_learn(optimizer: str, schedule: str, images: Path, tmp_path: Path) -> None:
    rate = {"adamw": 0.003, "sgd": 0.1, "muon": 0.02}[optimizer]
    words = (f"optimizer={optimizer}", f"schedule={schedule}", f"lr={rate}", "steps=40", "eval_every=40")
    small(images, tmp_path / "run", *words)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in lines if "loss" in line][-1] < 0.9 * np.log(3)


def test_a_run_of_minutes_reaches_a_low_learning_rate(images: Path, tmp_path: Path) -> None:
    result = small(images, tmp_path / "run", "steps=null", minutes=0.05)
    assert result.steps > 3
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["lr"] < 0.3 * max(line["lr"] for line in lines)


def test_early_stopping(images: Path, tmp_path: Path) -> None:
    assert small(images, tmp_path / "run", "steps=400", "eval_every=5", "patience=2").steps < 400


def test_small_images_first(images: Path, tmp_path: Path) -> None:
    assert small(images, tmp_path / "run", "small_side=0.5", "small_until=0.5").steps == 12


def test_a_dry_run_saves_nothing(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = train(images, model=TINY, recipe="scratch", dry_run=True, minutes=3.0)
    assert "memory" in " ".join(result.story)
    assert list(tmp_path.iterdir()) == []


def test_the_learning_rate_finder_suggests_a_rate(images: Path) -> None:
    rates = find_lr(images, model=TINY, recipe="scratch", settings=["batch_size=12"])
    tried = [rate for rate, _ in rates.tried]
    assert tried == sorted(tried)
    assert tried[0] < rates.lr < tried[-1]


def test_the_learning_rate_finder_minimises_what_the_recipe_does(images: Path, tmp_path: Path, forge: Forge) -> None:
    """The loss against the teacher, which the command line hands on."""
    small(images, tmp_path / "teacher", "steps=20")
    words = ["train", str(images), "--model", TINY, "--recipe", "distill", "--teacher", str(tmp_path / "teacher")]
    words += ["--find-lr", "--json", "batch_size=12", "distillation=soft", "teacher_weight=1.0"]
    done = forge.run_cli(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    taught = json.loads(done.stdout)["tried"][0]
    alone = find_lr(images, model=TINY, recipe="scratch", settings=["batch_size=12"]).tried[0]
    assert taught[0] == alone[0]
    assert abs(taught[1] - alone[1]) > 0.1


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_learning_rate_finder_computes_as_the_run_would(
    bfloat16: bool, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device of its process, with the number format and kernels that are measured to be fastest."""
    joined, formats = [], []
    init_world, choose = world.init_world, throughput.choose_kernels
    monkeypatch.setattr(world, "init_world", lambda: joined.append(1) or init_world())

    def measured(learner: nn.Module, fields: dict[str, torch.Tensor], *rest: object, **more: object) -> object:
        kernels, cost = choose(learner, fields, *rest, **{**more, "bfloat16": False})
        return kernels._replace(bfloat16=bfloat16), cost

    monkeypatch.setattr(throughput, "choose_kernels", measured)
    autocast = torch.autocast
    monkeypatch.setattr(
        torch,
        "autocast",
        lambda *args, enabled, **more: formats.append(enabled) or autocast(*args, enabled=False, **more),
    )
    find_lr(images, model=TINY, recipe="scratch", settings=["batch_size=12"])
    assert joined
    assert formats[-1] == bfloat16


@pytest.mark.parametrize("recipe", ["auto", "noisy_student"])
def test_a_dry_run_forecasts_stages(recipe: str, images: Path, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, not the features of a probe; and it labels a few images only."""
    from vitrail.training.recipe.image import pseudo

    labelled, label = [], pseudo.without_labels
    monkeypatch.setattr(pseudo, "without_labels", lambda table: labelled.append(len(table)) or label(table))
    result = train(images, model=TINY, weights=weights, recipe=recipe, unlabelled=images, dry_run=True, minutes=3.0)
    assert "3 minutes are about" in " ".join(result.story)
    assert labelled == [6]


def test_a_dry_run_uses_the_device_of_its_process(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined, init_world = [], world.init_world
    monkeypatch.setattr(world, "init_world", lambda: joined.append(1) or init_world())
    train(images, model=TINY, recipe="scratch", dry_run=True, minutes=3.0)
    assert len(joined) == 2, "once for the command, once for what it tries"


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["epochs=-1"], SpecError, "epochs"),
        (["lr=.nan"], SpecError, "lr"),
        (["lr=nan"], SpecError, "lr"),
        (["lr='1e-3'"], SpecError, "lr=0.001, without quotes"),
        (["learning_rate=0.1"], SpecError, r"there is no setting 'learning_rate'\.\n.*\n  Try lr\."),
        (["steps=3", "epochs=2"], SpecError, "a run has one length"),
        (["model.heads=5"], SpecError, "heads must divide width"),
        (["model.image_size=17"], Exception, "the patch must divide the image size"),
        (["augment.flip=1"], SpecError, "flip"),
        (["steps"], SpecError, "an override is written key=value"),
    ],
)
def test_wrong_settings_are_refused_before_anything_starts(
    words: list[str], error: type[Exception], message: str, images: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        train(images, model=TINY, recipe="scratch", run=tmp_path / "run", settings=words)
    assert not (tmp_path / "run").exists()


def test_a_class_of_one_image_is_refused(images: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(1 if name == "b" else 5):
            (tmp_path / "data" / name / f"{number}.png").write_bytes((images / f"train/red/{number}.png").read_bytes())
    with pytest.raises(DataError, match=r"each class needs at least 2 images[\s\S]*'b' \(1\)"):
        train(tmp_path / "data", model=TINY, recipe="scratch", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_weights_of_another_architecture_are_refused(images: Path, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="these weights do not match vit_mu_patch8_16"):
        train(images, model="vit_mu_patch8_16", weights=weights, recipe="finetune", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
