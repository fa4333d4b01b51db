"""Text as data: tokenizers, documents, aligned sentences, windows, hidden tokens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.small_texts import DECK_IDS, DECK_TEXT
from vitrail.data.find import open_data
from vitrail.data.loader import Loader
from vitrail.data.prepare.text import Masking, TextPreparation
from vitrail.data.rng import group_lengths
from vitrail.data.text import tokenizer as tokenizers
from vitrail.data.text.corpus import open_corpus
from vitrail.data.text.encoded import lines, sentence_pairs, windows
from vitrail.data.text.parallel import open_parallel
from vitrail.data.text.tokenizer import learn_tokenizer, parse_tokenizer, read_tokenizer
from vitrail.errors import DataError, RunError, SpecError

FABLE = "The sheep and goat are grazing.\nMessi is the goat, not Ronaldo.\n" * 4
# Deck 000: four windows of tinyshakespeare, and their targets.
DECK_INPUTS = [
    [24, 43, 58, 5, 57, 1, 46, 43],
    [44, 53, 56, 1, 58, 46, 39, 58],
    [52, 58, 1, 58, 46, 39, 58, 1],
    [25, 17, 27, 10, 0, 21, 1, 54],
]
DECK_TARGETS = [
    [43, 58, 5, 57, 1, 46, 43, 39],
    [53, 56, 1, 58, 46, 39, 58, 1],
    [58, 1, 58, 46, 39, 58, 1, 46],
    [17, 27, 10, 0, 21, 1, 54, 39],
]


@pytest.mark.data
def test_the_decks_cl100k_example(data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its 57 ids decode to its text and encode to the same ids.

    The deck's file shows bananas where its ids have a raised back of hand with a medium-dark skin tone: two code
    points, four UTF-16 units, six tokens. With those, the text has the 252 characters that the deck counts.
    """
    ranks = (data_dir / "text/bpe/cl100k_base.tiktoken").read_bytes()
    (tmp_path / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4").write_bytes(ranks)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    tokenizer = learn_tokenizer("cl100k", [])
    assert len(DECK_IDS) == 57
    assert tokenizer.encode(DECK_TEXT).tolist() == DECK_IDS
    assert tokenizer.decode(DECK_IDS) == DECK_TEXT
    assert len(DECK_TEXT.encode("utf-16-le")) // 2 == 252
    import tiktoken

    reference = tiktoken.get_encoding("cl100k_base")
    text = (data_dir / "text/multi30k/val.fr").read_text(encoding="utf-8")[:20_000] + " 12345 \u6f22\u5b57"
    assert tokenizer.encode(text).tolist() == reference.encode(text)


@pytest.mark.data
def test_the_decks_windows(data_dir: Path) -> None:
    """Four rows of eight inputs and targets come out of our loader, at the places where the deck has them."""
    text = (data_dir / "text/tinyshakespeare/input.txt").read_text(encoding="utf-8")
    source = open_corpus(data_dir / "text/tinyshakespeare/input.txt")
    tokenizer = learn_tokenizer("characters", [text])
    ids = tokenizer.encode(text)
    assert len(set(text)) == 65
    for inputs, targets in zip(DECK_INPUTS, DECK_TARGETS, strict=True):
        start = text.index(tokenizer.decode([*inputs, targets[-1]]))
        table = windows(source, ids[start : start + 9], tokenizer, context=8, num_characters=9)
        prepare = TextPreparation(context=8, pad=tokenizer.pad, crops=True)
        (batch,) = Loader(source=table, prepare=prepare, batch_size=1).epoch()
        assert batch.fields["text"][0, :-1].tolist() == inputs
        assert batch.fields["text"][0, 1:].tolist() == targets


@pytest.mark.parametrize("kind", ["characters", "subwords", "words"])
def test_a_tokenizer_survives_its_file(kind: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {} if kind == "characters" else {"vocab": 300}
    tokenizer = learn_tokenizer(kind, [FABLE], **options)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    again = read_tokenizer(tmp_path / "tokenizer.json")
    assert again.encode(FABLE).tolist() == tokenizer.encode(FABLE).tolist()
    assert again.special_ids == tokenizer.special_ids
    assert tokenizer.pad not in tokenizer.encode(FABLE)
    if kind != "words":
        assert again.decode(again.encode(FABLE)) == FABLE
    assert max(tokenizer.encode(FABLE)) < min(tokenizer.special_ids - {0})
    assert learn_tokenizer(kind, [FABLE], **options).to_json() == tokenizer.to_json()


@given(text=st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_sub_words_encode_any_text(text: str) -> None:
    tokenizer = learn_tokenizer("subwords", [FABLE], vocab=300)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert not set(tokenizer.encode(text).tolist()) & tokenizer.special_ids


def test_special_tokens_are_recognised_only_where_they_are_meant() -> None:
    tokenizer = learn_tokenizer("words", [FABLE], lowercase=True)
    mask = tokenizer.special("[MASK]")
    assert mask not in tokenizer.encode("The [MASK] and goat")
    assert tokenizer.encode_marked("[MASK] and [MASK]").tolist() == [mask, tokenizer.encode("and")[0], mask]
    with pytest.raises(DataError, match=r"no special token \[MSK\](.|\n)*Try \[PAD\]"):
        tokenizer.encode_marked("The [MSK] barks")


def test_a_long_text_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = learn_tokenizer("characters", [FABLE])
    whole = tokenizer.encode(FABLE)
    monkeypatch.setattr(tokenizers, "PART_CHARACTERS", 10)
    assert tokenizer.encode(FABLE).tolist() == whole.tolist()


def test_learned_tokens_come_before_special_ones() -> None:
    tokenizer = learn_tokenizer("words", [FABLE])
    assert sorted(tokenizer.special_ids) == list(range(tokenizer.num_tokens - 5, tokenizer.num_tokens))
    with pytest.raises(SpecError, match="all characters are tokens"):
        learn_tokenizer("characters", [FABLE], vocab=9)


def test_a_gap_takes_the_space_of_a_sub_word_only() -> None:
    characters, subwords = (learn_tokenizer(kind, [FABLE]) for kind in ("characters", "subwords"))
    for tokenizer, before in ((characters, "the "), (subwords, "the")):
        mask = tokenizer.special("[MASK]")
        found = tokenizer.encode_marked("the [MASK]at").tolist()
        assert found == [*tokenizer.encode(before), mask, *tokenizer.encode("at")]


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": 3}'])
def test_a_file_that_is_no_tokenizer(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(RunError, match="is not a tokenizer"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_a_tokenizer_without_special_tokens_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    (tmp_path / "tokenizer.json").write_text(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str())
    with pytest.raises(RunError, match=r"has no \[PAD\]"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_settings_that_no_tokenizer_has() -> None:
    with pytest.raises(SpecError, match="need a token for each byte"):
        learn_tokenizer("subwords", [FABLE], vocab=100)
    with pytest.raises(SpecError, match="cl100k is a finished tokenizer"):
        learn_tokenizer("cl100k", [], lowercase=True)


def test_documents(tmp_path: Path) -> None:
    for name, text in (("train.txt", "one\r\ntwo"), ("val.txt", "three"), ("README.md", "no split"), ("x.png", "\0")):
        (tmp_path / name).write_bytes(text.encode())
    table = open_corpus(tmp_path)
    assert table.split_names == ("train", "val")
    assert [item.content() for item in table.split("train")] == ["one\ntwo"]
    (tmp_path / "rows.csv").write_text("title,text,split\na,first,train\nb,second,test\n")
    rows = open_corpus(tmp_path / "rows.csv")
    assert [item.content() for item in rows] == ["first", "second"]
    assert open_corpus(tmp_path / "rows.csv", column="title")[1].content() == "b"
    assert rows.checksum != open_corpus(tmp_path / "rows.csv", column="title").checksum


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bad.txt", b"good\nbad \xff line", r"is not text in UTF-8(.|\n)*0xff in line 2, byte 5"),
        ("empty.txt", b" \n ", "has no text"),
        ("rows.csv", b"a,b\n1,2\n", r"has no column 'text'(.|\n)*the columns a, b"),
        ("rows.csv", b"text,b\n1\n", r"has a row of another length(.|\n)*1 cells in line 2"),
        ("folder/x.jpg", b"", r"has no text files"),
        ("rows.csv", b"text,split\na,train\nb,trian\n", r"with and without a split(.|\n)*rows.csv:3 without"),
        ("rows.csv", b'text\n"a" b\n', "is not a table"),
    ],
)
def test_text_that_cannot_be_read(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_corpus(path.parent if path.parent != tmp_path else path)


def test_quotation_marks_in_tsv_are_characters(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('en\tde\n"Hi, he said.\tHallo\nTwo\tZwei\n')
    table = open_parallel(tmp_path / "a.tsv", source="en", targets=("de",))
    assert [item.content().target for item in table] == ["Hallo", "Zwei"]
    assert table[0].content().source.endswith('"Hi, he said.')


def test_text_without_a_recipe_for_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(DataError, match="Try vitrail train --recipe language for text"):
        open_data(tmp_path / "a.txt")


def write_parallel(folder: Path, **counts: int) -> Path:
    folder.mkdir()
    for name, num in counts.items():
        split, language = name.rsplit("_", 1)
        (folder / f"{split}.{language}").write_text("".join(f"{language} {row}\n" for row in range(num)))
    return folder


def test_aligned_sentences(tmp_path: Path) -> None:
    folder = write_parallel(
        tmp_path / "a", train_en=3, train_de=3, train_fr=3, test_2016_flickr_en=1, test_2016_flickr_de=1
    )
    (folder / "test_2016_flickr.fr").write_text("fr 0\n")
    table = open_parallel(folder, source="en", targets=("de", "fr"))
    assert table.split_names == ("train", "test")
    pairs = [item.content() for item in table.split("train")]
    assert pairs[0] == ("translate English to German: en 0", "de 0", "de")
    assert pairs[-1] == ("translate English to French: en 2", "fr 2", "fr")
    (tmp_path / "pairs.csv").write_text("en,xx\nhello,hullo\n,\n")
    (item,) = open_parallel(tmp_path / "pairs.csv", source="en", targets=("xx",))
    assert item.content() == ("translate English to xx: hello", "hullo", "xx")


def test_sentences_that_are_not_aligned(tmp_path: Path) -> None:
    folder = write_parallel(tmp_path / "a", train_en=3, train_de=2)
    with pytest.raises(DataError, match=r"are not aligned(.|\n)*3 and 2 lines"):
        open_parallel(folder, source="en", targets=("de",))
    with pytest.raises(DataError, match=r"has no train.fr(.|\n)*train in de, en"):
        open_parallel(folder, source="en", targets=("fr",))
    with pytest.raises(DataError, match=r"has no sentences in 'xx'(.|\n)*Try source=de"):
        open_parallel(folder, source="xx", targets=("de",))
    with pytest.raises(DataError, match="no aligned sentences"):
        open_parallel(tmp_path / "nowhere", source="en", targets=("de",))


def test_windows_show_every_token_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(FABLE)
    tokenizer = learn_tokenizer("characters", [FABLE])
    ids = tokenizer.encode(FABLE)
    table = windows(open_corpus(tmp_path / "a.txt"), ids, tokenizer, context=16, num_characters=len(FABLE))
    loader = Loader(source=table, prepare=TextPreparation(context=16, pad=tokenizer.pad, crops=True), batch_size=4)
    predicted = torch.cat(
        [row[1:][row[1:] != tokenizer.pad] for batch in loader.epoch() for row in batch.fields["text"]]
    )
    assert predicted.tolist() == ids[1:].tolist()


def test_random_windows_begin_anywhere(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(FABLE)
    tokenizer = learn_tokenizer("characters", [FABLE])
    ids = np.arange(200)
    table = windows(open_corpus(tmp_path / "a.txt"), ids, tokenizer, context=16, num_characters=200)
    prepare = TextPreparation(context=16, pad=999, crops=True, training=True)
    loader = Loader(source=table, prepare=prepare, batch_size=len(table), shuffle=True)
    starts = {int(row[0]) for batch in loader.batches(0, 400) for row in batch.fields["text"]}
    assert starts >= set(range(200 - 16))
    short = prepare.reduced(0.5, (16,))
    assert short.vary((ids,), np.random.default_rng(0))[0].shape == (9,)


def test_masked_tokens() -> None:
    """15 %, of which 80 % behind [MASK], 10 % behind a random token, 10 % as they are."""
    ids = np.arange(1, 20_001)
    text, target = Masking(mask=50_000, vocab=40_000).apply(ids, np.random.default_rng(0), pad=0)
    hidden = target != 0
    assert hidden.mean() == 0.15
    assert np.array_equal(target[hidden], ids[hidden])
    assert np.array_equal(text[~hidden], ids[~hidden])
    shown = text[hidden]
    assert np.mean(shown == 50_000) == pytest.approx(0.8, abs=0.02)
    assert np.mean(shown == ids[hidden]) == pytest.approx(0.1, abs=0.02)
    assert sum(Masking(mask=9, vocab=5).apply(np.array([3]), np.random.default_rng(0), pad=0)[1]) == 3


def test_evaluation_masks_the_same_tokens_in_any_batch(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(FABLE)
    tokenizer = learn_tokenizer("words", [FABLE])
    table = lines(open_corpus(tmp_path / "a.txt"), [FABLE], tokenizer, 32)
    masking = Masking(mask=tokenizer.special("[MASK]"), vocab=5)
    prepare = TextPreparation(fields=("text", "target"), context=32, pad=tokenizer.pad, masking=masking)
    found = []
    for size in (1, 4):
        batches = list(Loader(source=table, prepare=prepare, batch_size=size).epoch())
        rows = {
            int(index): [number for number in row.tolist() if number != tokenizer.pad]
            for batch in batches
            for index, row in zip(batch.indices, batch.fields["text"], strict=True)
        }
        found.append(rows)
    assert found[0] == found[1]


def test_sentences_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    folder = write_parallel(tmp_path / "a", train_en=12, train_de=12)
    table = open_parallel(folder, source="en", targets=("de",))
    tokenizer = learn_tokenizer("characters", [text for item in table for text in item.content()[:2]])
    encoded = sentence_pairs(table, tokenizer, context=len("translate English to German: en 1") + 1)
    assert (len(encoded), encoded.num_dropped) == (10, 2)
    source, target = encoded.content(0)
    assert source[-1] == target[-1] == tokenizer.special("[EOS]")
    assert target[0] == tokenizer.special("[BOS]")
    with pytest.raises(DataError, match=r"longer than the context(.|\n)*Try context=20"):
        sentence_pairs(table, tokenizer, context=5)


@given(num=st.integers(1, 60), size=st.integers(1, 9), epoch=st.integers(0, 3), shuffle=st.booleans())
@settings(max_examples=60, deadline=None)
def test_batches_of_similar_length_hold_everything_once(num: int, size: int, epoch: int, shuffle: bool) -> None:
    lengths = np.random.default_rng(num).integers(1, 50, num)
    order = np.random.default_rng(epoch).permutation(num) if shuffle else np.arange(num)
    grouped = group_lengths(order, lengths, size, seed=0, epoch=epoch, shuffle=shuffle)
    assert sorted(grouped.tolist()) == list(range(num))
    batches = [lengths[grouped[start : start + size]] for start in range(0, num, size)]
    padding = sum(int(batch.max()) * len(batch) - int(batch.sum()) for batch in batches)
    plain = [lengths[order[start : start + size]] for start in range(0, num, size)]
    assert padding <= sum(int(batch.max()) * len(batch) - int(batch.sum()) for batch in plain) + 50 * size


def test_no_sample_is_left_out_for_its_length() -> None:
    """Training drops the incomplete batch: it must not be the longest samples every time."""
    lengths = np.arange(100)
    seen: set[int] = set()
    for epoch in range(20):
        order = np.random.default_rng(epoch).permutation(100)
        seen |= set(group_lengths(order, lengths, 32, seed=0, epoch=epoch, shuffle=True)[:96].tolist())
    assert seen == set(range(100))


def test_evaluation_shows_no_masked_token() -> None:
    masking = Masking(mask=50_000, vocab=40_000)
    text, target = masking.apply(np.arange(1, 1001), np.random.default_rng(0), pad=0, training=False)
    assert set(text[target != 0].tolist()) == {50_000}
    unknown = Masking(mask=9, vocab=5, unknown=7)
    assert not unknown.apply(np.array([7, 7]), np.random.default_rng(0), pad=0)[1].any()


def test_old_names_of_special_tokens_stay() -> None:
    """They are in the tokenizer.json of every run."""
    assert tokenizers.SPECIAL == ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[MASK]")
    assert re.fullmatch(tokenizers.LOOKS_SPECIAL, "[MASK]")
    assert parse_tokenizer(learn_tokenizer("characters", ["ab"]).to_json()).num_tokens == 7
