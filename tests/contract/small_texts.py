"""Small texts for tests, and runs of all three recipes on them."""

from __future__ import annotations

import random
from pathlib import Path

from tests.contract.small_clips import write_media

SUBJECTS = ("a man", "a woman", "the dog", "a child", "the player", "two girls")
VERBS = ("rides", "sees", "holds", "paints", "throws")
OBJECTS = ("a horse", "the ball", "a red hat", "the street", "a guitar")
GERMAN = {
    "a man": "ein Mann", "a woman": "eine Frau", "the dog": "der Hund", "a child": "ein Kind",
    "the player": "der Spieler", "two girls": "zwei Mädchen", "rides": "reitet", "sees": "sieht", "holds": "hält",
    "paints": "malt", "throws": "wirft", "a horse": "ein Pferd", "the ball": "den Ball",
    "a red hat": "einen roten Hut", "the street": "die Straße", "a guitar": "eine Gitarre",
}  # fmt: skip
# Deck 000: what OpenAI's page shows for cl100k.
DECK_TEXT = (
    "Many words map to one token, but some don't: indivisible.\n\n"
    "Unicode characters like emojis may be split into many tokens containing the underlying bytes: "
    "\N{RAISED BACK OF HAND}\N{EMOJI MODIFIER FITZPATRICK TYPE-5}\n\n"
    "Sequences of characters commonly found next to each other may be grouped together: 1234567890"
)
DECK_IDS = [
    8607, 4339, 2472, 311, 832, 4037, 11, 719, 1063, 1541, 956, 25, 3687, 23936, 382, 35020, 5885, 1093, 100166, 1253,
    387, 6859, 1139, 1690, 11460, 8649, 279, 16940, 5943, 25, 11410, 97, 248, 9468, 237, 122, 271, 1542, 45045, 315,
    5885, 17037, 1766, 1828, 311, 1855, 1023, 1253, 387, 41141, 3871, 25, 220, 4513, 10961, 16474, 15,
]  # fmt: skip
TINY = ("model.width=32", "model.depth=1", "model.heads=2", "model.hidden=64")
FAST = ("batch_size=8", "precision=float32", "eval_every=4", "save_every=2", "workers=0")
RECIPES = ("language", "masked_language", "translate")


def sentences(num: int, seed: int = 0) -> list[tuple[str, str]]:
    """English sentences and their translations."""
    rng = random.Random(seed)
    parts = [[rng.choice(words) for words in (SUBJECTS, VERBS, OBJECTS)] for _ in range(num)]
    return [(" ".join(each) + ".", " ".join(GERMAN[word] for word in each) + ".") for each in parts]


def write_texts(folder: Path, num: int = 120) -> Path:
    """A text file, and a folder of aligned ones."""
    folder.mkdir(exist_ok=True)
    pairs = sentences(num)
    (folder / "story.txt").write_text("\n".join(first for first, _ in pairs) + "\n", encoding="utf-8")
    (folder / "pairs").mkdir()
    for split, rows in (("train", pairs[: num - 20]), ("val", pairs[num - 20 : num - 10]), ("test", pairs[num - 10 :])):
        for place, language in enumerate(("en", "de")):
            text = "".join(f"{row[place]}\n" for row in rows)
            (folder / "pairs" / f"{split}.{language}").write_text(text, encoding="utf-8")
    return folder


def words_of(recipe: str, folder: Path, run: Path, *more: str) -> list[str]:
    """The command that trains a small model."""
    data = folder / ("pairs" if recipe == "translate" else "story.txt")
    own = {"language": ("context=16",), "masked_language": ("context=16",), "translate": ("vocab=300", "context=48")}
    return ["train", str(data), "--recipe", recipe, "--run", str(run), *TINY, *FAST, *own[recipe], *more]


def write_examples(folder: Path) -> None:
    """The texts and clips of the documents' commands."""
    texts = write_texts(folder / "texts")
    (texts / "story.txt").rename(folder / "captions.txt")
    (folder / "input.txt").write_text("ROMEO: The sheep and goat are grazing.\n" * 40)
    (texts / "pairs").rename(folder / "multi30k")
    write_media(folder)
    for split in ("train", "val", "test"):
        (folder / "multi30k" / f"{split}.fr").write_text((folder / "multi30k" / f"{split}.en").read_text())
