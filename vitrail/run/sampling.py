"""Sampling from a language model, token by token, with a cache of keys and values.

Each token depends on the seed and on the tokens before it, so that with and without the cache the same text comes out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from vitrail.contract import TokenModel
from vitrail.data.text.tokenizer import Ids
from vitrail.model.language import LanguageModel
from vitrail.run.token_stream import TokenStream


def sample_tokens(
    model: TokenModel,
    prompt: Ids,
    *,
    num: int,
    temperature: float = 0.8,
    top_k: int | None = None,
    seed: int = 0,
    end: int | None = None,
    forbidden: Collection[int] = (),
    cached: bool = True,
) -> Iterator[int]:
    """Continue a prompt of at least one token by `num` tokens, or until `end`.

    A temperature of 0 takes the most likely token every time. Once the context is full, the model reads the last half
    of it again and goes on from there.
    """
    assert isinstance(model, LanguageModel)
    generator = torch.Generator().manual_seed(seed)
    context: int = model.spec.context
    ids = [int(number) for number in prompt][-context:]
    device = model.embed.weight.device
    banned = torch.tensor(sorted(forbidden), dtype=torch.int64)
    with torch.inference_mode():
        stream = TokenStream(model) if cached else None
        for index in range(num):
            full = len(ids) > context
            ids = ids[-(context // 2) :] if full else ids
            if stream is None:
                logits = model(torch.tensor([ids], device=device))[0, -1]
            else:
                logits = stream.read(ids) if full or index == 0 else stream.step(ids[-1])
            number = draw(logits.float().cpu().index_fill(0, banned, -torch.inf), temperature, top_k, generator)
            if number == end:
                return
            yield number
            ids.append(number)


def draw(logits: Float[Tensor, " V"], temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Draw one token: from the `top_k` most likely, with probabilities sharpened by the temperature."""
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        smallest = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    scaled = (logits.double() - logits.max()) / temperature  # the maximum stays finite at any temperature
    return int(torch.multinomial(scaled.softmax(dim=0), 1, generator=generator))
