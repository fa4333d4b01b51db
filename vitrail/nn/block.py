"""The pre-norm encoder block of the Vision Transformer (arXiv 2010.11929, equations 2 and 3) and its layers."""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitrail.nn.cache import Cache
from vitrail.nn.dropout import Dropout
from vitrail.tokens import Tokens

MlpKind = Literal["mlp", "swiglu"]


class Mlp(nn.Module):
    """Two linear layers with a GELU between them (exact, or approximate with `gelu_tanh`), applied to each token.

    `dropout_rate` drops outputs and, unless `hidden_dropout_rate` says otherwise, hidden units.
    """

    def __init__(
        self,
        *,
        width: int,
        hidden: int,
        dropout_rate: float = 0.0,
        hidden_dropout_rate: float | None = None,
        activation: str = "gelu",
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU(approximate="tanh" if activation == "gelu_tanh" else "none")
        self.drop1 = Dropout(dropout_rate if hidden_dropout_rate is None else hidden_dropout_rate)
        self.fc2 = nn.Linear(hidden, width)
        self.drop2 = Dropout(dropout_rate)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.drop2(self.fc2(self.drop1(self.act(self.fc1(x)))))


class SwiGlu(nn.Module):
    """A gated MLP: one linear layer, passed through SiLU, scales the output of another (Shazeer, arXiv 2002.05202)."""

    def __init__(
        self, *, width: int, hidden: int, dropout_rate: float = 0.0, hidden_dropout_rate: float | None = None
    ) -> None:
        super().__init__()
        self.fc1_g = nn.Linear(width, hidden)
        self.fc1_x = nn.Linear(width, hidden)
        self.act = nn.SiLU()
        self.drop1 = Dropout(dropout_rate if hidden_dropout_rate is None else hidden_dropout_rate)
        self.fc2 = nn.Linear(hidden, width)
        self.drop2 = Dropout(dropout_rate)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return self.drop2(self.fc2(self.drop1(self.act(self.fc1_g(x)) * self.fc1_x(x))))


class LayerScale(nn.Module):
    """A learned factor per channel of a residual branch, initially small (Touvron et al., arXiv 2103.17239)."""

    def __init__(self, *, width: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.gamma = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gamma, self.start)

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        return x * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: drops a residual branch for random samples in training (Huang et al., arXiv 1603.09382)."""

    def __init__(self, *, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        if not self.training or self.rate == 0.0:
            return x
        keep_rate = 1.0 - self.rate
        keep = torch.empty(x.shape[0], *[1] * (x.ndim - 1), dtype=x.dtype, device=x.device).bernoulli_(keep_rate)
        return x * keep / keep_rate


class Block(nn.Module):
    """z' = MSA(LN(z)) + z, then z'' = MLP(LN(z')) + z'; `attention` is any module from Tokens to vectors.

    With a cross-attention, `forward` takes its context too: normalised tokens, or what `read` has computed from them.
    """

    def __init__(
        self,
        attention: nn.Module,
        *,
        width: int,
        hidden: int,
        norm_eps: float,
        mlp: MlpKind = "mlp",
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        hidden_dropout_rate: float | None = None,
        drop_path_rate: float = 0.0,
        layer_scale: float | None = None,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=norm_eps)
        self.attn = attention
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(width=width, start=layer_scale)
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        new_mlp = SwiGlu if mlp == "swiglu" else partial(Mlp, activation=activation)
        self.mlp = new_mlp(
            width=width, hidden=hidden, dropout_rate=dropout_rate, hidden_dropout_rate=hidden_dropout_rate
        )
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(width=width, start=layer_scale)
        self.drop_path = DropPath(rate=drop_path_rate)

    def forward(self, tokens: Tokens, *context: Tokens | Cache) -> Tokens:
        z = tokens.x
        z = z + self.drop_path(self.ls1(self.attn(tokens.with_x(self.norm1(z)), *context)))  # equation 2
        z = z + self.drop_path(self.ls2(self.mlp(self.norm2(z))))  # equation 3
        return tokens.with_x(z)

    def step(self, tokens: Tokens, cache: Cache | None = None) -> tuple[Tokens, Cache]:
        """Compute the next tokens' outputs, those of a causal `forward` over the whole sequence, and the new cache."""
        z = tokens.x
        mixed, cache = self.attn.step(tokens.with_x(self.norm1(z)), cache)  # type: ignore[operator]
        z = z + self.drop_path(self.ls1(mixed))
        z = z + self.drop_path(self.ls2(self.mlp(self.norm2(z))))
        return tokens.with_x(z), cache
