"""Folders as registries: a file's name is its entry's name, and entries are imported on first use."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType
from typing import Any

from vitrail.errors import unknown_name


@cache
def entries(package: str) -> tuple[str, ...]:
    """List the names of a registry folder's entries, sorted; folders in it are not entries, but what entries share."""
    folder = importlib.import_module(package)
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folder.__path__) if not module.ispkg))


def load(package: str, name: str) -> ModuleType:
    """Import the module of one entry; an unknown name's error lists the nearest entries."""
    known = entries(package)
    if name not in known:
        raise unknown_name(package.rpartition(".")[2], name, known)
    return importlib.import_module(f"{package}.{name}")


def import_from(module: str, name: str) -> Any:
    """Import a module and return one of its attributes."""
    return getattr(importlib.import_module(module), name)
