"""HTML pages, rendered from the package's Jinja templates."""

from __future__ import annotations

from functools import cache
from typing import Any

from vitrail.errors import printable


def render_template(package: str, template: str, /, **values: Any) -> str:
    """Render a template of a package; values are escaped, and a missing value is an error."""
    return _templates(package).get_template(template).render(**values)


@cache
def _templates(package: str) -> Any:
    """Build a package's Jinja environment; cached, because compiling a template takes longer than rendering it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader(package, "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["printable"] = printable
    return environment
