"""What is mounted where, by ``/proc/self/mountinfo`` (proc(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.system.kernel_files import ROOT, text_of

_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount."""

    folder: str
    """The folder of the file system that is the mount's root."""
    point: str
    options: tuple[str, ...]
    """Those of the mount, then those of the file system."""
    type: str
    source: str


def mounts(root: Path = ROOT) -> Iterator[Mount]:
    """Yield all mounts that the process sees, in order. Raises OSError and ValueError."""
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        # An unknown number of fields stands before the dash.
        mount, _, file_system = line.partition(" - ")
        _, _, _, folder, point, own, *_ = map(_plain, mount.split(" "))
        kind, source, others = map(_plain, file_system.split(" ", 2))
        options = tuple(dict.fromkeys([*own.split(","), *others.split(",")]))
        yield Mount(folder, point, options, kind, source)


def mount_of(folder: Path, root: Path = ROOT) -> Mount:
    """Return the mount that holds a folder: the deepest, and of those at one point the last.

    Raises:
        OSError, ValueError: the kernel does not tell it.
    """
    found = [mount for mount in mounts(root) if folder.is_relative_to(mount.point)]
    if not found:
        raise ValueError(f"no mount holds {folder}")
    return max(enumerate(found), key=lambda each: (len(Path(each[1].point).parts), each[0]))[1]


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text)
