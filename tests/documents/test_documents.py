"""The documentation is correct: every command shown runs; every verb, field and error is documented."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import ROOT, fill
from tests.contract.small_texts import write_examples
from tests.forge import Forge
from vitrail import create_model, errors, export, plug, save_weights, train
from vitrail.data.augment import Augment
from vitrail.data.transform import Preprocess
from vitrail.errors import VitrailError
from vitrail.run.open import open_model

PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md"))
MINUTES = "0.02"  # replaces `--minutes` in the documents' commands
DEIT, WEIGHTS = "deit_tiny_patch16_224", ("--weights", "model.safetensors")
DOCS = "\n".join(page.read_text() for page in PAGES)
# Code that runs before a verb's commands, to shorten them: one epoch of training, a moment of timing.
SHORTEN = {
    "demo": "from vitrail.verbs import demo\ndemo.SETTINGS = ('epochs=1', *demo.SETTINGS[1:])",
    "export": "from vitrail.verbs.export import export\nexport.__kwdefaults__['seconds'] = 0.05",
}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the folder in which the documents' examples run, with weights and photos."""
    torch.set_num_threads(1)  # two workers on two cores
    folder = tmp_path_factory.mktemp("workplace")
    save_weights(fill(create_model("deit_tiny_patch16_224")), folder / "model.safetensors")
    for number, name in enumerate(["tench", "n01443537", "2"]):
        (folder / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (300, 260), (40 * number, 90, 200)).save(folder / "photos" / name / "a.jpg")
    random = np.random.default_rng(0)
    for number in range(24):
        path = folder / "pets" / ("train" if number < 16 else "val") / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((96, 80)).save(path)
    Image.fromarray(random.integers(0, 256, (9, 9, 3), dtype=np.uint8)).resize((320, 240)).save(folder / "dog.jpg")
    rows = [f"pets/train/{('cat', 'dog')[n % 2]}/{n}.jpg,{10 + 3 * n}" for n in range(16)]
    (folder / "ages.csv").write_text("\n".join(["path,age", *rows]))
    write_examples(folder)
    train(
        folder / "pets",
        model="vit_mu_patch16_64",
        recipe="scratch",
        run=folder / "runs" / "cats-and-dogs",
        settings=["steps=20", "batch_size=8", "ema=0.0"],
    )
    (folder / "empty").mkdir()
    (folder / "data").mkdir()
    (folder / "cut.jpg").write_bytes((folder / "dog.jpg").read_bytes()[:2000])
    return folder


