"""Checkpoints and other files of a run are written completely or not at all, whatever happens."""

from __future__ import annotations

import errno
import logging
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.contract import forked
from tests.forge import Forge
from vitrail.errors import RunError
from vitrail.files import atomic_write, remove_leftovers, sync_folder, write_text
from vitrail.run import checkpoint, directory
from vitrail.run.checkpoint import Checkpoint, step_name
from vitrail.run.directory import JsonLines


def sample(step: int) -> Checkpoint:
    weights = torch.full((40, 30), float(step))
    optimizer = {"w:exp_avg": weights.t(), "w:step": torch.tensor(float(step))}
    return Checkpoint(
        {"model": {"w": weights}, "optimizer": optimizer, "ema": {"w": weights / 3}}, {"step": step, "best": None}
    )


def same(found: Checkpoint | None, step: int) -> bool:
    expected = sample(step)
    if found is None or found.state != expected.state or found.parts.keys() != expected.parts.keys():
        return False
    return all(
        torch.equal(found.parts[part][name], tensor)
        for part, named in expected.parts.items()
        for name, tensor in named.items()
    )


@pytest.fixture
def folder(swift_path: Path) -> Path:
    """Checkpoints of the steps 1 and 2."""
    folder = swift_path / "checkpoints"
    for step in (1, 2):
        checkpoint.save(folder, step_name(step), sample(step))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_saved_and_loaded(folder: Path) -> None:
    assert same(checkpoint.load(folder, step_name(1)), 1)
    found = checkpoint.newest(folder)
    assert found is not None
    assert found[0] == step_name(2)
    assert same(found[1], 2)
    assert names(folder) == ["latest", step_name(1), step_name(2)]
    assert (folder / "latest").read_text() == "step-000000002\n"
    assert checkpoint.load(folder, step_name(3)) is None


