"""The rows of ``aiperf doctor``."""

from __future__ import annotations

from contextlib import suppress
from importlib import metadata
from typing import NamedTuple

from aiperf_hpc.extras import Package
from aiperf_hpc.system import tools

CONTROLLER = "controller"
"""Name of the check whether an installed scheduler responds."""


class Check(NamedTuple):
    """One checked item."""

    area: str
    name: str
    found: bool
    detail: str
    remedy: str = ""
    """Command that installs the item, if there is one."""
    required: bool = False
    """Whether every run requires the item."""


def check(
    area: str, name: str, found: bool, detail: str, remedy: str = "", *, required: bool = False
) -> Check:
    """Return the row of an item; the remedy is used only if it was not found."""
    return Check(area, name, found, detail, "" if found else remedy, required)


def package_check(area: str, name: str, package: Package, purpose: str = "") -> Check:
    """Check a package, which only one purpose may require."""
    detail = _version(package.package) if package.installed else "not installed"
    purpose = f"  ({purpose})" if purpose else ""
    return check(area, name, package.installed, detail, f"{package.remedy}{purpose}")


def output_of(command: list[str]) -> str | None:
    """Return the output of a command, or None if it is missing, fails or times out."""
    try:
        return tools.output_of(*command)
    except tools.AbsentError:
        return None


def _version(module: str) -> str:
    with suppress(metadata.PackageNotFoundError):  # Most packages have the name of their module.
        return f"{module} {metadata.version(module)}"
    name = metadata.packages_distributions().get(module, [module])[0]  # Reads all packages.
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:  # Installed manually, e.g. on PYTHONPATH.
        return f"{name}, of unknown version"
