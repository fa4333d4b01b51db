"""`vitrail demo`."""

from __future__ import annotations

from vitrail.console import JsonFlag, QuietFlag, print_json, print_table, remark

NEXT = """
Three things to try next:
  vitrail check DATA
  vitrail convert model.safetensors --to hf --out folder
  vitrail evaluate deit_tiny_patch16_224 DATA --weights model.safetensors"""


def command(as_json: JsonFlag = False, quiet: QuietFlag = False) -> None:
    """A first look: the model catalogue, until there is something to train."""
    from vitrail.verbs.models import models

    entries = models()
    if as_json:
        print_json([entry._asdict() for entry in entries])
        return
    rows = [
        [entry.name, f"{entry.params / 1e6:,.1f} M", f"{entry.gflops:,.1f}", str(entry.tokens)] for entry in entries
    ]
    print_table(["name", "params", "GFLOPs", "tokens"], rows)
    remark(NEXT, quiet=quiet)