def test_nothing_saved_yet(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None


def test_saved_again_under_the_same_name(folder: Path) -> None:
    checkpoint.save(folder, step_name(2), sample(9))
    assert same(checkpoint.load(folder, step_name(2)), 9)
    assert names(folder) == ["latest", step_name(1), step_name(2)]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a folder")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped weights": lambda path: flip(path / "model.safetensors"),
    "flipped average": lambda path: flip(path / "ema.safetensors"),
    "flipped optimizer": lambda path: flip(path / "optimizer.safetensors"),
    "flipped state": lambda path: flip(path / "state.json"),
    "flipped manifest": lambda path: flip(path / "manifest.json"),
    "cut": lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-1]),
    "cut state": lambda path: (path / "state.json").write_text('{"step"'),
    "no state": lambda path: (path / "state.json").unlink(),
    "no weights": lambda path: (path / "model.safetensors").unlink(),
    "folder of weights": lambda path: replace_by_folder(path / "model.safetensors"),
    "no manifest": lambda path: (path / "manifest.json").unlink(),
    "manifest of nothing": lambda path: (path / "manifest.json").write_text("{}"),
    "manifest of another kind": lambda path: (path / "manifest.json").write_text('["state.json"]'),
    "manifest of no words": lambda path: (path / "manifest.json").write_bytes(b"\xff\xfe"),
    "empty": lambda path: (shutil.rmtree(path), path.mkdir()),
    "file": replace_by_file,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(folder: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported, removed and skipped for the one before it."""
    DAMAGES[damage](folder / step_name(2))
    assert checkpoint.load(folder, step_name(2)) is None
    with caplog.at_level(logging.WARNING):
        found = checkpoint.newest(folder)
    assert found is not None
    assert found[0] == step_name(1)
    assert same(found[1], 1)
    assert caplog.messages == [f"the checkpoint {folder / step_name(2)} is damaged and skipped"]
    assert names(folder) == ["latest", step_name(1)]
    assert (folder / "latest").read_text() == "step-000000001\n"


def test_every_flipped_bit_is_found(folder: Path) -> None:
    path = folder / step_name(2) / "state.json"
    content = path.read_bytes()
    for place in range(len(content) * 8):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        assert checkpoint.load(folder, step_name(2)) is None
    path.write_bytes(content)
    assert same(checkpoint.load(folder, step_name(2)), 2)


def test_all_damaged(folder: Path) -> None:
    for step in (1, 2):
        flip(folder / step_name(step) / "model.safetensors")
    assert checkpoint.newest(folder) is None
    assert names(folder) == ["latest"]


def test_a_disk_that_cannot_be_read_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be read today may be intact tomorrow, so it does not count as damaged."""
    with monkeypatch.context() as patch:

        def fail(_: Path) -> str:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(checkpoint, "sum_of", fail)
        with pytest.raises(RunError, match="cannot be read") as caught:
            checkpoint.newest(folder)
    assert caught.value.got == "[Errno 5] Input/output error."
    assert "the same command again once it can" in caught.value.hint
    found = checkpoint.newest(folder)
    assert found is not None
    assert same(found[1], 2)


def save_and_prune(folder: Path, number: int) -> None:
    """Everything that happens at a save, killed at one of its calls."""
    forked.kill_at_call(number)
    checkpoint.save(folder, step_name(3), sample(3))
    checkpoint.prune(folder, {step_name(2)})
    checkpoint.point(folder, checkpoint.BEST, step_name(3))


def test_killed_at_every_call(folder: Path, forge: Forge, swift_path: Path) -> None:
    """There is always a complete checkpoint, and nothing is left of a partial one."""
    checkpoint.save(folder, step_name(0), sample(0))
    code, number, newest = -signal.SIGKILL, 0, set()
    while code == -signal.SIGKILL:
        number += 1
        copy = shutil.copytree(folder, swift_path / str(number))
        code = forge.run(save_and_prune, copy, number, log=swift_path / "log")
        found = checkpoint.newest(copy)
        assert found is not None
        step = found[1].state["step"]
        assert same(found[1], step)
        newest.add(step)
        assert set(names(copy)) <= {"latest", "best", *(step_name(step) for step in range(4))}
        assert all(same(checkpoint.load(copy, path.name), int(path.name[5:])) for path in copy.glob("step-*"))
        shutil.rmtree(copy)
    assert code == 0, (swift_path / "log").read_text()
    assert newest == {2, 3}
    assert number > 40


def save_on_full_disk(folder: Path, num_bytes: int) -> int:
    forked.without_room(num_bytes)
    try:
        checkpoint.save(folder, step_name(3), sample(3))
    except RunError:
        return 2
    return 0


@pytest.mark.parametrize("num_bytes", [0, 20, 1000, 4000])
def test_full_disk(folder: Path, forge: Forge, num_bytes: int) -> None:
    """The previous checkpoint is intact, and nothing is left of the new one."""
    code = forge.run(save_on_full_disk, folder, num_bytes, log=Path("/dev/null"))  # which is never full
    assert code == 2
    assert names(folder) == ["latest", step_name(1), step_name(2)]
    found = checkpoint.newest(folder)
    assert found is not None
    assert same(found[1], 2)


def test_full_disk_message(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "mkdir", _no_space)
    with pytest.raises(RunError, match="the checkpoint step-000000003 cannot be written to ") as caught:
        checkpoint.save(folder, step_name(3), sample(3))
    assert caught.value.got == "[Errno 28] No space left on device."
    assert caught.value.hint.startswith("freeing disk space, then the same command again")


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_pruned(folder: Path) -> None:
    for step in (5, 7, 9):
        checkpoint.save(folder, step_name(step), sample(step))
    checkpoint.prune(folder, {step_name(2), step_name(4)})
    assert names(folder) == ["latest", step_name(2), step_name(7), step_name(9)]


def test_removed_only_if_there_is_another(folder: Path) -> None:
    checkpoint.remove_unless_only(folder, step_name(2))
    checkpoint.remove_unless_only(folder, step_name(1))
    assert names(folder) == ["latest", step_name(1)]


def test_cleaned(folder: Path) -> None:
    """What a kill left behind is removed, and nothing else."""
    for name in (".part-step-000000003", ".part-gone-step-000000000", ".latest.abcd1234", ".best.zzzz_999"):
        (folder / name).mkdir()
        (folder / name / "model.safetensors").write_text("half")
    (folder / ".part-file").write_text("half")
    (folder / "mine.txt").write_text("mine")
    checkpoint.clean(folder)
    assert names(folder) == ["latest", "mine.txt", step_name(1), step_name(2)]


@pytest.mark.parametrize(("value", "expected"), [(1.0, True), (float("nan"), False), (float("-inf"), False)])
def test_all_finite(value: float, expected: bool) -> None:
    assert (
        checkpoint.all_finite({"a": torch.zeros(3), "b": torch.tensor([0.0, value]), "c": torch.arange(3)}) is expected
    )


def half_written(path: Path) -> None:
    path.write_text("half of the n")
    raise OSError(errno.ENOSPC, "No space left on device")


def badly_saved(path: Path) -> None:
    save_file({"a": torch.zeros(1)}, path / "not" / "there")  # raises an error of safetensors


@pytest.mark.parametrize("write", [half_written, badly_saved])
def test_replaced_atomically(tmp_path: Path, write: Callable[[Path], None]) -> None:
    path = tmp_path / "config.yaml"
    write_text("old", path, RunError)
    with pytest.raises(RunError, match=r"config\.yaml cannot be written"), atomic_write(path, RunError) as part:
        write(part)
    assert path.read_text() == "old"
    assert names(tmp_path) == ["config.yaml"]
    write_text("new", path, RunError)
    assert path.read_text() == "new"
    assert names(tmp_path) == ["config.yaml"]


def test_left_by_a_kill(tmp_path: Path) -> None:
    for name in (".config.yaml.abcd1234", ".config.yaml.abcd12345", ".other.yaml.abcd1234"):
        (tmp_path / name).mkdir()
    remove_leftovers(tmp_path, ["config.yaml"])
    assert names(tmp_path) == [".config.yaml.abcd12345", ".other.yaml.abcd1234"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_folder_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Some file systems cannot, which is harmless; but a failing disk is an error."""

    def fail(_: int) -> None:
        raise OSError(code, "")

    monkeypatch.setattr("os.fsync", fail)
    if code == errno.EINVAL:
        sync_folder(tmp_path)
    else:
        with pytest.raises(OSError):
            sync_folder(tmp_path)


def test_claimed_once(tmp_path: Path) -> None:
    run = tmp_path / "a" / "run"
    with directory.claim(run):
        with pytest.raises(RunError, match="in use by another process"), directory.claim(run):
            pass
        assert run.is_dir()
    assert names(tmp_path) == []  # nothing was started, so nothing is left
    with directory.claim(run):
        directory.write_config(run, {"request": {}})
    assert names(run) == [".lock", "config.yaml"]


def test_killed_before_it_started(tmp_path: Path) -> None:
    """A partial first file does not make the folder look like somebody else's."""
    (tmp_path / ".config.yaml.abcd1234").mkdir()
    (tmp_path / ".config.yaml.abcd1234" / "config.yaml").write_text("request:")
    with directory.claim(tmp_path):
        assert directory.stored_config(tmp_path) is None


def test_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with directory.claim(tmp_path), pytest.raises(RunError, match="is not a run and not empty") as caught:
        directory.stored_config(tmp_path)
    assert caught.value.got == "thesis.tex."
    assert names(tmp_path) == ["thesis.tex"]


def test_differences_are_named(tmp_path: Path) -> None:
    then = {"model": "a", "settings": {"lr": 0.1, "augment": {"mixup": 0.0}}}
    check = partial(directory.check_same, tmp_path, then, defaults={"lr": 0.2, "augment": {"mixup": 0.5, "draws": 0}})
    check({"model": "a", "settings": {"lr": 0.1, "augment": {"mixup": 0.0, "draws": 0}}})  # what is new has its default
    with pytest.raises(RunError, match="holds another run") as caught:
        check({"model": "a", "settings": {"lr": 0.1, "augment": {"mixup": 0.2, "draws": 4}}})
    assert caught.value.got == "augment.draws: 4 requested, 0 in the run; augment.mixup: 0.2 requested, 0.0 in the run."
    with pytest.raises(RunError, match="holds another run") as caught:
        directory.check_same(tmp_path, dict.fromkeys("abcde", 1), dict.fromkeys("abcde", 2), defaults={})
    assert caught.value.got == "; ".join(f"{key}: 2 requested, 1 in the run" for key in "abc") + "; and 2 more."


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = JsonLines(path)
    lines.add(step=1, loss=0.5)
    length = lines.sync()
    lines.add(step=2, loss=float("nan"), lr=float("inf"))
    assert path.read_text() == '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": null, "lr": null}\n'  # at once
    lines.cut(length)
    lines.add(step=3)
    lines.close()
    assert path.read_text() == '{"step": 1, "loss": 0.5}\n{"step": 3}\n'
    JsonLines(path, length).close()
    assert path.read_text() == '{"step": 1, "loss": 0.5}\n'
    JsonLines(path, 10**6).close()  # somebody removed lines: the file is not padded
    assert path.read_text() == '{"step": 1, "loss": 0.5}\n'
    JsonLines(path).close()
    assert path.read_text() == ""


@pytest.mark.parametrize("before", ["", '{"a": 1}\n', '{"a": 1}\n{"a": 2}\n'])
@pytest.mark.parametrize("torn", ["", '{"st', '{"step": 3}'])
def test_torn_line(tmp_path: Path, before: str, torn: str) -> None:
    path = tmp_path / "timing.jsonl"
    path.write_text(before + torn)
    JsonLines(path, None).close()
    assert path.read_text() == before


def test_json_lines_on_full_disk(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "metrics.jsonl")
    lines.file.close()
    lines.file = Path("/dev/full").open("ab", buffering=0)  # noqa: SIM115 - closed with the lines
    with pytest.raises(RunError, match=r"metrics\.jsonl cannot be written") as caught:
        lines.add(step=1)
    assert caught.value.got == "[Errno 28] No space left on device."
    assert caught.value.hint.startswith("freeing disk space, then the same command again")
    lines.close()
