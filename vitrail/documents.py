"""The door for JSON and YAML files that others may have written: bounded first, then parsed, then held to a schema.

Bytes, nesting, values and numbers are counted before anything is built, so that no file can cost more than a moment.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import BaseModel, TypeAdapter, ValidationError

from vitrail.errors import VitrailError, brief

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 64  # of lists and mappings within each other
MAX_VALUES = 500_000  # in a JSON file; the labels of ImageNet-21k are 4 % of that
MAX_YAML_BYTES, MAX_YAML_VALUES = 2**20, 20_000  # a config.yaml has some 4 kB and 200 values
MAX_ALIASES = 64  # PyYAML writes one where the same list occurs twice
MAX_INTEGER = 2**63
MAX_SHOWN = 80  # characters of a value in a message
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)  # possessive, so that it needs no memory
LONG_NUMBER = re.compile(rb"[eE]\+?\d{3,}|(?<![.\d])\d{20,}(?![.\d])")  # beyond what 64 bits hold
NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))
YAML_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Read a file; ValueError if it is larger than anything that Vitrail writes."""
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"more than {max_bytes / 2**20:g} MiB")
    return content


def parse_json(content: bytes | str, *, finite: bool = True) -> Any:
    """Parse JSON; ValueError if it is nested too deep, too large, or, if `finite`, has NaN or infinity."""
    text = content if isinstance(content, str) else content.decode("utf-8")
    content = text.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    bare = STRING.sub(b'""', content)
    structure = bare.translate(None, NOT_STRUCTURE)
    if structure.count(b",") + structure.count(b"[") + structure.count(b"{") > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES:,} values")
    marks = np.frombuffer(structure, dtype=np.uint8)
    steps = np.isin(marks, list(b"[{")).astype(np.int8) - np.isin(marks, list(b"]}")).astype(np.int8)
    if len(steps) and int(steps.cumsum(dtype=np.int64).max()) > MAX_DEPTH:
        raise ValueError(f"lists or mappings nested more than {MAX_DEPTH} deep")
    if (found := LONG_NUMBER.search(bare)) is not None:
        raise ValueError(f"the number {found[0][:MAX_SHOWN].decode()}")
    return json.loads(text, parse_constant=_refuse_constant if finite else None)


def parse_yaml(text: str, *, loader: type[Any] = YAML_PARSER, max_aliases: int = MAX_ALIASES) -> Any:
    """Parse YAML; ValueError or YAMLError if it is too large, nested too deep, or expands by its aliases."""
    if len(text) > MAX_YAML_BYTES:
        raise ValueError(f"more than {MAX_YAML_BYTES / 2**20:g} MiB")
    _check_events(text, max_aliases)
    return yaml.load(text, Loader=loader)  # noqa: S506 - a SafeLoader


def _check_events(text: str, max_aliases: int) -> None:
    """Count what a YAML document expands to, from its events: nothing is built, and nothing is recursive."""
    extent = _Extent()
    for event in yaml.parse(text, Loader=YAML_PARSER):
        depth = extent.add(event)
        if extent.num_aliases > max_aliases:
            raise ValueError(f"more than {max_aliases} aliases" if max_aliases else "aliases are not allowed here")
        if extent.num_values > MAX_YAML_VALUES:
            raise ValueError(f"more than {MAX_YAML_VALUES:,} values")
        if depth > MAX_DEPTH:
            raise ValueError(f"lists or mappings nested more than {MAX_DEPTH} deep")


class _Extent:
    """The values, the depth and the aliases of a YAML document so far, with every alias expanded."""

    def __init__(self) -> None:
        self.num_values = self.num_aliases = 0
        self.anchors: dict[str | None, tuple[int, int]] = {}  # the values and the depth of each
        self.opened: list[tuple[str | None, int, int]] = []  # of each list: its anchor, values before, deepest level

    def add(self, event: Any) -> int:
        """Count an event; return the depth that it reaches."""
        depth = len(self.opened)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise ValueError("an alias of something that is not complete")
            num, below = self.anchors[event.anchor]
            self.num_aliases, self.num_values, depth = self.num_aliases + 1, self.num_values + num, depth + below
        elif isinstance(event, yaml.ScalarEvent):
            self.num_values += 1
            self.anchors[event.anchor] = (1, 0)
        elif isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            self.opened.append((event.anchor, self.num_values, depth))
            self.num_values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before, depth = self.opened.pop()
            self.anchors[anchor] = (self.num_values - before, depth - len(self.opened))
        if self.opened and depth > self.opened[-1][2]:
            self.opened[-1] = (*self.opened[-1][:2], depth)
        return depth


def check_plain(document: Any) -> None:
    """ValueError unless a YAML document consists of what JSON has: text keys, finite numbers, no dates or bytes."""
    for value in _iter_values(document):
        if value is None or isinstance(value, str | bool):
            continue
        if isinstance(value, int):
            if not -MAX_INTEGER <= value < MAX_INTEGER:
                raise ValueError("an integer of more than 64 bits")
        elif not isinstance(value, float):
            raise ValueError(f"a value that is a {type(value).__name__}")  # noqa: TRY004 - one error for all files
        elif not math.isfinite(value):
            raise ValueError(f"the number {value}")


def _iter_values(document: Any) -> Iterator[Any]:
    """All scalars of a document, and the keys of its mappings that are not text."""
    waiting = [document]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.values()
            yield from ((key,) for key in value if not isinstance(key, str))
        elif isinstance(value, list):
            waiting += value
        else:
            yield value


def read_json(path: Path, schema: TypeAdapter[Any], *, max_bytes: int = MAX_BYTES, finite: bool = True) -> Any:
    """Read a JSON file that fits its schema, as plain data; ValueError for any other, OSError if it cannot be read."""
    return fit_json(read_bytes(path, max_bytes=max_bytes), schema, finite=finite)


def fit_json(content: bytes | str, schema: TypeAdapter[Any], *, finite: bool = True) -> Any:
    """Parse JSON that fits a schema; ValueError that names the first field that does not."""
    document = parse_json(content, finite=finite)
    try:
        schema.validate_json(content, strict=True)
    except ValidationError as error:
        raise ValueError(describe(error)) from None
    return document


def describe(error: ValidationError) -> str:
    """Name the first field that does not fit its schema, and why."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))[:MAX_SHOWN]
    message = first["msg"][0].lower() + first["msg"][1:]
    return f"{place}: {message}" if place else message


def invalid(path: Path, error: BaseException, error_type: type[VitrailError]) -> VitrailError:
    """The one error for a file of a run, an export or a cache that Vitrail would not have written."""
    return error_type(
        f"{path} is damaged, or was not written by Vitrail.", got=brief(error), hint="the original file, or a new run."
    )


class Document(BaseModel, strict=True, frozen=True, extra="forbid"):
    """The base of the schemas of files: unknown keys are refused, and no types coerced."""


def _refuse_constant(name: str) -> float:
    raise ValueError(f"the number {name}")
