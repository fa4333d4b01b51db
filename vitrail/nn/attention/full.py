"""Full attention: every token attends to every token (Vaswani et al., arXiv 1706.03762, section 3.2).

`forward` uses PyTorch's fused kernel, which never forms the attention matrix. The exception is bfloat16 training on a
CPU, where explicit matrix products are several times as fast. `weights` computes the matrix for inspection; a contract
test checks that both agree.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from vitrail.errors import SpecError
from vitrail.tokens import Layout, Tokens

MAX_UNFUSED_TOKENS = 1024  # beyond that, the attention matrix takes too much memory


class Attention(nn.Module):
    """Multi-head self-attention; `causal` hides later tokens, `Tokens.mask` hides padding."""

    def __init__(
        self, *, width: int, heads: int, bias: bool = True, causal: bool = False, dropout_rate: float = 0.0
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.causal, self.dropout_rate = heads, causal, dropout_rate
        self.fused: bool | None = None
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(dropout_rate)

    def split(self, tokens: Tokens) -> tuple[Float[Tensor, "B H N E"], ...]:
        """Compute the queries, keys and values of each head."""
        q, k, v = rearrange(self.qkv(tokens.x), "B N (three H E) -> three B H N E", three=3, H=self.heads)
        return q, k, v

    def merge(self, heads: Float[Tensor, "B H N E"]) -> Float[Tensor, "B N D"]:
        """Concatenate the heads' outputs and project them."""
        return self.proj_drop(self.proj(rearrange(heads, "B H N E -> B N (H E)")))

    def forward(self, tokens: Tokens) -> Float[Tensor, "B N D"]:
        q, k, v = self.split(tokens)
        dropout_rate = self.dropout_rate if self.training else 0.0
        heads = attend(q, k, v, mask=tokens.mask, causal=self.causal, dropout_rate=dropout_rate, fused=self.fused)
        return self.merge(heads)

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
    """Multi-head attention from tokens to those of another sequence, their context."""

    def __init__(
        self, *, width: int, heads: int, context_width: int | None = None, bias: bool = True, dropout_rate: float = 0.0
    ) -> None:
        super().__init__()
        check_heads(width, heads)
        self.heads, self.dropout_rate = heads, dropout_rate
        self.q = nn.Linear(width, width, bias=bias)
        self.kv = nn.Linear(context_width or width, 2 * width, bias=bias)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(dropout_rate)

    def split(self, tokens: Tokens, context: Tokens) -> tuple[Float[Tensor, "B H _ E"], ...]:
        """Compute each head's queries from the tokens, and its keys and values from the context."""
        q = rearrange(self.q(tokens.x), "B N (H E) -> B H N E", H=self.heads)
        k, v = rearrange(self.kv(context.x), "B M (two H E) -> two B H M E", two=2, H=self.heads)
        return q, k, v

    def merge(self, heads: Float[Tensor, "B H N E"]) -> Float[Tensor, "B N D"]:
        """Concatenate the heads' outputs and project them."""
        return self.proj_drop(self.proj(rearrange(heads, "B H N E -> B N (H E)")))

    def forward(self, tokens: Tokens, context: Tokens) -> Float[Tensor, "B N D"]:
        q, k, v = self.split(tokens, context)
        dropout_rate = self.dropout_rate if self.training else 0.0
        return self.merge(attend(q, k, v, mask=context.mask, dropout_rate=dropout_rate))

    def weights(self, tokens: Tokens, context: Tokens) -> Float[Tensor, "B H N M"]:
        """Compute each head's attention from every token (row) to every context token (column); rows sum to one."""
        q, k, _ = self.split(tokens, context)
        return attention_weights(q, k, mask=context.mask)


def attend(
    q: Float[Tensor, "B H N E"],
    k: Float[Tensor, "B H M E"],
    v: Float[Tensor, "B H M E"],
    *,
    mask: Bool[Tensor, "B M"] | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
    fused: bool | None = None,
) -> Float[Tensor, "B H N E"]:
    """softmax(q k' / sqrt(E)) v, by the fused kernel unless its backward pass is slow (see `_write_out`)."""
    if mask is None and not causal and not dropout_rate and _write_out(q, fused):
        # Copies, because oneDNN's bfloat16 products need contiguous rows.
        q, k, v = (q * q.shape[-1] ** -0.5).contiguous(), k.contiguous(), v.contiguous()
        return (q @ k.transpose(-2, -1)).softmax(dim=-1) @ v
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_rate, is_causal=causal)
    visible = _visible(q, k, mask, causal)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, dropout_p=dropout_rate)


def _write_out(q: Tensor, fused: bool | None) -> bool:
    """Whether to write the products out: only where there is a gradient, and few enough tokens for the matrix.

    Whoever has measured says so by `fused`. Else it is done in bfloat16 on CPUs, where the fused kernel's gradient was
    2 to 6 times slower (benchmarks/attention.py).
    """
    if not q.requires_grad or q.shape[-2] > MAX_UNFUSED_TOKENS:
        return False
    return not fused if fused is not None else q.device.type == "cpu" and q.dtype == torch.bfloat16


def set_fused(model: nn.Module, *, fused: bool) -> None:
    """Let all self-attention of a model train with the fused kernel, or written out."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.fused = fused


def attention_weights(
    q: Float[Tensor, "B H N E"],
    k: Float[Tensor, "B H M E"],
    *,
    mask: Bool[Tensor, "B M"] | None = None,
    causal: bool = False,
    queries: Int64[Tensor, " n"] | None = None,
) -> Float[Tensor, "B H N M"]:
    """softmax(q k' / sqrt(E)) as a matrix; a query without visible keys gets zeros, as in the fused kernel."""
    visible = _visible(q, k, mask, causal)
    if queries is not None:
        q = q[..., queries, :]
        visible = visible if visible is None or visible.shape[-2] == 1 else visible[..., queries, :]
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if visible is None:
        return scores.softmax(dim=-1)
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    return torch.where(visible.any(dim=-1, keepdim=True), weights, 0.0)


def _visible(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Bool[Tensor, "B _ N M"] | None:
    """Return which keys each query may attend to, or None for all of them."""
    visible = None if mask is None else rearrange(mask, "B M -> B 1 1 M")
    if causal:
        earlier = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        visible = earlier if visible is None else visible & earlier
    return visible


def check_heads(width: int, heads: int) -> None:
    """Reject a number of heads that does not divide the width."""
    if heads < 1 or width % heads:
        divisors = [str(n) for n in range(1, min(width, 32) + 1) if width % n == 0]
        raise SpecError(
            "heads must divide width.", got=f"heads={heads}, width={width}.", hint=f"heads={', '.join(divisors)}."
        )
