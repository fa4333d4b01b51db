"""Data of clips: what `vitrail check` finds, folders that mix images and clips, and flat memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.clip_folders import (
    CLASSES,
    RATE,
    tone,
    write_image,
    write_sounds,
    write_splits,
    write_table,
    write_videos,
    write_zip,
)
from tests.contract.small_clips import ramp_video, wav
from tests.forge import Forge, command
from vitrail.data.check import Report
from vitrail.data.find import open_data
from vitrail.data.loader import Loader
from vitrail.data.prepare.sound import SoundPreparation, SoundPreprocess
from vitrail.errors import DataError
from vitrail.verbs.check import check
from vitrail.verbs.train import train


def found(report: Report) -> set[tuple[str, str]]:
    """The paths and kinds of findings, without those about small data."""
    return {(each.path, each.kind) for each in report.findings if each.kind != "few-images"}


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


BAD: dict[str, tuple[Callable[[], bytes], str, str]] = {
    "silent": (lambda: wav(np.zeros(RATE), RATE), "silent", "samples that are all the same"),
    "constant": (lambda: wav(np.full(RATE, 0.25), RATE), "silent", "samples that are all the same"),
    "empty": (lambda: b"", "empty", "0 bytes"),
    "truncated": (lambda: cut(wav(tone(0, "low"), RATE)), "damaged", "bytes of samples"),
    "text": (lambda: b"not a sound at all", "damaged", "a file that begins with"),
    "too long": (lambda: wav(np.tile(tone(0, "low"), 1202), RATE, subtype="PCM_U8"), "oversized", "minutes"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sound_is_found(name: str, tmp_path: Path) -> None:
    make, kind, detail = BAD[name]
    write_sounds(tmp_path, num=2)
    (tmp_path / "low" / "bad.wav").write_bytes(make())
    report = check(tmp_path)
    assert found(report) == {("low/bad.wav", kind)}
    (finding,) = (each for each in report.findings if each.path == "low/bad.wav")
    assert detail in finding.detail
    assert report.modality == "sound"
    assert report.files == 5


@pytest.mark.parametrize("label", ["silent", "empty", "too long"])
def test_a_name_is_no_reason(label: str, tmp_path: Path) -> None:
    """A class may be called as a problem is."""
    write_sounds(tmp_path, num=2)
    (tmp_path / "low").rename(tmp_path / label)
    (tmp_path / label / "bad.wav").write_bytes(cut(wav(tone(0, "low"), RATE)))
    assert found(check(tmp_path)) == {(f"{label}/bad.wav", "damaged")}


def test_copies_and_leaks_are_found(tmp_path: Path) -> None:
    write_splits(tmp_path, num=4)
    copies = {"train/low/copy.wav": "train/low/0.wav", "test/low/leak.wav": "train/low/1.wav"}
    copies |= {"val/low/other.wav": "val/high/0.wav"}
    for name, original in copies.items():
        (tmp_path / name).write_bytes((tmp_path / original).read_bytes())
    expected = {("train/low/copy.wav", "duplicate"), ("test/low/leak.wav", "leak")}
    expected |= {("val/low/other.wav", "duplicate"), ("val/low/other.wav", "contradiction")}
    assert found(check(tmp_path)) == expected


def test_bad_videos_are_found(tmp_path: Path) -> None:
    write_videos(tmp_path, num=2)
    (tmp_path / "low" / "bad.mp4").write_bytes(cut(ramp_video(num_frames=8, size=(16, 16))))
    (tmp_path / "low" / "empty.mp4").write_bytes(b"")
    report = check(tmp_path)
    assert found(report) == {("low/bad.mp4", "damaged"), ("low/empty.mp4", "empty")}
    assert any(note.startswith("lengths are mixed: 1 to 1.6") for note in report.notes)


def test_files_of_a_table_that_do_not_exist(tmp_path: Path) -> None:
    write_sounds(tmp_path / "sounds", num=2)
    table = write_table(tmp_path / "table.csv", tmp_path / "sounds")
    table.write_text(table.read_text() + "sounds/gone.wav,low\n")
    assert found(check(table)) == {("sounds/gone.wav", "missing")}
    words: dict[str, Any] = {"recipe": "scratch", "model": "vit_mu_conv8_mel40x96", "report": False}
    settings = ["steps=1", "batch_size=4", "val_share=0.4"]
    with pytest.raises(DataError, match=r"sounds/gone\.wav does not exist"):
        train(table, settings=settings, run=tmp_path / "run", **words)
    result = train(table, settings=[*settings, "on_error=skip"], run=tmp_path / "skipped", **words)
    assert "Skipped 1 unreadable clip: sounds/gone.wav." in result.story


def test_the_command_speaks_of_sounds(forge: Forge, tmp_path: Path) -> None:
    write_sounds(tmp_path / "data", num=2)
    (tmp_path / "data" / "low" / "bad.wav").write_bytes(b"")
    code = forge.run(command, ["check", str(tmp_path / "data")], log=tmp_path / "log")
    text = (tmp_path / "log").read_text()
    assert code == 3
    assert "sounds" in text.splitlines()[0]
    assert "low/bad.wav: 0 bytes" in text
    assert "to see the sounds" in text


def test_the_majority_wins(tmp_path: Path) -> None:
    """Of a folder with images and clips, what there is most of is read; the others are findings."""
    write_sounds(tmp_path / "mixed", num=2)
    for label in CLASSES:
        write_image(tmp_path / "mixed" / label / "cover.png", 0, label)
    (tmp_path / "mixed" / "readme.txt").write_text("about these sounds")
    (tmp_path / "mixed" / "loose.wav").write_bytes(wav(tone(9, "low"), RATE))
    for data in (tmp_path / "mixed", write_zip(tmp_path / "mixed.zip", tmp_path / "mixed")):
        source = open_data(data)
        assert (source.modalities, len(source)) == (("sound",), 4)
        ignored = {each.path: each.detail for each in source.findings}
        assert ignored == {
            "high/cover.png": "an image among sounds",
            "low/cover.png": "an image among sounds",
            "loose.wav": "outside the class folders",
        }
    for number in range(4):
        write_image(tmp_path / "mixed" / "low" / f"{number}.png", number, "low")
    source = open_data(tmp_path / "mixed")
    assert (source.modalities, len(source)) == (("image",), 6)
    assert {each.detail for each in source.findings} == {"a sound among images"}


def test_archives_beside_clips_are_not_the_data(tmp_path: Path) -> None:
    write_sounds(tmp_path / "data", num=2)
    (tmp_path / "data" / "backup.tar").write_bytes(b"not an archive")
    assert open_data(tmp_path / "data").modalities == ("sound",)


def test_a_table_by_its_suffixes_or_its_column(tmp_path: Path) -> None:
    write_videos(tmp_path / "videos", num=1)
    for column in ("path", "file", "video", "Video"):
        table = write_table(tmp_path / f"{column}.csv", tmp_path / "videos", column)
        assert open_data(table).modalities == ("video",), column
    table = write_table(tmp_path / "sound.csv", tmp_path / "videos", "sound")
    assert open_data(table).modalities == ("sound",), "the sound of videos"
    (tmp_path / "two.csv").write_text("sound,video,label\na.wav,a.mp4,x\n")
    with pytest.raises(DataError, match=r"has several modalities(.|\n)*--recipe align"):
        open_data(tmp_path / "two.csv")
    with pytest.raises(DataError, match="no file with the suffix of an image, a sound or a video"):
        open_data((tmp_path / "none").mkdir() or tmp_path / "none")


def test_a_damaged_clip_stops_training_or_is_skipped(tmp_path: Path) -> None:
    write_sounds(tmp_path / "data", num=4)
    (tmp_path / "data" / "low" / "0.wav").write_bytes(b"RIFF")
    options: dict[str, Any] = {"recipe": "scratch", "model": "vit_mu_conv8_mel40x96", "report": False}
    with pytest.raises(DataError, match=r"low/0\.wav(.|\n)*on_error=skip"):
        train(tmp_path / "data", settings=["steps=2", "batch_size=8"], run=tmp_path / "run", **options)
    settings = ["steps=2", "batch_size=8", "on_error=skip"]
    result = train(tmp_path / "data", settings=settings, run=tmp_path / "skipped", **options)
    assert result.story[-1] == "Skipped 1 unreadable clip: low/0.wav."
    for file in (tmp_path / "data").rglob("*.wav"):
        file.write_bytes(b"")
    with pytest.raises(DataError, match="is empty"):
        train(tmp_path / "data", settings=settings, run=tmp_path / "none", **options)


def test_memory_does_not_grow_with_the_number_of_clips(tmp_path: Path) -> None:
    """A thousand clips of 64 kB, or a hundred: reading them takes the same memory, to within 2 MiB."""
    peaks = {}
    content = wav(np.tile(tone(0, "low"), 16), RATE)
    prepare = SoundPreparation(preprocess=SoundPreprocess(rate=RATE, seconds=0.25), training=True)
    for num in (50, 500):
        for label in CLASSES:
            (tmp_path / str(num) / label).mkdir(parents=True)
            for number in range(num):
                (tmp_path / str(num) / label / f"{number}.wav").write_bytes(content)
        tracemalloc.start()
        loader = Loader(source=open_data(tmp_path / str(num)), prepare=prepare, batch_size=20, shuffle=True, workers=2)
        assert sum(len(batch.names) for batch in loader.epoch(0)) == 2 * num
        peaks[num] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peaks[500] - peaks[50] < 2 * 2**20


def test_batches_do_not_depend_on_the_layout(tmp_path: Path) -> None:
    write_sounds(tmp_path / "sounds", num=3)
    prepare = SoundPreparation(preprocess=SoundPreprocess(rate=RATE, seconds=0.25), training=True)
    batches = []
    for data in (tmp_path / "sounds", write_zip(tmp_path / "sounds.zip", tmp_path / "sounds")):
        loader = Loader(source=open_data(data), prepare=prepare, batch_size=6, seed=3, shuffle=True, workers=0)
        batches.append(next(iter(loader.epoch(0))))
    assert batches[0].names == batches[1].names
    assert bool((batches[0].fields["sound"] == batches[1].fields["sound"]).all())
