"""The rows of ``aiperf doctor``."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata
from typing import NamedTuple

from aiperf_hpc.extras import Package
from aiperf_hpc.system import tools

CONTROLLER = "controller"
"""The name of the check whether a scheduler that is installed answers."""


class Check(NamedTuple):
    """One item that was looked for."""

    area: str
    name: str
    found: bool
    detail: str
    remedy: str = ""
    """The command that installs it, where there is one."""
    required: bool = False
    """Whether no run is possible without it."""


def check(
    area: str, name: str, found: bool, detail: str, remedy: str = "", *, required: bool = False
) -> Check:
    """Return the row of an item; the remedy is only for one that was not found."""
    return Check(area, name, found, detail, "" if found else remedy, required)


def package_check(area: str, name: str, package: Package, purpose: str = "") -> Check:
    """Look for a package, which may be needed for one purpose alone."""
    detail = _version(package.package) if package.installed else "not installed"
    purpose = f"  ({purpose})" if purpose else ""
    return check(area, name, package.installed, detail, f"{package.remedy}{purpose}")


def output_of(command: list[str]) -> str | None:
    """Return what a command prints; None if it is not there, fails or takes too long."""
    try:
        return tools.output_of(*command)
    except tools.AbsentError:
        return None


def _version(module: str) -> str:
    with suppress(metadata.PackageNotFoundError):  # Most are named as their module.
        return f"{module} {metadata.version(module)}"
    name = metadata.packages_distributions().get(module, [module])[0]  # Reads all packages.
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:  # Put there by hand, e.g. on PYTHONPATH.
        return f"{name}, of unknown version"
