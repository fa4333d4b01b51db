"""HTML pages from Jinja templates that lie in the package."""

from __future__ import annotations

from functools import cache
from typing import Any

from vitrail.errors import shown


def fill_template(package: str, template: str, /, **values: Any) -> str:
    """Render a template of a package; values are escaped, and a missing one is an error."""
    return _templates(package).get_template(template).render(**values)


@cache
def _templates(package: str) -> Any:
    """The Jinja environment of a package, cached: compiling a template takes longer than rendering it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader(package, "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["shown"] = shown
    return environment
