"""Scaled dot-product attention, softmax(q k' / sqrt(E)) v (Vaswani et al., arXiv 1706.03762, equation 1).

`attend` uses PyTorch's fused kernel, which never forms the attention matrix. The exception is bfloat16 training on a
CPU, where explicit matrix products are several times as fast. `attention_weights` computes the matrix for inspection;
a contract test checks that both agree.

What a query may attend to is limited in three ways, and all of them may be combined: `mask` hides keys (padding),
`pair_mask` hides keys from single queries, and `causal` hides later keys. The queries are the last N of the M tokens
that the keys belong to, so query i sees keys up to M - N + i. `bias` is added to the scores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from vitrail.errors import SpecError

MAX_UNFUSED_TOKENS = 1024  # beyond that, the attention matrix takes too much memory


def attend(
    q: Float[Tensor, "B H N E"],
    k: Float[Tensor, "B H M E"],
    v: Float[Tensor, "B H M E"],
    *,
    mask: Bool[Tensor, "B M"] | None = None,
    pair_mask: Bool[Tensor, "#B N M"] | None = None,
    bias: Float[Tensor, "#B #H N M"] | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
    fused: bool | None = None,
) -> Float[Tensor, "B H N E"]:
    """softmax(q k' / sqrt(E) + bias) v, by the fused kernel unless its backward pass is slow (see `_write_out`)."""
    sees_a_key = mask is None and pair_mask is None and bias is None  # then each query sees at least its own
    write_out = not dropout_rate and _write_out(q, k, fused)
    if sees_a_key and causal and not write_out and q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_rate, is_causal=True)
    visible = _visible(q, k, mask, pair_mask, causal)
    if write_out:
        # Copies, because oneDNN's bfloat16 products need contiguous rows.
        q, k, v = (q * q.shape[-1] ** -0.5).contiguous(), k.contiguous(), v.contiguous()
        return _softmax(q @ k.transpose(-2, -1), bias, visible, safe=not sees_a_key) @ v
    attn_mask = visible
    if bias is not None:
        attn_mask = bias.to(q.dtype)
        attn_mask = attn_mask if visible is None else attn_mask.masked_fill(~visible, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, dropout_p=dropout_rate)


def attention_weights(
    q: Float[Tensor, "B H N E"],
    k: Float[Tensor, "B H M E"],
    *,
    mask: Bool[Tensor, "B M"] | None = None,
    pair_mask: Bool[Tensor, "#B N M"] | None = None,
    bias: Float[Tensor, "#B #H N M"] | None = None,
    causal: bool = False,
    queries: Int64[Tensor, " n"] | None = None,
) -> Float[Tensor, "B H N M"]:
    """softmax(q k' / sqrt(E) + bias) as a matrix; a query without visible keys gets zeros, as in the fused kernel."""
    visible = _visible(q, k, mask, pair_mask, causal)
    if queries is not None:
        q = q[..., queries, :]
        visible = visible if visible is None or visible.shape[-2] == 1 else visible[..., queries, :]
        bias = None if bias is None else bias[..., queries, :]
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
    return _softmax(scores, bias, visible, safe=True)


def _softmax(scores: Tensor, bias: Tensor | None, visible: Tensor | None, *, safe: bool) -> Float[Tensor, "B H N M"]:
    """The softmax over visible keys; `safe` returns zeros for a query without any, in gradients too."""
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    if not safe or (bias is None and visible is None):
        return scores.softmax(dim=-1)
    blind = (scores == -torch.inf).all(dim=-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)


def _visible(
    q: Tensor, k: Tensor, mask: Tensor | None, pair_mask: Tensor | None, causal: bool
) -> Bool[Tensor, "#B 1 #N M"] | None:
    """Return which keys each query may attend to, or None for all of them."""
    visible = None if mask is None else rearrange(mask, "B M -> B 1 1 M")
    if pair_mask is not None:
        pairs = rearrange(pair_mask, "B N M -> B 1 N M")
        visible = pairs if visible is None else visible & pairs
    num_queries, num_keys = q.shape[-2], k.shape[-2]
    assert not causal or num_queries <= num_keys
    if causal and num_queries > 1:  # the last token sees all others
        earlier = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).tril(num_keys - num_queries)
        visible = earlier if visible is None else visible & earlier
    return visible


def _write_out(q: Tensor, k: Tensor, fused: bool | None) -> bool:
    """Whether to write the products out: only where there is a gradient, and few enough tokens for the matrix.

    Whoever has measured says so by `fused`. Else it is done in bfloat16 on CPUs, where the fused kernel's gradient was
    2 to 6 times slower (benchmarks/attention.py).
    """
    if not q.requires_grad or q.shape[-2] * k.shape[-2] > MAX_UNFUSED_TOKENS**2:
        return False
    return not fused if fused is not None else q.device.type == "cpu" and q.dtype == torch.bfloat16


def split_heads(x: Float[Tensor, "B N D"], heads: int, *, num: int) -> Float[Tensor, "num B H N E"]:
    """Cut concatenated projections, such as queries, keys and values, into those of each head."""
    width = x.shape[-1] // (num * heads)  # not -1: a batch may be empty
    return x.reshape(*x.shape[:-1], num, heads, width).permute(2, 0, 3, 1, 4)


def merge_heads(heads: Float[Tensor, "B H N E"]) -> Float[Tensor, "B N D"]:
    """Concatenate what the heads have computed."""
    return heads.transpose(1, 2).flatten(2)


def check_heads(width: int, heads: int, *, prefix: str = "") -> None:
    """Reject a number of heads that does not divide the width; `prefix` is that of both names in the specification."""
    if heads < 1 or width % heads:
        divisors = [str(n) for n in range(1, min(width, 32) + 1) if width % n == 0]
        raise SpecError(
            f"{prefix}heads must divide {prefix}width.",
            got=f"{prefix}heads={heads}, {prefix}width={width}.",
            hint=f"{prefix}heads={', '.join(divisors)}.",
        )
