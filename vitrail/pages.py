"""HTML pages, rendered from the package's Jinja templates."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from vitrail.errors import VitrailError, printable


def render_template(package: str, template: str, /, **values: Any) -> str:
    """Render a template of a package; values are escaped, and a missing value is an error."""
    return _templates(package).get_template(template).render(**values)


def check_page(page: Path, error_type: type[VitrailError]) -> None:
    """Fail before the work if the page cannot be written."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise error_type("the page must be an HTML file.", got=f"{page}.", hint=f"{page.with_suffix('.html')}.")
    if not page.absolute().parent.is_dir() or page.is_dir():
        raise error_type(f"{page} cannot be written.", got="no such folder.", hint="a file in an existing folder.")


@cache
def _templates(package: str) -> Any:
    """Build a package's Jinja environment; cached, because compiling a template takes longer than rendering it."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(loader=PackageLoader(package, "."), autoescape=True, undefined=StrictUndefined)
    environment.filters["printable"] = printable
    return environment
