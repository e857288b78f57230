"""What makes the bytes of a report: equal makers write equal reports of equal records."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version

from aiperf_hpc import __version__
from aiperf_hpc.integrity.commit import source_commit

LIBRARIES = ("jinja2", "matplotlib", "numpy", "pydantic")
"""What draws the plots and formats numbers."""
OURS = "aiperf-hpc"


@cache
def this_maker() -> dict[str, str]:
    """Return the versions of what makes reports here."""
    return {
        OURS: __version__,
        "commit": source_commit() or "unknown",
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        **{name: version(name) for name in LIBRARIES},
    }


def difference(maker: Mapping[str, str]) -> str | None:
    """Return in words how a report's maker is another than this one; None where it is not."""
    here = this_maker()
    for name in {**here, **maker}:
        if maker.get(name) != here.get(name):
            return f"{name} {maker.get(name, 'unknown')}, here it is {here.get(name, 'unknown')}"
    return None
