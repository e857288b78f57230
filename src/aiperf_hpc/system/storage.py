"""The file systems of a run, from ``/proc/self/mountinfo`` (proc(5)), and the node's disks."""

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
"""Bytes per sector in ``/sys/block``, regardless of the disk's sector size."""
_NO_DISK = re.compile(r"(loop|ram|zram|sr|fd|dm-|md|nbd)\d+")
_LAYERS = ("lowerdir=", "upperdir=", "workdir=")
"""Mount options of a container's root with long lists of folders."""


def file_systems(folders: Mapping[str, Path], root: Path = ROOT) -> tuple[FileSystem, ...]:
    """Return the file system of each folder, given by its use. Raises OSError and ValueError."""
    return tuple(_file_system(use, folder, root) for use, folder in folders.items())


def disks(root: Path = ROOT) -> Iterator[Disk]:
    """Yield the physical disks, and the virtual disks of a virtual machine."""
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
        options=tuple(o for o in mount.options if not (o.startswith(_LAYERS) or SECRET.search(o))),
        total_bytes=probe.read("total_bytes", lambda: _capacity(folder)),
        absent=probe.absent,
    )


def _capacity(folder: Path) -> int:
    """Return the size in bytes of the file system of ``folder``, which need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    values = os.statvfs(there)
    return values.f_blocks * values.f_frsize


_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One mount."""

    folder: str
    """Folder within the file system that is mounted."""
    point: str
    options: tuple[str, ...]
    """Options of the mount, then of the file system."""
    type: str
    source: str


def mounts(root: Path = ROOT) -> Iterator[Mount]:
    """Yield all mounts visible to the process, in order. Raises OSError and ValueError."""
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        # A variable number of fields precedes the dash.
        mount, _, file_system = line.partition(" - ")
        _, _, _, folder, point, own, *_ = map(_plain, mount.split(" "))
        kind, source, others = map(_plain, file_system.split(" ", 2))
        options = tuple(dict.fromkeys([*own.split(","), *others.split(",")]))
        yield Mount(folder, point, options, kind, source)


def mount_of(folder: Path, root: Path = ROOT) -> Mount:
    """Return the mount of a folder: the deepest mount point, and the last mount at that point.

    Raises:
        OSError, ValueError: the kernel does not report it.
    """
    found = [mount for mount in mounts(root) if folder.is_relative_to(mount.point)]
    if not found:
        raise ValueError(f"no mount holds {folder}")
    return max(enumerate(found), key=lambda each: (len(Path(each[1].point).parts), each[0]))[1]


def known_mount_of(folder: Path, root: Path = ROOT) -> Mount:
    """Return the mount of a folder, or one of type ``unknown`` if the kernel reports none."""
    try:
        return mount_of(folder, root)
    except (OSError, ValueError):
        return Mount("/", "/", (), "unknown", "")


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), text)
