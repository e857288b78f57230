"""NVIDIA's packages for CUDA in this environment: whether they conflict, and the driver they need.

Their names end in the major version of CUDA, but they install into folders without it:
nvidia-cudnn-cu12 and nvidia-cudnn-cu13 both write nvidia/cudnn, and the later one overwrites it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Final

LEAST_DRIVERS: Final[Mapping[int, str]] = {12: "525", 13: "580"}
"""The oldest driver branch for each major version of CUDA [NVIDIA, CUDA Compatibility, table 1 of
Minor Version Compatibility]."""
_NAME: Final = re.compile(r"nvidia-(?P<library>.+)-cu(?P<cuda>\d+)")

Libraries = Mapping[str, Sequence[int]]
"""The major versions of CUDA for which each library is installed, by its folder's name."""


def installed_libraries() -> Libraries:
    """Return the libraries of CUDA that this environment's packages have installed."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        if matched := _NAME.fullmatch(name):
            found[matched["library"]].add(int(matched["cuda"]))
    return {library: sorted(found[library]) for library in sorted(found)}


def conflict(libraries: Libraries) -> str | None:
    """Return which packages have overwritten each other; None if none have."""
    both = {library: versions for library, versions in libraries.items() if len(versions) > 1}
    each = (
        f"{' and '.join(f'nvidia-{library}-cu{version}' for version in versions)} both write "
        f"nvidia/{library.replace('-', '_')}"
        for library, versions in both.items()
    )
    return "; ".join(each) or None


def driver_for(cuda: int) -> str:
    """Return what driver a major version of CUDA needs."""
    oldest = LEAST_DRIVERS.get(cuda)
    return f"NVIDIA's driver {oldest} or later" if oldest else "a newer driver of NVIDIA's"


def newest(libraries: Libraries) -> int | None:
    """Return the newest major version of CUDA that the installed libraries are for."""
    return max((version for versions in libraries.values() for version in versions), default=None)
