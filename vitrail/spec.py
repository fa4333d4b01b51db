"""Strict, frozen specifications: what a model, a source or a recipe is made from, in Python, YAML or JSON."""

from __future__ import annotations

import difflib
import json
import numbers
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, PositiveInt, SerializeAsAny, ValidationError

from vitrail import plug
from vitrail.errors import SpecError, brief


class Spec(BaseModel):
    """The base of all specifications: unknown keys are refused, types are not guessed, nothing changes later."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Check plain data (as it comes out of YAML, JSON or keyword arguments) and make the specification."""
        try:
            # JSON rules: a list may stand for a tuple and 1 for 1.0, but "1" never stands for 1.
            return cls.model_validate_json(json.dumps(fields, default=_plain))
        except ValidationError as error:
            raise _explain(cls, error, fields) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise SpecError("a specification holds plain values.", got=brief(error)) from None

    @classmethod
    def parse_yaml(cls, text: str) -> Self:
        """The specification written in a YAML (or JSON) document."""
        fields = _read_yaml(text)
        if not isinstance(fields, dict):
            raise SpecError("a specification is a mapping of keys to values.", got=f"{type(fields).__name__}.")
        return cls.parse(fields)

    def override(self, fields: Mapping[str, Any]) -> Self:
        """The same specification with some fields changed, checked as a whole."""
        return type(self).parse({**self.model_dump(mode="json"), **fields})

    def override_words(self, words: Sequence[str]) -> Self:
        """The same specification with `key=value` words of the command line applied; dots reach into parts."""
        fields = self.model_dump(mode="json")
        for word in words:
            key, equals, value = word.partition("=")
            if not equals or not key:
                raise SpecError("an override is written key=value.", got=f"{word!r}.", hint=f"{word or 'key'}=VALUE.")
            *parts, last = key.split(".")
            target = fields
            for part in parts:
                target = target.get(part) if isinstance(target, dict) else None  # type: ignore[assignment]
                if not isinstance(target, dict):
                    raise SpecError(f"{key} reaches into {part!r}, which has no parts.", got=f"{word!r}.")
            target[last] = _read_yaml(value)
        return type(self).parse(fields)

    def to_yaml(self) -> str:
        """The whole specification, defaults included, as YAML."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def squared(value: object) -> object:
    """A single number as rows and columns, a list as a tuple."""
    if type(value) is int:
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


Pair = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(squared)]
"""Rows and columns; a single number stands for both."""


def part_of(package: str) -> Any:
    """A field whose value is the `Spec` of one entry of a registry folder, told by its `name`."""

    def pick(value: object) -> object:
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            return plug.load(package, value["name"]).Spec.parse(value)
        kind = package.rpartition(".")[2]
        raise SpecError(f"{kind} is given by name.", got=f"{value!r}.", hint=f"{', '.join(plug.entries(package))}.")

    return Annotated[SerializeAsAny[Spec], BeforeValidator(pick)]


class _Loader(yaml.SafeLoader):
    """YAML without aliases, by which a few lines could stand for gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed here")
        return super().compose_node(parent, index)


def _read_yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SpecError("this is not valid YAML.", got=brief(error)) from None


def _plain(value: object) -> object:
    """Plain data for what is nearly so: parts that are specifications, and NumPy's numbers."""
    if isinstance(value, Spec):
        return value.model_dump(mode="json")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise SpecError("a specification holds plain values.", got=f"{value!r} ({type(value).__name__}).")


def _explain(cls: type[Spec], error: ValidationError, fields: Mapping[str, Any]) -> SpecError:
    """The first complaint of pydantic, in the house's one form."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path, cls.model_fields, n=3, cutoff=0.5)
        hint = ", ".join(near or sorted(cls.model_fields)) + "."
        return SpecError(f"there is no field {path!r}.", got=f"{path}={fields.get(path)!r}.", hint=hint)
    if first["type"] == "missing":
        return SpecError(f"{path} must be given.", got="nothing.")
    kind = type(first["input"]).__name__
    message = first["msg"][0].lower() + first["msg"][1:]
    hint = ""
    if kind == "str" and _is_number(first["input"]):
        number = float(first["input"])
        # YAML reads 1e-3 as a word, because its numbers need a dot.
        dotted = f"{number!r}, without quotes and with a dot."
        hint = f"{path}={dotted if 'float' in first['type'] else f'{number:.0f}, without quotes.'}"
    return SpecError(f"{path}: {message}.", got=f"{first['input']!r} ({kind}).", hint=hint)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
