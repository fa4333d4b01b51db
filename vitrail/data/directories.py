"""Vitrail's cache folders for downloads and decoded pixels, never inside the user's data."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir(kind: str) -> Path:
    """The cache folder of one kind, below $VITRAIL_CACHE, $XDG_CACHE_HOME/vitrail or ~/.cache/vitrail."""
    own = os.environ.get("VITRAIL_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME")
    root = Path(own) if own else (Path(shared) if shared else Path.home() / ".cache") / "vitrail"
    return root / kind
