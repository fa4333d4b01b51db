"""What pairwise and patchwise self-attention have in common (Zhao et al., arXiv 2004.13621, section 4)."""

from __future__ import annotations

from torch import nn

from vitrail import spec
from vitrail.nn.map_attention import MapAttention, check_map_window, check_share


class RelationSpec(spec.Spec):
    """The side of the window, how many channels share their weights, and by how much relations are narrower."""

    name: str
    window: int = 7
    share: int = 8
    reduction: int = 4

    def check(self, channels: int, grid: tuple[int, int]) -> None:
        """Reject settings that do not fit maps of this many channels and this size."""
        check_map_window(self.window, grid)
        check_share(self.share, channels)
        check_share(self.reduction, channels, name="reduction")


class RelationAttention(MapAttention):
    """The transforms phi (`query`), psi (`key`) and beta (`value`); relations have `relation` channels."""

    value: nn.Conv2d

    def __init__(self, spec: RelationSpec, channels: int, *, stride: int) -> None:
        super().__init__(heads=channels // spec.share, stride=stride)
        self.window, self.relation = spec.window, channels // spec.reduction
        self.query = nn.Conv2d(channels, self.relation, 1)
        self.key = nn.Conv2d(channels, self.relation, 1)
        self.value = nn.Conv2d(channels, channels, 1)
