"""A language model: a stack of transformer blocks over token ids, with tied embeddings.

Causal, it predicts the next token (GPT, Radford et al. 2018); otherwise masked tokens (BERT, arXiv 1810.04805). Both
are pre-norm. With learned positions the causal form is GPT-2's, with rotary ones GPT-NeoX's.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail import contract
from vitrail.nn.attention.full import Attention
from vitrail.nn.cache import Cache
from vitrail.nn.embedding import TokenEmbedding, init_text_model
from vitrail.nn.encoder import Encoder, build_encoder
from vitrail.tokens import Tokens


class Spec(contract.TokenSpec):
    """Everything that determines what a language model computes."""

    causal: bool = True
    """Whether it predicts the next token, and sees earlier ones only."""


class LanguageModel(contract.TokenModel):
    """`forward` maps token ids to logits for each token of the vocabulary, at every place."""

    TAKES = ("text",)
    spec: Spec

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = TokenEmbedding(
            vocab=spec.vocab,
            width=spec.width,
            context=spec.context,
            position=spec.position,
            dropout_rate=spec.dropout_rate,
        )
        self.rotary = spec.new_rotary()
        self.blocks: Encoder = build_encoder(
            self._new_attention,
            depth=spec.depth,
            width=spec.width,
            hidden=spec.hidden,
            norm_eps=spec.norm_eps,
            dropout_rate=spec.dropout_rate,
            hidden_dropout_rate=0.0,
        )
        self.norm = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        init_text_model(self, depth=spec.depth)

    def _new_attention(self) -> Attention:
        spec = self.spec
        return Attention(
            width=spec.width,
            heads=spec.heads,
            causal=spec.causal,
            rotary=self.rotary,
            dropout_rate=spec.dropout_rate,
            weights_dropout_rate=0.0,
        )

    def tokenize(self, text: Int64[Tensor, "B N"]) -> Tokens:
        """Embed token ids. A causal model needs no mask: padding follows the text, so no token of it attends to it."""
        return self.embed.tokens(text, None if self.spec.causal else text != self.spec.pad)

    def encode(self, tokens: Tokens) -> Tokens:
        """Apply the blocks and the last normalisation."""
        tokens = self.blocks(tokens)
        return tokens.with_x(self.norm(tokens.x))

    def logits(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """How likely each token of the vocabulary is, from encoded tokens."""
        return self.embed.logits(x)

    def forward(self, text: Int64[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        return self.logits(self.encode(self.tokenize(text)).x)

    def step(
        self, text: Int64[Tensor, "B N"], caches: Sequence[Cache] | None = None
    ) -> tuple[Float[Tensor, "B V"], tuple[Cache, ...]]:
        """Read the next tokens; return the logits for the one after them, and the new caches."""
        first_place = 0 if caches is None else caches[0].k.shape[2]
        tokens, caches = self.blocks.step(self.embed.tokens(text, first_place=first_place), caches)
        return self.logits(self.norm(tokens.x[:, -1])), caches

    def flops(self) -> int:
        """Count twice the multiply-adds for a full context, without elementwise operations, as usual."""
        layout, total = self.spec.layout, 2 * self.spec.context * self.embed.weight.numel()
        for block in self.blocks:
            matrices = sum(part.weight.numel() for part in block.modules() if isinstance(part, nn.Linear))
            total += 2 * layout.num_tokens * matrices + block.attn.mixing_flops(layout)  # type: ignore[union-attr,operator]
        return total


Model = LanguageModel
