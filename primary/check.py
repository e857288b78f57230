"""One row of ``aiperf doctor``, and how its rows are made."""

from __future__ import annotations

from importlib import metadata

from aiperf_hpc.extras import Package
from aiperf_hpc.system import tools
from aiperf_hpc.trial import Value

CONTROLLER = "controller"
"""The name of the check whether a scheduler that is installed answers."""


class Check(Value):
    """One thing that was looked for."""

    area: str
    name: str
    found: bool
    detail: str
    remedy: str = ""
    """The command that installs it, where there is one."""
    required: bool = False
    """Whether no run is possible without it."""


def package_check(area: str, name: str, package: Package, purpose: str = "") -> Check:
    """Look for a package, which may be needed for one purpose alone."""
    found = package.installed
    purpose = f"  ({purpose})" if purpose else ""
    return Check(
        area=area,
        name=name,
        found=found,
        detail=_version(package.package) if found else "not installed",
        remedy="" if found else f"{package.remedy}{purpose}",
    )


def output_of(command: list[str]) -> str | None:
    """Return what a command prints; None if it is not there, fails or takes too long."""
    try:
        return tools.output_of(*command)
    except tools.AbsentError:
        return None


def _version(module: str) -> str:
    name = metadata.packages_distributions().get(module, [module])[0]
    try:
        return f"{name} {metadata.version(name)}"
    except metadata.PackageNotFoundError:  # Put there by hand, e.g. on PYTHONPATH.
        return f"{name}, of unknown version"
