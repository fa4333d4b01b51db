"""A language model and the same one in transformers: GPT-2 with learned positions, GPT-NeoX with rotary ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.contract.small_texts import write_texts
from tests.parity.conftest import transformers
from vitrail.run.text_model import load_text_model
from vitrail.verbs.convert import convert
from vitrail.verbs.train import train

NAMES = {"learned": "GPT2LMHeadModel", "rotary": "GPTNeoXForCausalLM"}


@pytest.mark.parametrize("position", NAMES)
def test_logits_and_tokens(position: str, tmp_path: Path) -> None:
    text = write_texts(tmp_path / "texts") / "story.txt"
    words = ["model.width=64", "model.depth=3", "model.heads=4", "model.hidden=256", f"model.position={position}"]
    short = ["steps=20", "context=32", "tokenizer=subwords", "vocab=300", "precision=float32", "batch_size=8"]
    train(text, recipe="language", run=tmp_path / "run", settings=[*words, *short], report=False)
    result = convert(tmp_path / "run", to="hf", out=tmp_path / "hf")
    assert result.model == NAMES[position]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert type(model).__name__ == NAMES[position]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours = load_text_model(tmp_path / "run")
    sentence = "the dog sees a red hat. Ünïcode too"
    ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == ours.tokenizer.encode(sentence).tolist()
    assert tokenizer.decode(ids[0]) == sentence
    assert tokenizer.pad_token_id == ours.tokenizer.pad
    with torch.no_grad():
        assert (model(ids[:, :32]).logits - ours.model(ids[:, :32])).abs().max() < 1e-4
        assert ours.model(ids[:, :32]).std() > 0.1
    assert (model.config.bos_token_id, model.config.eos_token_id) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    run_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "run")
    assert run_tokenizer(sentence)["input_ids"] == ids[0].tolist()
