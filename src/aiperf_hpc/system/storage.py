"""The file systems that a run uses, and the disks of its node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from aiperf_hpc.system.description import Disk, FileSystem
from aiperf_hpc.system.environment import SECRET
from aiperf_hpc.system.kernel_files import ROOT, entries, number_of, text_of, text_or_none
from aiperf_hpc.system.mounts import mount_of
from aiperf_hpc.system.tools import Question

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
    question = Question(OSError)
    return FileSystem(
        use=use,
        path=str(folder),
        mount_point=mount.point,
        type=mount.type,
        source=mount.source,
        options=tuple(option for option in mount.options if _is_told(option)),
        total_bytes=question.ask("total_bytes", lambda: _capacity(folder)),
        absent=question.absent,
    )


def _is_told(option: str) -> bool:
    return not option.startswith(_LAYERS) and not SECRET.search(option)


def _capacity(folder: Path) -> int:
    """Return the bytes of the file system that holds ``folder``, or where it is to be."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    values = os.statvfs(there)
    return values.f_blocks * values.f_frsize
