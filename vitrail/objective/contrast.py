"""Contrastive learning of several modalities: NCE and MIL-NCE, as in VATT (Akbari et al., arXiv 2104.11178).

The embeddings of a sample in two modalities are a positive pair. Its negatives are the pairs of one of the two with the
other modality of every other sample of the batch (equation 2). A sample may have several candidate texts, any of which
may be the right one: their sum is the positive (equation 3; Miech et al., arXiv 1912.06430).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vitrail import contract
from vitrail.batch import Fields, apply_model
from vitrail.metric.retrieval import Hits, find_hits, mean_recall
from vitrail.metric.score import Metric, Score, fraction_error

RECALL = Metric("recall", "recall at 1", is_fraction=True)
NO_TEXT = -1
"""In place of the hash of a text, for a sample without one."""
MULTIPLIER = 6364136223846793005  # Knuth's, of MMIX
BLOCK_ROWS = 128


class Contrast(contract.Objective):
    """The model returns embeddings of length one, [B S D]: one for each of `outputs`, a tower and a common space.

    `pairs` are the indices of those that are compared. `text` is the name of the field of texts, if there is one; it is
    the last output and may have several rows, one per candidate. A candidate that consists of `pad` is missing.

    All processes need the same number of samples and of candidates, as in training; evaluation compares nothing until
    all answers are there.
    """

    METRIC = RECALL
    COMPARES = "contrastive loss"
    COUPLED = True

    def __init__(
        self,
        *,
        outputs: tuple[tuple[str, str], ...],
        pairs: tuple[tuple[int, int], ...],
        text: str | None = None,
        temperature: float = 0.07,
        pad: int = 0,
    ) -> None:
        super().__init__()
        assert text is None or [name for name, _ in outputs].index(text) == len(outputs) - 1, "text is the last output"
        self.outputs, self.pairs, self.text = outputs, pairs, text
        self.temperature, self.pad = temperature, pad

    def forward(self, model: nn.Module, fields: Fields) -> Float[Tensor, " B"]:
        embeddings, real = _at_least_float32(apply_model(model, fields)), self._real_texts(fields)
        num, num_texts = real.shape
        # One message for everything; whether a text is real has no gradient.
        gathered = self.gather(torch.cat([embeddings.flatten(1), real.to(embeddings)], dim=1))
        all_embeddings = gathered[:, :-num_texts].reshape(len(gathered), *embeddings.shape[1:])
        return self.losses(all_embeddings, gathered[:, -num_texts:] > 0, first=self.rank * num, num=num)

    def losses(
        self, embeddings: Float[Tensor, "n S D"], real: Bool[Tensor, "n P"], *, first: int, num: int
    ) -> Float[Tensor, " num"]:
        """The losses of the samples from `first` on, against all samples."""
        total = embeddings.new_zeros(num)
        for one, other in self.pairs:
            has_text = self.text is not None and self.outputs[other][0] == self.text
            rows = embeddings[:, other:] if has_text else embeddings[:, other : other + 1]
            total = total + nce_losses(
                embeddings[:, one],
                rows,
                real if has_text else torch.ones_like(rows[..., 0], dtype=torch.bool),
                first=first,
                num=num,
                temperature=self.temperature,
            )
        return total

    def _real_texts(self, fields: Fields) -> Bool[Tensor, "B P"]:
        """Which candidate texts are not missing; one that is always there, if there are no texts."""
        if self.text is None:
            some = next(iter(fields.values()))
            return torch.ones(len(some), 1, dtype=torch.bool, device=some.device)
        return self._candidates(fields).ne(self.pad).any(dim=2)

    def _candidates(self, fields: Fields) -> Int64[Tensor, "B P N"]:
        assert self.text is not None
        ids = fields[self.text]
        return ids if ids.ndim == 3 else ids[:, None]

    def answers(self, model: nn.Module, fields: Fields) -> Fields:
        """The embeddings, of the first text if there are several, a hash of it, and the label if there is one."""
        found = {"embedding": _at_least_float32(apply_model(model, fields))}
        if self.text is not None:
            rows, last = torch.arange(len(found["embedding"])), len(self.outputs) - 1
            first = self._real_texts(fields).int().argmax(dim=1)
            texts = found["embedding"][rows, last + first]
            found["embedding"] = torch.cat([found["embedding"][:, :last], texts[:, None]], dim=1)
            found["text"] = hash_texts(self._candidates(fields)[rows, first], self.pad)
        return {**found, **{name: fields[name] for name in ("label",) if name in fields}}

    def directions(self, answers: Fields) -> dict[tuple[str, str], Hits]:
        """The hits from one modality to another, for each pair and both ways.

        A hit is a nearest neighbour with the same label. Without labels it is the sample itself or, where texts are
        compared, one with the same text.
        """
        embeddings, found = answers["embedding"], {}
        everywhere = torch.ones(len(embeddings), dtype=torch.bool)
        for pair in self.pairs:
            names = tuple(self.outputs[index][0] for index in pair)
            groups = self._groups(answers, with_text=self.text in names)
            has = [answers["text"] != NO_TEXT if name == self.text else everywhere for name in names]
            for one, other in ((0, 1), (1, 0)):
                found[names[one], names[other]] = find_hits(
                    embeddings[:, pair[one]],
                    embeddings[:, pair[other]],
                    groups,
                    has_query=has[one],
                    has_candidate=has[other],
                )
        return found

    def _groups(self, answers: Fields, *, with_text: bool) -> Int64[Tensor, " n"]:
        """A number for each sample, the same for those that count as the same."""
        labels = answers.get("label")
        if labels is not None and labels.ndim == 1:
            return labels
        return answers["text"] if with_text else torch.arange(len(answers["embedding"]))

    def score(self, answers: Fields) -> Score:
        """Score by the recall, averaged over both directions of all pairs; the loss compares all samples at once."""
        num = len(answers["embedding"])
        if not num or not bool(answers["embedding"].isfinite().all()):
            return Score(RECALL, 0.0, 0.0, math.nan, num)
        value, error = mean_recall(list(self.directions(answers).values()))
        return Score(RECALL, value, error, self.sample_losses(answers).double().mean().item(), num)

    def monitor(self, answers: Fields) -> contract.Monitoring:
        """The recall in each direction."""
        return contract.Monitoring(
            tuple(
                Score(
                    Metric(f"{one}_to_{other}", f"{one} to {other}", is_fraction=True),
                    hits.recall,
                    fraction_error(hits.recall, hits.num),
                    0.0,
                    hits.num,
                )
                for (one, other), hits in self.directions(answers).items()
            )
        )

    def sample_losses(self, answers: Fields) -> Float[Tensor, " n"]:
        """The loss of each sample against all others, whatever the batches and processes were."""
        embeddings = answers["embedding"]
        num = len(embeddings)
        real = answers["text"][:, None] != NO_TEXT if self.text else torch.ones(num, 1, dtype=torch.bool)
        blocks = [
            self.losses(embeddings, real, first=first, num=min(BLOCK_ROWS, num - first))
            for first in range(0, num, BLOCK_ROWS)
        ]
        return torch.cat(blocks) if blocks else embeddings.new_zeros(0)


def nce_losses(
    one: Float[Tensor, "n D"],
    other: Float[Tensor, "n P D"],
    real: Bool[Tensor, "n P"],
    *,
    first: int,
    num: int,
    temperature: float,
) -> Float[Tensor, " num"]:
    """-log of the positives' share among all pairs with a member of the sample, for `num` samples from `first` on.

    With one candidate this is NCE, with several MIL-NCE. Candidates that are not real are no pairs; a sample without
    real ones has no loss.
    """
    own = slice(first, first + num)
    has_positive = real[own].any(dim=1)
    with torch.autocast(one.device.type, enabled=False):  # bfloat16 is too coarse for what a low temperature magnifies
        to_others = torch.einsum("bd,npd->bnp", one[own], other) / temperature
        from_others = torch.einsum("bpd,nd->bnp", other[own], one) / temperature
    is_own = torch.arange(len(one), device=one.device) == torch.arange(first, first + num, device=one.device)[:, None]
    # Where none is real, all stand in for the positives, so that everything is finite until it is set to zero.
    counted = real[own] | ~has_positive[:, None]
    positives = to_others[torch.arange(num), torch.arange(first, first + num)].masked_fill(~counted, -torch.inf)
    negatives = torch.cat(
        [
            to_others.masked_fill(is_own[..., None] | ~real, -torch.inf).flatten(1),
            from_others.masked_fill(is_own[..., None] | ~real[own][:, None], -torch.inf).flatten(1),
        ],
        dim=1,
    )
    positive = positives.logsumexp(dim=1)
    losses = torch.cat([positives, negatives], dim=1).logsumexp(dim=1) - positive
    return torch.where(has_positive, losses, 0.0)


def hash_texts(ids: Int64[Tensor, "B N"], pad: int) -> Int64[Tensor, " B"]:
    """A number for each text, the same for equal ones, whatever their padding; `NO_TEXT` for those without tokens."""
    real = ids != pad
    powers = torch.full_like(ids[:1], MULTIPLIER).cumprod(dim=1)  # modulo 2^64
    hashes = ((ids + 1) * powers * real).sum(dim=1) & torch.iinfo(torch.int64).max
    return torch.where(real.any(dim=1), hashes, NO_TEXT)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


Objective = Contrast
