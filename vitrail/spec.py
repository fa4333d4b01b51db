"""Strict, frozen specifications of models, sources and recipes, in Python, YAML or JSON."""

from __future__ import annotations

import difflib
import json
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self, get_args, get_origin

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PositiveInt, SerializeAsAny, ValidationError

from vitrail import documents, plug
from vitrail.errors import SpecError, brief

ALIASES = {"learning_rate": "lr", "wd": "weight_decay", "bs": "batch_size", "epoch": "epochs", "step": "steps"}
MAX_SHOWN = 160  # characters of a value in a message
Probability = Annotated[float, Field(ge=0.0, le=1.0)]
"""0 to 1, both included."""
PositiveFraction = Annotated[float, Field(gt=0.0, le=1.0)]
"""Above 0, up to 1."""
PartialFraction = Annotated[float, Field(ge=0.0, lt=1.0)]
"""From 0, below 1."""
OpenFraction = Annotated[float, Field(gt=0.0, lt=1.0)]
"""Between 0 and 1, both excluded."""
FinitePositive = Annotated[float, Field(gt=0.0, le=1e9)]


class Spec(BaseModel):
    """The base of all specifications: rejects unknown keys, coerces no types, and is immutable."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Validate plain data from YAML, JSON or keyword arguments."""
        try:
            # JSON rules: a list may stand for a tuple and 1 for 1.0, but "1" never for 1.
            return cls.model_validate_json(json.dumps(fields, default=_plain))
        except ValidationError as error:
            raise _explain(cls, error, fields) from None
        except (TypeError, ValueError, RecursionError) as error:
            raise SpecError("a specification contains only plain values.", got=brief(error)) from None

    @classmethod
    def parse_yaml(cls, text: str) -> Self:
        """Read a specification from a YAML (or JSON) document."""
        fields = _read_yaml(text)
        if not isinstance(fields, dict):
            raise SpecError("a specification is a mapping of keys to values.", got=f"{type(fields).__name__}.")
        return cls.parse(fields)

    def override(self, fields: Mapping[str, Any]) -> Self:
        """Return a copy with some fields changed, validated as a whole."""
        return type(self).parse({**self.model_dump(mode="json"), **fields})

    def override_words(self, words: Sequence[str]) -> Self:
        """Return a copy with `key=value` arguments of the command line applied; dots address nested fields."""
        fields, changed = self.model_dump(mode="json"), {}
        for word in words:
            key, equals, value = word.partition("=")
            if not equals or not key:
                raise SpecError("an override is written key=value.", got=f"{word!r}.", hint=f"{word or 'key'}=VALUE.")
            *parts, last = key.split(".")
            target = fields
            spec: object = self
            for part in parts:
                spec = getattr(spec, part, None)
                if isinstance(spec, Spec) and isinstance(target, dict) and isinstance(target.get(part), str):
                    target[part] = {"name": target[part]}  # an entry of a registry, named by an earlier word
                target = target.get(part) if isinstance(target, dict) else None  # type: ignore[assignment]
                if not isinstance(target, dict):
                    raise SpecError(f"{part!r} in {key} has no fields.", got=f"{word!r}.")
            target[last] = _read_word(value, spec, last)
            first = key.partition(".")[0]
            changed[first] = fields[first]
        return self.override(changed)

    def to_yaml(self) -> str:
        """Write the specification as YAML, defaults included."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def to_pair(value: object) -> object:
    """Repeat a single number for rows and columns; turn a list into a tuple."""
    if type(value) is int:
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


Size2d = Annotated[tuple[PositiveInt, PositiveInt], BeforeValidator(to_pair)]
"""Rows and columns; a single number stands for both."""
SizeNd = Annotated[tuple[PositiveInt, ...], BeforeValidator(to_pair), Field(min_length=1, max_length=3)]
"""The size of an input of one to three dimensions; a single number stands for rows and columns."""


def registry_field(package: str) -> Any:
    """Return the type of a field that holds the `Spec` of one entry of a registry folder, chosen by `name`."""

    def parse_entry(value: object) -> object:
        if isinstance(value, str):
            value = {"name": value}
        if isinstance(value, Mapping) and isinstance(value.get("name"), str):
            return plug.load(package, value["name"]).Spec.parse(value)
        kind = package.rpartition(".")[2]
        raise SpecError(f"{kind} needs a name.", got=f"{value!r}.", hint=f"{', '.join(plug.entries(package))}.")

    return Annotated[SerializeAsAny[Spec], BeforeValidator(parse_entry)]


class _Loader(documents.YAML_PARSER):  # type: ignore[misc, valid-type]
    """YAML in which `1e-3` is a number."""


_Loader.add_implicit_resolver(  # YAML's own floats need a dot; everyone writes lr=1e-3
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]{1,2}$"), list("-+0123456789")
)


def _read_yaml(text: str) -> Any:
    try:
        return documents.parse_yaml(text, loader=_Loader, max_aliases=0)
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError("this is not valid YAML.", got=brief(error)) from None


def _read_word(text: str, spec: object, name: str) -> Any:
    """Read the value of a field on the command line as YAML; `on` and the like stay words where the field has words."""
    value = _read_yaml(text)
    field = type(spec).model_fields.get(name) if isinstance(spec, Spec) else None
    if field is not None and field.annotation in (str, str | None) and text.strip() != "null":
        return text.strip()
    return text.strip() if isinstance(value, bool) and field and _takes_only_words(field.annotation) else value


def _takes_only_words(annotation: Any) -> bool:
    """Whether a type is a Literal of strings, or a union of such with None."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return all(isinstance(part, str) for part in parts)
    choices = [part for part in parts if part is not type(None)]
    return bool(choices) and all(_takes_only_words(part) for part in choices)


def _plain(value: object) -> object:
    """Convert nested specifications and NumPy scalars to plain data."""
    if isinstance(value, Spec):
        return value.model_dump(mode="json")
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise SpecError("a specification contains only plain values.", got=f"{value!r} ({type(value).__name__}).")


def _explain(cls: type[Spec], error: ValidationError, fields: Mapping[str, Any]) -> SpecError:
    """Turn pydantic's first complaint into a SpecError."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        usual = [ALIASES[path]] if ALIASES.get(path) in cls.model_fields else []
        near = usual or difflib.get_close_matches(path, cls.model_fields, n=3, cutoff=0.5)
        hint = ", ".join(near or sorted(cls.model_fields)) + "."
        return SpecError(f"there is no setting {path!r}.", got=f"{path}={fields.get(path)!r}.", hint=hint)
    if first["type"] == "missing":
        return SpecError(f"{path} is required.", got="nothing.")
    kind = type(first["input"]).__name__
    message = first["msg"][0].lower() + first["msg"][1:]
    hint = ""
    if kind == "str" and _is_number(first["input"]):
        number = float(first["input"])
        hint = f"{path}={repr(number) if 'float' in first['type'] else f'{number:.0f}'}, without quotes."
    return SpecError(f"{path}: {message}.", got=f"{repr(first['input'])[:MAX_SHOWN]} ({kind}).", hint=hint)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
