"""Shared parts of all pages: template environment, head, style sheet and drawings."""

from __future__ import annotations

from importlib import resources

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

PACKAGE = "aiperf_hpc.results.report"


def page_templates(package: str = PACKAGE) -> Environment:
    """Return the templates of a package, which may import ``shared.html`` of the report's.

    All values are escaped, and undefined variables are errors.
    """
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=ChoiceLoader([PackageLoader(package, ""), PackageLoader(PACKAGE, "")]),
    )
    css = (resources.files(PACKAGE) / "report.css").read_text("utf-8")
    environment.globals["css"] = Markup(css)  # noqa: S704 -- a file of this package
    return environment
