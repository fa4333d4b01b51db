"""`vitrail demo`."""

from __future__ import annotations

from vitrail.cli import models
from vitrail.console import JsonFlag, QuietFlag, remark

NEXT = """
Three things to try next:
  vitrail models deit                                       the models of one family
  vitrail convert model.safetensors --to hf --out folder    weights for transformers, from any format
  vitrail evaluate deit_tiny_patch16_224 DATA --weights model.safetensors"""


def command(as_json: JsonFlag = False, quiet: QuietFlag = False) -> None:
    """A first look: the model catalogue, until there is something to train."""
    models.command(as_json=as_json, quiet=quiet)
    remark(NEXT, quiet=quiet or as_json)