def run(*words: str, cwd: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would, in a process of its own; `first` is code to run before."""
    start = ["-c", f"{first}\nfrom vitrail.__main__ import main\nmain()"] if first else ["-m", "vitrail"]
    return subprocess.run(
        [sys.executable, "-W", "error", *start, *words], capture_output=True, text=True, check=False, cwd=cwd
    )


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.splitlines()]


def commands_to_run(page: Path) -> list[str]:
    """The commands of a page but those that an earlier page shows too, unless they train the run that it uses."""
    lines, earlier = commands(page), [line for other in PAGES[: PAGES.index(page)] for line in commands(other)]
    uses_run = any("runs/pets-auto" in line for line in lines)
    return [
        line
        for line in lines
        if line not in earlier or (uses_run and line.startswith("vitrail train pets ") and "--run" not in line)
    ]


FIRST = {
    shlex.split(line)[1]: (page, line)
    for page in reversed(PAGES)
    for line in reversed(commands(page))
    if line.startswith("vitrail ")
}
"""The page and line where each verb appears first."""
ADDRESS = "http://127.0.0.1:8000"
"""The service's address in the documents; the tests use any free port."""


@contextmanager
def served(line: str | None, cwd: Path) -> Iterator[str]:
    """Start the service with a command, if any; yield its address, and stop it at the end."""
    if line is None:
        yield ADDRESS
        return
    words = [sys.executable, "-W", "error", "-m", *shlex.split(line), "--port", "0", "--json", "--quiet"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=cwd) as process:
        assert process.stdout is not None
        yield json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")["address"]
        process.terminate()
        assert process.wait() == 0, line


def curl(line: str, address: str, cwd: Path) -> None:
    """Send a request as the documents show it."""
    words = [*shlex.split(line.replace(ADDRESS, address)), "--fail-with-body"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    if "/v1/" in line and "-o" not in words:
        json.loads(done.stdout)


def shortened(words: list[str]) -> list[str]:
    """Return the command with less to do: fewer minutes, and smaller batches for the learning-rate finder."""
    less = [MINUTES if before == "--minutes" else word for before, word in zip(["", *words], words, strict=False)]
    return [*less, "batch_size=16"] if "--find-lr" in words else less


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_shown_runs(page: Path, workplace: Path, forge: Forge) -> None:
    address = ADDRESS
    with ExitStack() as stack:
        for line in commands_to_run(page):
            words = shlex.split(line)
            if words[0] == "curl":
                curl(line, address, workplace)
                continue
            assert words[0] == "vitrail"
            if words[1] == "serve":
                address = stack.enter_context(served(line, workplace))
                continue
            # Each verb runs once in a process of its own, then in forks: importing torch each time takes minutes.
            start = run if FIRST[words[1]] == (page, line) else forge.run_cli
            done = start(*shortened(words[1:]), cwd=workplace, first=SHORTEN.get(words[1], ""))
            assert done.returncode == 0, f"{line}\n{done.stderr}"
            if "--json" in words:
                json.loads(done.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_example_runs(page: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workplace)
    monkeypatch.setitem(export.__kwdefaults__, "seconds", 0.05)
    names: dict[str, object] = {}
    needs_service = any(ADDRESS in block for block in blocks(page, "python"))
    line = next(line for line in commands(page) if line.startswith("vitrail serve ")) if needs_service else None
    with served(line, workplace) as address:
        for block in blocks(page, "python"):
            short = re.sub(r"\bsteps=\d{2,}", "steps=5", block)  # no example depends on what it has learned
            exec(compile(short.replace(ADDRESS, address), page.name, "exec"), names)
    if page.name == "exporting.md":
        preprocess = open_model("pets-onnx").preprocess
        expected = preprocess.resize_and_crop(preprocess.decode(Path("dog.jpg").read_bytes()))
        assert np.abs(np.asarray(names["image"], dtype=float) - expected).max() <= 3  # of 255: rounding


def test_the_readmes_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()[:12]
    assert "    pip install -r requirements.txt && vitrail demo" in lines
    assert "    pip install -r requirements-dev.txt && pytest" in lines


@pytest.mark.parametrize(
    "word", ["git clone", "multi-label", "class imbalance", "folds", "LoRA", "S3", "HTTP", "torchrun"]
)
def test_the_readme_says(word: str) -> None:
    """What newcomers search it for."""
    assert word in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("verb", plug.entries("vitrail.cli"))
def test_every_verb_is_documented_and_has_help(verb: str, workplace: Path) -> None:
    assert f"## vitrail {verb}" in DOCS
    assert verb in FIRST, "no example, so the test above does not run it in a process of its own"
    done = run(verb, "--help", cwd=workplace)
    assert done.returncode == 0
    assert "--json" in done.stdout
    assert "--quiet" in done.stdout


@pytest.mark.parametrize("package", ["vitrail.model", "vitrail.stem", "vitrail.nn.attention", "vitrail.nn.mix"])
def test_every_field_is_documented(package: str) -> None:
    page = (ROOT / "docs" / "models.md").read_text()
    for name in plug.entries(package):
        for field in plug.load(package, name).Spec.model_fields:
            assert re.search(rf"\b{field}\b", page), f"{package}.{name}: {field}"


def test_every_field_of_the_data_is_documented() -> None:
    page = (ROOT / "docs" / "data.md").read_text()
    for spec in (Preprocess, Augment):
        for field in spec.model_fields:
            assert re.search(rf"`{field}`", page), f"{spec.__name__}: {field}"


def test_every_setting_is_documented() -> None:
    page = (ROOT / "docs" / "training.md").read_text()
    for name in plug.entries("vitrail.training.recipe"):
        recipe = plug.load("vitrail.training.recipe", name)
        for field in recipe.Spec.model_fields if hasattr(recipe, "Spec") else ():
            assert f"`{field}`" in page or field == "augment", f"{name}: {field}"


def test_every_error_is_documented() -> None:
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, VitrailError):
            assert name in DOCS


def test_every_dependency_has_a_reason() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    for dependency in project["dependencies"]:
        assert f"| {re.split('[<>=]', dependency)[0]} |" in page, dependency
    for dependency in project["optional-dependencies"]["export"]:
        assert re.search(rf"^\| ([a-z]+, )?{re.split('[<>=]', dependency)[0]}\b", page, re.MULTILINE), dependency


def test_links_work() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_no_torch_for_help(workplace: Path) -> None:
    code = "import sys; sys.argv = ['vitrail', '--help']; from vitrail.__main__ import build_app\n"
    code += "try: build_app()()\nfinally: assert 'torch' not in sys.modules and 'pydantic' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=workplace)
    assert done.returncode == 0, done.stderr
    assert "evaluate" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["models", "nonsense"], "UnknownNameError: no model has this name"),
        (["convert", "nowhere.pth", "--to", "hf", "--out", "x"], "WeightsError: there is no file"),
        (["convert", "model.safetensors", "--to", "keras", "--out", "x"], "UnknownNameError: no format has this name"),
        (["convert", "model.safetensors", "--to", "hf", "--out", "x.npz"], "WeightsError: the hf format does not use"),
        (["convert", "model.safetensors", "--to", "hf", "--out", "no/where.bin"], "WeightsError: there is no folder"),
        (["convert", "model.safetensors", "--to", "hf", "--out", "model.safetensors"], "would overwrite its source"),
        (["convert", "model.safetensors", "--to", "hf", "--out", "x", "--model", "B_16"], "do not match B_16"),
        (
            ["evaluate", "deit_tiny_patch16_224", "nowhere", "--weights", "model.safetensors"],
            "UnknownNameError: no data has this name",
        ),
        (["evaluate", "B_16", "photos", "--weights", "model.safetensors"], "do not match vit_base_patch16_224"),
        (["evaluate", "B_16", "photos"], "WeightsError: B_16 is a model without weights"),
        (["evaluate", "B_16", "photos", "--weights", ""], "WeightsError: there is no file ''"),
        (["evaluate", "B_16", "", "--weights", "model.safetensors"], "DataError: the data has no name"),
        (["convert", "model.safetensors", "--to", "hf", "--out", "photos/2/a.jpg"], "a.jpg cannot be read or written"),
        (["convert", "model.safetensors", "--to", "hf", "--out", "photos/2/a.jpg/x"], "cannot be read or written"),
        (["convert", "model.safetensors", "--to", "hf", "--out", "/proc/x.bin"], "/proc/x.bin cannot be written"),
        (["train", "digits", "epochs=-1"], "SpecError: epochs: input should be greater than 0"),
        (["train", "digits", "lr=nan"], "SpecError: lr: input should be a valid number"),
        (["train", "digits", "lr='1e-3'"], "Try lr=0.001, without quotes"),
        (["train", "digits", "lrr=0.1"], "SpecError: there is no setting 'lrr'"),
        (["train", "digits", "model.heads=5"], "SpecError: heads must divide width"),
        (["train", "digits", "model.image_size=9"], "ShapeError: the patch must divide the image size"),
        (["train", "digits", "--recipe", "magic"], "UnknownNameError: no recipe has this name"),
        (["train", "digits", "--minutes", "-1"], "SpecError: minutes: input should be greater than 0"),
        (["train", "digits", "--run", "photos"], "RunError: photos is not a run and not empty"),
        (["train", "digits", "--run", "/proc/run"], "RunError: /proc/run cannot be written"),
        (["train", "photos"], "DataError: each class needs at least 2 images"),
        (["train", "pets", "--run", "pets/run"], "RunError: the run would be inside the data"),
        (["train", "pets", "--weights", "model.safetensors"], "fits more than one model"),
        (["train", "pets", "--recipe", "probe"], "WeightsError: the recipe probe needs pretrained weights"),
        (["train", "pets", "--recipe", "finetune"], "WeightsError: the recipe finetune needs pretrained weights"),
        (["train", "digits", "--model", "B_16", "--weights", "model.safetensors"], "do not match vit_base_patch16_224"),
        (["evaluate", "photos", "pets"], "WeightsError: photos is a model without weights"),
        (["models", "--nonsense"], "No such option"),
        (["check", "photoz"], "UnknownNameError: no data has this name"),
        (["check", "photos/nowhere"], "DataError: there is nothing at photos/nowhere"),
        (["check", "model.safetensors"], "DataError: model.safetensors is not data that Vitrail can read"),
        (["check", "photos", "--sheet", "photos/x.html"], "DataError: the sheet must not be inside the data folder"),
        (["bench", "data", "digits"], "DataError: this workload reads a folder of images"),
        (["bench", "train", "photos"], "UnknownNameError: no workload has this name"),
        (["models", "vit_base_patch16_16000000000000"], "UnknownNameError: no model has this name"),
        (["convert", "model.safetensors", "--to", "hf", "--out", "x", "--image-size", "big"], "such as 160x288"),
        (["convert", "x" * 300 + ".bin", "--to", "hf", "--out", "x"], "File name too long"),
        (["explain", "model.safetensors", "dog.jpg"], "fits more than one model"),
        (["explain", DEIT, "nowhere.jpg", *WEIGHTS], "DataError: nowhere.jpg cannot be read"),
        (["explain", DEIT, "cut.jpg", *WEIGHTS], "DataError: cut.jpg"),
        (["explain", DEIT, "empty", *WEIGHTS], "DataError: there are no images in empty"),
        (["explain", DEIT, "dog.jpg", "--class", "dragon", *WEIGHTS], "UnknownNameError: 2 classes contain this name"),
        (["explain", DEIT, "dog.jpg", "--method", "magic", *WEIGHTS], "UnknownNameError: no method has this name"),
        (["explain", DEIT, "dog.jpg", "--out", "cut.jpg", *WEIGHTS], "InspectionError: cut.jpg is not a folder"),
        (["explain", "B_16", "dog.jpg"], "WeightsError: B_16 is a model without weights"),
        (["explain", "runs/nothing", "dog.jpg"], "WeightsError: there is nothing at runs/nothing"),
        (["explain", DEIT, "*.gif", *WEIGHTS], "DataError: no file matches *.gif"),
        (["explain", "dog.jpg", "dog.jpg"], "WeightsError: dog.jpg"),
        (["predict", DEIT, "empty", *WEIGHTS], "DataError: there are no images in empty"),
        (["predict", DEIT, "dog.jpg", "--copy-to", "cut.jpg", *WEIGHTS], "RunError: cut.jpg is not a folder"),
        (["predict", DEIT, "photos", "--copy-to", "photos/x", *WEIGHTS], "RunError: the copies would end up among"),
        (["predict", "runs/nothing", "dog.jpg"], "WeightsError: there is nothing at runs/nothing"),
        (["predict", DEIT, "*.gif", *WEIGHTS], "DataError: no file matches *.gif"),
        (["compare", "photos", "pets"], "RunError: photos is not a finished run"),
        (["compare", "photos"], "RunError: a comparison needs at least two runs"),
        (["train", "pets", "--folds", "1"], "DataError: at least two folds are needed"),
        (["train", "pets", "--folds", "21"], "DataError: each class needs at least as many images as there are folds"),
        (["figures", DEIT, "--only", "magic", *WEIGHTS], "UnknownNameError: no figure has this name"),
        (["figures", DEIT, "--only", "distance", *WEIGHTS], "cannot be computed without images"),
        (["figures", DEIT, "nowhere", *WEIGHTS], "UnknownNameError: no data has this name"),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_two(
    words: list[str], message: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    from vitrail import __main__ as entry

    before = sorted(workplace.rglob("*"))
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, "argv", ["vitrail", *words])
    with pytest.raises(SystemExit) as stopped:  # in this process: importing torch each time would take minutes
        entry.main()
    assert stopped.value.code == 2
    output = capfd.readouterr()
    assert message in output.err
    assert "Traceback" not in output.err
    assert output.out == ""
    assert sorted(workplace.rglob("*")) == before


def test_an_error_reaches_the_exit_code_of_the_process(workplace: Path) -> None:
    done = run("models", "nonsense", cwd=workplace)
    assert (done.returncode, done.stdout) == (2, "")
    assert "UnknownNameError: no model has this name" in done.stderr


def test_json_documents_keep_their_keys(workplace: Path, forge: Forge) -> None:
    models = json.loads(forge.run_cli("models", "deit", "--json", cwd=workplace).stdout)
    assert models[0].keys() >= {"name", "params", "gflops", "tokens", "input_size"}
    words = ["evaluate", "deit_tiny_patch16_224", "photos", "--weights", "model.safetensors", "--json"]
    document = json.loads(forge.run_cli(*words, cwd=workplace).stdout)
    assert document.keys() >= {"n", "top1", "top5", "real_top1", "ece", "interval"}
    assert document["n"] == 3


def test_quiet_prints_nothing_on_standard_error(workplace: Path) -> None:
    words = ["evaluate", "deit_tiny_patch16_224", "photos", "--weights", "model.safetensors", "--quiet"]
    assert run(*words, cwd=workplace).stderr == ""


def test_a_closed_pipe_is_not_an_error(workplace: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # nobody reads, as after `| head` has ended
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "vitrail", "models", "deit", "--json"],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=workplace,
        )
    assert done.returncode in (0, 141, -signal.SIGPIPE)
    assert done.stderr == ""


def test_a_full_disk_is_reported(workplace: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "vitrail", "models", "deit", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            cwd=workplace,
        )
    assert done.returncode == 2
    assert "standard output cannot be read or written" in done.stderr
    assert "Traceback" not in done.stderr


def test_version(workplace: Path) -> None:
    assert re.fullmatch(r"vitrail \d+\.\d+\.\d+\n", run("--version", cwd=workplace).stdout)
