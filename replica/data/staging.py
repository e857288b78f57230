"""Preparing a dataset's folder so that half of it never looks like all of it."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.host.processes import ProcessId, this_process
from aiperf_hpc.replica.data.progress import Show, not_shown
from aiperf_hpc.system.summary import size
from aiperf_hpc.trial import Stored

HEAD = 65_536
"""Bytes at the start of a file that are checked whenever its dataset is opened."""


def _silent(line: str) -> None:
    del line


@dataclass(frozen=True, slots=True)
class Options:
    """How a dataset is prepared.

    ``shards`` is the number of training shards where a dataset has shards, chosen by the dataset
    when not given; ``stored`` is the format of ImageNet's images; ``cores`` bounds the threads;
    ``restart`` is to begin anew where an interrupted preparation has left something; ``report``
    takes lines for people, ``complain`` a line for each thing that is wrong where there may be
    many, ``progress`` is told how far it is.
    """

    shards: int | None = None
    stored: Stored = "jpeg"
    cores: int = 1
    restart: bool = False
    report: Callable[[str], None] = _silent
    complain: Callable[[str], None] = _silent
    progress: Show = not_shown


@contextmanager
def staged(target: Path, report: Callable[[str], None] = _silent) -> Iterator[Path]:
    """Give a new folder beside ``target`` to write into; it is renamed to ``target`` at the end.

    When the body raises, the folder is removed and ``target`` is as it was. What a preparation
    that was killed has left is removed by the next one of the same ``target``.

    Args:
        report: told of what others have left.

    Raises:
        DatasetError: ``target`` is there and not empty, is being prepared by another process, or
            cannot be written (also when the body meets an OSError: it is to turn those of its
            source into DatasetErrors itself).
    """
    target = target.resolve()
    partial = _partial(target)
    try:
        refuse_filled(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear(target, report)
        try:
            partial.mkdir()
            yield partial
            partial.rename(target)
        except KeyboardInterrupt as interruption:
            interruption.add_note("nothing is left behind")
            raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
            if partial.exists():
                raise DatasetError(f"cannot remove the unfinished {partial}; remove it")
    except OSError as error:
        raise DatasetError(f"cannot write the dataset to {target}: {reason_of(error)}") from None


def _partial(target: Path) -> Path:
    """Return a name that says which process writes it."""
    me = this_process()
    host = os.uname().nodename
    return target.with_name(f".{target.name}.partial-{host}-{me.pid}-{me.started}-{me.machine}")


def _maker(partial: Path) -> ProcessId | None:
    """Return which process writes, or wrote, a folder of that name; None if it does not say."""
    *_, pid, started, machine = partial.name.split("-")[-4:]
    if not (pid.isdecimal() and started.isdecimal()):
        return None
    return ProcessId(machine=machine, pid=int(pid), started=int(started))


def _clear(target: Path, report: Callable[[str], None]) -> None:
    """Remove what preparations of ``target`` that were killed have left; name what may be so.

    Raises:
        DatasetError: another process prepares it now.
    """
    for partial in sorted(target.parent.glob(f".{glob.escape(target.name)}.partial-*-*-*-*")):
        maker = _maker(partial)
        gone = None if maker is None else maker.gone
        if maker is not None and gone is False:
            raise DatasetError(f"process {maker.pid} is preparing {target}; wait for its end")
        if gone:
            shutil.rmtree(partial)
            report(f"removed {partial}, which a preparation that was killed had left")
        else:
            report(f"{partial} is of another host's preparation; remove it if that is over")


def refuse_filled(target: Path) -> None:
    """Require that a dataset can be put there. Raises DatasetError and OSError."""
    if target.exists() and not target.is_dir():
        raise DatasetError(f"cannot write the dataset to {target}: it is a file, not a folder")
    for above in target.parents:
        if above.is_file():
            raise DatasetError(f"cannot write the dataset to {target}: {above} is a file")
    if target.is_dir() and any(target.iterdir()):
        raise DatasetError(
            f"cannot write the dataset to {target}: it is not empty; name a new folder"
        )


def check_space(folder: Path, needed: int) -> None:
    """Refuse to start what cannot end. ``needed`` is in bytes.

    Raises:
        DatasetError: the file system of ``folder`` has less than that to spare.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DatasetError(
            f"no space for the dataset in {folder.parent}: it needs {size(needed)}, "
            f"{size(free)} are free"
        )
