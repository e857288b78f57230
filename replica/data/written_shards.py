"""Shards that a preparation has written, and the notes by which the next one goes on with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import ValidationError

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.jobs import in_threads
from aiperf_hpc.replica.data.progress import Meter
from aiperf_hpc.replica.data.shards import Shard, verify_shards
from aiperf_hpc.replica.data.unfinished import Unfinished
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import Value


class ShardJob(Protocol):
    """A shard that is to be written."""

    @property
    def file(self) -> str:
        """Its name."""
        ...

    def stamp(self) -> str:
        """Return what changes when one of its samples does."""
        ...


class Written(Value):
    """A finished shard, and what became of its samples, in their order."""

    shard: Shard
    stamp: str
    """Of the job that wrote it."""
    sizes: tuple[int, ...]
    """The bytes of each record."""
    sources: tuple[str, ...]
    """The SHA-256 of each source file; of each stored image if the format resizes images."""
    converted: dict[str, int] = {}
    """How many samples are not stored as they were, by what they were."""


@dataclass(slots=True)
class Refusals:
    """Samples that cannot be stored, and who is told of each."""

    complain: Callable[[str], None]
    unit: str = "images"
    """What a sample is called, in the plural."""
    lines: list[str] = field(default_factory=list)

    def add(self, what: str) -> None:
        """Note what is wrong with a sample."""
        self.lines.append(what)
        # A single one is said at the end: it is the error itself.
        if len(self.lines) == 2:
            self.complain(self.lines[0])
        if len(self.lines) >= 2:
            self.complain(what)

    def check(self, samples: int) -> None:
        """Require that none was refused. Raises DatasetError."""
        if len(self.lines) == 1:
            raise DatasetError(self.lines[0])
        if self.lines:
            raise DatasetError(
                f"{len(self.lines)} of {samples} {self.unit} are corrupt or cannot be read: those "
                "above; replace them or take them away"
            )


def _not_waiting(file: int) -> None:
    """Let the system write when it will: what a power cut has torn, its checksum tells."""


def note(work: Unfinished, written: Written) -> None:
    """Note that a shard is finished. Raises OSError."""
    path = work.note(written.shard.file)
    write_whole(path, written.model_dump_json() + "\n", _not_waiting)


def finished(
    work: Unfinished, jobs: Sequence[ShardJob], threads: int, meter: Meter
) -> dict[str, Written]:
    """Return the shards of an interrupted preparation that can be kept, each read to its end.

    A shard whose samples have changed, or that is damaged, is not: its note is removed.

    Raises:
        OSError: a note cannot be read or removed.
    """

    def kept(job: ShardJob, _: object) -> Written | None:
        written = _noted(work, job)
        meter.add()
        return written

    noted = set(work.finished())
    with_note = [job for job in jobs if job.file in noted]
    found = zip(with_note, in_threads(kept, with_note, threads), strict=True)
    shards = {job.file: written for job, written in found if written is not None}
    for file in noted - set(shards):
        work.note(file).unlink()
    return shards


def _noted(work: Unfinished, job: ShardJob) -> Written | None:
    try:
        written = Written.model_validate_json(work.note(job.file).read_bytes())
        if written.stamp != job.stamp():
            return None
        verify_shards(work.dataset, [written.shard], 1, "", whole=True)
    except (ValidationError, DatasetError):
        return None
    return written
