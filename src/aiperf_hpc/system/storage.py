"""The file systems that a run depends on, by ``/proc/self/mountinfo`` (proc(5))."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.system.description import Disk, FileSystem
from aiperf_hpc.system.software import SECRET
from aiperf_hpc.system.tools import ROOT, Probe, entries, number_of, text_of, text_or_none

_SECTOR = 512
"""The bytes of a sector in ``/sys/block``, whatever the disk's are."""
_NO_DISK = re.compile(r"(loop|ram|zram|sr|fd|dm-|md|nbd)\d+")
_LAYERS = ("lowerdir=", "upperdir=", "workdir=")
"""Options of a container's root that are long lists of folders."""


def file_systems(folders: Mapping[str, Path], root: Path = ROOT) -> tuple[FileSystem, ...]:
    """Return what holds each folder, by its use. Raises OSError and ValueError."""
    return tuple(_file_system(use, folder, root) for use, folder in folders.items())


def disks(root: Path = ROOT) -> Iterator[Disk]:
    """Yield the block devices that are hardware, or a virtual machine's."""
    for folder in entries(root / "sys/block"):
        size = number_of(folder / "size") * _SECTOR
        if size and not _NO_DISK.fullmatch(folder.name):
            yield Disk(
                name=folder.name,
                model=text_or_none(folder / "device/model"),
                total_bytes=size,
                rotational=text_of(folder / "queue/rotational") == "1",
            )


def _file_system(use: str, folder: Path, root: Path) -> FileSystem:
    folder = Path(os.path.realpath(folder))
    mount = mount_of(folder, root)
    probe = Probe(OSError)
    return FileSystem(
        use=use,
        path=str(folder),
        mount_point=mount.point,
        type=mount.type,
        source=mount.source,
        options=tuple(option for option in mount.options if _is_told(option)),
        total_bytes=probe.read("total_bytes", lambda: _capacity(folder)),
        absent=probe.absent,
    )


def _is_told(option: str) -> bool:
    return not option.startswith(_LAYERS) and not SECRET.search(option)


def _capacity(folder: Path) -> int:
    """Return the bytes of the file system that holds ``folder``, or where it is to be."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    values = os.statvfs(there)
    return values.f_blocks * values.f_frsize


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
