"""The encoder-decoder transformer, from text to text (Vaswani et al., arXiv 1706.03762, figure 1), here pre-norm.

Source and target share one vocabulary and one table of embeddings, which is also the output layer. As in T5 (arXiv
1910.10683) the task is part of the source text.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float, Int64
from pydantic import PositiveInt
from torch import Tensor, nn

from vitrail import contract
from vitrail.nn.attention.full import Attention
from vitrail.nn.decoder import DecoderBlock, DecoderCache
from vitrail.nn.embedding import TokenEmbedding, init_text_model
from vitrail.nn.encoder import build_encoder
from vitrail.tokens import Tokens


class Spec(contract.TokenSpec):
    """Everything that determines what an encoder-decoder computes; `depth` is that of its encoder."""

    decoder_depth: PositiveInt = 6


class Seq2Seq(contract.TokenModel):
    """`forward` maps source ids and the target ids so far to logits for each next target token."""

    TAKES = ("source", "target")
    spec: Spec

    def __init__(self, spec: Spec) -> None:
        super().__init__()
        self.spec = spec
        width, rotary = spec.width, spec.new_rotary()
        self.embed = TokenEmbedding(
            vocab=spec.vocab,
            width=width,
            context=spec.context,
            position=spec.position,
            dropout_rate=spec.dropout_rate,
        )
        self.blocks = build_encoder(
            lambda: Attention(
                width=width,
                heads=spec.heads,
                rotary=rotary,
                dropout_rate=spec.dropout_rate,
                weights_dropout_rate=0.0,
            ),
            depth=spec.depth,
            width=width,
            hidden=spec.hidden,
            norm_eps=spec.norm_eps,
            dropout_rate=spec.dropout_rate,
            hidden_dropout_rate=0.0,
        )
        self.norm = nn.LayerNorm(width, eps=spec.norm_eps)
        self.decoder = nn.ModuleList(
            DecoderBlock(
                width=width,
                heads=spec.heads,
                hidden=spec.hidden,
                norm_eps=spec.norm_eps,
                rotary=rotary,
                dropout_rate=spec.dropout_rate,
                weights_dropout_rate=0.0,
                hidden_dropout_rate=0.0,
            )
            for _ in range(spec.decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(width, eps=spec.norm_eps)
        init_text_model(self, depth=max(spec.depth, spec.decoder_depth))

    def tokenize(self, source: Int64[Tensor, "B M"]) -> Tokens:
        """Embed the source."""
        return self.embed.tokens(source, source != self.spec.pad)

    def encode(self, tokens: Tokens) -> Tokens:
        """Apply the encoder and its last normalisation."""
        tokens = self.blocks(tokens)
        return tokens.with_x(self.norm(tokens.x))

    def decode(self, target: Int64[Tensor, "B N"], context: Tokens) -> Float[Tensor, "B N D"]:
        """Apply the decoder to the target so far; no mask, because padding follows the target."""
        tokens = self.embed.tokens(target)
        for block in self.decoder:
            tokens = block(tokens, context)
        return self.decoder_norm(tokens.x)

    def logits(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """How likely each token of the vocabulary is, from decoded tokens."""
        return self.embed.logits(x)

    def forward(self, source: Int64[Tensor, "B M"], target: Int64[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        return self.logits(self.decode(target, self.encode(self.tokenize(source))))

    def start(self, source: Int64[Tensor, "B M"]) -> tuple[DecoderCache, ...]:
        """Read the source; the result is the cache for the first step."""
        context = self.encode(self.tokenize(source))
        return tuple(block.start(context) for block in self.decoder)  # type: ignore[operator]

    def step(
        self, target: Int64[Tensor, "B N"], caches: Sequence[DecoderCache]
    ) -> tuple[Float[Tensor, "B V"], tuple[DecoderCache, ...]]:
        """Read the next target tokens; return the logits for the one after them, and the new caches."""
        earlier = caches[0].earlier
        tokens = self.embed.tokens(target, first_place=0 if earlier is None else earlier.k.shape[2])
        new_caches = []
        for block, cache in zip(self.decoder, caches, strict=True):
            tokens, new_cache = block.step(tokens, cache)  # type: ignore[operator]
            new_caches.append(new_cache)
        return self.logits(self.decoder_norm(tokens.x[:, -1])), tuple(new_caches)

    def flops(self) -> int:
        """Count twice the multiply-adds for the longest source and target, without elementwise operations, as usual."""
        spec, num = self.spec, self.spec.context
        matrices = sum(
            part.weight.numel()
            for stack in (self.blocks, self.decoder)
            for part in stack.modules()
            if isinstance(part, nn.Linear)
        )
        mixing = 4 * num**2 * spec.width * (spec.depth + 2 * spec.decoder_depth)
        return 2 * num * (matrices + self.embed.weight.numel()) + mixing


Model = Seq2Seq
