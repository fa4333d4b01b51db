"""Folders as registries: a file's name is the entry's name, and nothing is imported before it is asked for."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType
from typing import Any

from vitrail.errors import unknown_name


@cache
def entries(package: str) -> tuple[str, ...]:
    """The names of a registry folder's entries, sorted."""
    folder = importlib.import_module(package)
    return tuple(sorted(found.name for found in pkgutil.iter_modules(folder.__path__)))


def load(package: str, name: str) -> ModuleType:
    """The module of one entry, or an error that lists the nearest entries."""
    known = entries(package)
    if name not in known:
        raise unknown_name(package.rpartition(".")[2], name, known)
    return importlib.import_module(f"{package}.{name}")


def member(module: str, name: str) -> Any:
    """An attribute of a module that is imported now."""
    return getattr(importlib.import_module(module), name)
