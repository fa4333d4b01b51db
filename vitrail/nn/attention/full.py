"""Full attention: every token attends to every token (Vaswani et al., arXiv 1706.03762, section 3.2).

`dropout_rate` drops outputs and, unless `weights_dropout_rate` says otherwise, attention weights. CPUs have no fused
kernel that drops weights, so models of text drop outputs only.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from jaxtyping import Float, Int64
from torch import Tensor, nn

from vitrail import spec
from vitrail.errors import SpecError
from vitrail.nn.cache import Cache, extend
from vitrail.nn.dot_product import attend, attention_weights, check_heads, merge_heads, split_heads
from vitrail.nn.dropout import Dropout
from vitrail.nn.qkv import QkvBias
from vitrail.nn.rotary import Rotary, Rotary2d
from vitrail.nn.self_attention import SelfAttention
from vitrail.tokens import Layout, Tokens


class Spec(spec.Spec):
    """Full attention has no settings of its own."""

    name: Literal["full"] = "full"
    needs_grid: ClassVar[bool] = False
    any_size: ClassVar[bool] = True

    def check_grid(self, grid: tuple[int, ...]) -> None:
        """Accept any grid."""

    @property
    def sees(self) -> str:
        """What a cell attends to, in words."""
        return "all tokens"


class Attention(SelfAttention):
    """Multi-head self-attention; `causal` hides later tokens, `Tokens.mask` hides padding."""

    def __init__(
        self,
        spec: Spec | None = None,  # noqa: ARG002 - no settings; other attentions have some
        *,
        width: int,
        heads: int,
        bias: QkvBias = True,
        causal: bool = False,
        rotary: Rotary | Rotary2d | None = None,
        dropout_rate: float = 0.0,
        weights_dropout_rate: float | None = None,
    ) -> None:
        super().__init__(
            width=width,
            heads=heads,
            bias=bias,
            rotary=rotary,
            dropout_rate=dropout_rate,
            weights_dropout_rate=weights_dropout_rate,
        )
        self.causal = causal

    def forward(self, tokens: Tokens) -> Float[Tensor, "B N D"]:
        q, k, v = self.split(tokens)
        dropout_rate = self.current_dropout_rate
        heads = attend(q, k, v, mask=tokens.mask, causal=self.causal, dropout_rate=dropout_rate, fused=self.fused)
        return self.merge(heads)

    def step(self, tokens: Tokens, cache: Cache | None = None) -> tuple[Float[Tensor, "B N D"], Cache]:
        """Compute the next tokens' outputs, one token or several: those of a causal `forward` over the whole sequence.

        Also returns the cache for the step after this one.
        """
        if not self.causal:
            raise SpecError("only causal attention can decode step by step.", got="causal=False.", hint="causal=True.")
        q, k, v = self.split(tokens, 0 if cache is None else cache.k.shape[2])
        cache = extend(cache, k, v, tokens.mask)
        dropout_rate = self.current_dropout_rate
        heads = attend(q, cache.k, cache.v, mask=cache.mask, causal=True, dropout_rate=dropout_rate, fused=self.fused)
        return self.merge(heads), cache

    def weights(self, tokens: Tokens, queries: Int64[Tensor, " n"] | None = None) -> Float[Tensor, "B H N N"]:
        """Compute each head's attention from every token (row) to every token (column); rows sum to one.

        With `queries`, compute the rows of these tokens only.
        """
        q, k, _ = self.split(tokens)
        return attention_weights(q, k, mask=tokens.mask, causal=self.causal, queries=queries)

    def mixing_flops(self, layout: Layout) -> int:
        """Twice the multiply-adds of q k' and of the weighted sum, for one sample."""
        return 4 * layout.num_tokens**2 * self.proj.in_features


class CrossAttention(nn.Module):
    """Multi-head attention from tokens to those of another sequence, their context.

    `inner_width` is the width of queries, keys and values; by default that of the tokens.
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        context_width: int | None = None,
        inner_width: int | None = None,
        bias: bool = True,
        dropout_rate: float = 0.0,
        weights_dropout_rate: float | None = None,
    ) -> None:
        super().__init__()
        inner_width = inner_width or width
        check_heads(inner_width, heads)
        self.heads = heads
        self.dropout_rate = dropout_rate if weights_dropout_rate is None else weights_dropout_rate
        self.q = nn.Linear(width, inner_width, bias=bias)
        self.kv = nn.Linear(context_width or width, 2 * inner_width, bias=bias)
        self.proj = nn.Linear(inner_width, width)
        self.proj_drop = Dropout(dropout_rate)

    def split_queries(self, tokens: Tokens) -> Float[Tensor, "B H N E"]:
        """Compute the queries of each head."""
        return split_heads(self.q(tokens.x), self.heads, num=1)[0]

    def read(self, context: Tokens) -> Cache:
        """Compute the context's keys and values, once for any number of steps."""
        k, v = split_heads(self.kv(context.x), self.heads, num=2)
        return Cache(k, v, context.mask)

    def split(self, tokens: Tokens, context: Tokens) -> tuple[Float[Tensor, "B H _ E"], ...]:
        """Compute each head's queries from the tokens, and its keys and values from the context."""
        k, v, _ = self.read(context)
        return self.split_queries(tokens), k, v

    def merge(self, heads: Float[Tensor, "B H N E"]) -> Float[Tensor, "B N D"]:
        """Concatenate the heads' outputs and project them."""
        return self.proj_drop(self.proj(merge_heads(heads)))

    def forward(self, tokens: Tokens, context: Tokens | Cache) -> Float[Tensor, "B N D"]:
        return self.step(tokens, self._cache(context))

    def step(self, tokens: Tokens, context: Cache) -> Float[Tensor, "B N D"]:
        """`forward` with a context that `read` has read."""
        q, dropout_rate = self.split_queries(tokens), self.dropout_rate if self.training else 0.0
        return self.merge(attend(q, context.k, context.v, mask=context.mask, dropout_rate=dropout_rate))

    def weights(self, tokens: Tokens, context: Tokens | Cache) -> Float[Tensor, "B H N M"]:
        """Compute each head's attention from every token (row) to every context token (column); rows sum to one."""
        cache = self._cache(context)
        return attention_weights(self.split_queries(tokens), cache.k, mask=cache.mask)

    def _cache(self, context: Tokens | Cache) -> Cache:
        return context if isinstance(context, Cache) else self.read(context)


def set_fused(model: nn.Module, *, fused: bool) -> None:
    """Let all self-attention of a model, of any kind, train with the fused kernel or written out."""
    for module in model.modules():
        if hasattr(module, "fused"):
            module.fused = fused  # type: ignore[assignment]
