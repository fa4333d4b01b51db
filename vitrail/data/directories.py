"""Where Vitrail keeps what it can make again: downloads and decoded pixels, never inside the user's data."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(kind: str) -> Path:
    """The folder for one kind of thing, below $VITRAIL_CACHE, $XDG_CACHE_HOME/vitrail or ~/.cache/vitrail."""
    own = os.environ.get("VITRAIL_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    root = Path(own) if own else (Path(shared) if shared else Path.home() / ".cache") / "vitrail"
    return root / kind
