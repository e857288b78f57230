"""Resumable and atomic preparation of a dataset's folder.

Until the dataset is complete, ``FOLDER.partial`` next to the target FOLDER contains:

    preparation.json   the plan of the preparation (``Plan``)
    owner.json         the preparing process; its modification time is the heartbeat
    dataset/           the dataset's files; renamed to FOLDER when complete
    finished/          a note for each finished file: its sources, its checksum
    unpacked/          copies for a source that cannot be read efficiently in the required order
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import ValidationError

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.formatting import size
from aiperf_hpc.host.processes import ProcessId, in_background, this_process
from aiperf_hpc.replica.data.progress import ShowProgress, not_shown
from aiperf_hpc.run.liveness import LAG_SECONDS
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import StorageFormat, Value

HEARTBEAT_SECONDS = 5.0
"""Seconds between heartbeats of an owner."""
V = TypeVar("V", bound=Value)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a preparation."""

    shards: int | None = None
    """Number of training shards; by default that of the dataset."""
    storage_format: StorageFormat = "jpeg"
    """Format of ImageNet's stored images."""
    cores: int = 1
    """Number of threads."""
    restart: bool = False
    """Discard the files of an interrupted preparation."""
    report: Callable[[str], None] = lambda line: None
    """Receives lines for people."""
    complain: Callable[[str], None] = lambda line: None
    """Receives a line for each problem if there are several."""
    progress: ShowProgress = not_shown


class Plan(Value):
    """Plan of a preparation: preparations with equal plans can use each other's files."""

    schema_version: Literal[1] = 1
    dataset: str
    source: str
    """Path of the source, which may be moved."""
    names_sha256: str
    """SHA-256 of the names and labels of all samples, in their order."""
    shards: tuple[int, int]
    """Numbers of training and validation shards."""
    storage_format: StorageFormat = "jpeg"
    """Format of stored images."""

    def difference(self, other: Plan) -> str | None:
        """Return a text on the difference from another plan, or None if both are equal."""
        if (self.dataset, self.names_sha256) != (other.dataset, other.names_sha256):
            return f"of samples other than those in {other.source}"
        if self.shards != other.shards:
            return f"with {self.shards[0]} training shards, not {other.shards[0]}"
        if self.storage_format != other.storage_format:
            return f"with --storage-format {self.storage_format}, not {other.storage_format}"
        return None


class _Owner(Value):
    process: ProcessId
    host: str


class Unfinished:
    """The folder of a running or interrupted preparation."""

    def __init__(self, target: Path) -> None:
        self.root = target.with_name(f"{target.name}.partial")
        self.plan = self.root / "preparation.json"
        self.owner = self.root / "owner.json"
        self.dataset = self.root / "dataset"
        self.unpacked = self.root / "unpacked"

    def note(self, file: str) -> Path:
        """Return the path of the note for a finished file of the dataset."""
        return self.root / "finished" / f"{file}.json"

    def finished(self) -> list[str]:
        """Return the dataset's finished files."""
        return sorted(path.stem for path in (self.root / "finished").glob("*.json"))

    def clear(self) -> None:
        """Remove unfinished files. Raises OSError."""
        finished = set(self.finished())
        for path in self.dataset.glob("*"):
            if path.name not in finished:
                path.unlink()


def read_note(path: Path, model: type[V]) -> V | None:
    """Return a note of a preparation, or None if it is missing or damaged. Raises OSError."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


class FileNote(Value):
    """The note of a completely processed source file."""

    size: int
    modified: int
    """Modification time in nanoseconds since 1970."""


N = TypeVar("N", bound=FileNote)


def note_of(path: Path, model: type[N], file: os.stat_result) -> N | None:
    """Return the note of a source file, or None unless the file is unchanged. Raises OSError."""
    note = read_note(path, model)
    unchanged = note and (note.size, note.modified) == (file.st_size, file.st_mtime_ns)
    return note if unchanged else None


@contextmanager
def resumed(target: Path, plan: Plan, options: Options) -> Iterator[Unfinished]:
    """Provide the working folder, with the finished files of an interrupted preparation.

    At the end the dataset is renamed to ``target``. If the body raises, finished files are kept,
    and a note is added to the exception.

    Raises:
        DatasetError: ``target`` is not empty, is being prepared by another process or cannot be
            written, or an interrupted preparation had another plan.
    """
    target = target.resolve()
    work = Unfinished(target)
    with _errors_of(target):
        _require_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _owned(work, target):
            _begin(work, plan, options)
            try:
                yield work
                work.dataset.rename(target)
            except BaseException as error:
                _keep_finished(work, plan, error)
                raise
            shutil.rmtree(work.root)


def check_target(target: Path) -> None:
    """Check that ``target`` can be prepared, before any long operation starts.

    Raises:
        DatasetError: under the same conditions as in ``resumed``.
    """
    target = target.resolve()
    with _errors_of(target):
        _require_free(target)
        _require_inactive(Unfinished(target), target)


@contextmanager
def _errors_of(target: Path) -> Iterator[None]:
    """Convert an OSError to a DatasetError with the same notes."""
    try:
        yield
    except OSError as error:
        failed = DatasetError(f"cannot write the dataset to {target}: {reason_of(error)}")
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        raise failed from None


def _require_free(target: Path) -> None:
    """Check that a dataset can be written to ``target``. Raises DatasetError and OSError."""
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
    """Require ``needed`` bytes of free space before an operation starts.

    Raises:
        DatasetError: the file system of ``folder`` has less free space.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DatasetError(
            f"no space for the dataset in {folder.parent}: it needs {size(needed)}, "
            f"{size(free)} are free"
        )


def _begin(work: Unfinished, plan: Plan, options: Options) -> None:
    if options.restart and work.plan.exists():
        for path in work.root.iterdir():
            if path != work.owner:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        options.report(f"restarting: the finished files in {work.root} are removed")
    elif work.plan.exists():
        _check_plan(work, plan)
        work.clear()
    for folder in (work.dataset, work.unpacked):
        folder.mkdir(exist_ok=True)
    if not work.plan.exists():
        write_whole(work.plan, plan.model_dump_json(indent=1) + "\n")


def _check_plan(work: Unfinished, plan: Plan) -> None:
    begun = read_note(work.plan, Plan)
    if begun is None:
        raise DatasetError(f"{work.plan} is damaged; start again with --restart")
    difference = begun.difference(plan)
    if difference is not None:
        raise DatasetError(
            f"{work.root} is an interrupted preparation {difference}; start again with --restart, "
            "or name another folder with --to"
        )


def _keep_finished(work: Unfinished, plan: Plan, error: BaseException) -> None:
    """Remove unfinished files, or all files if none is finished; add a note on the outcome."""
    with suppress(OSError):
        work.clear()
        if not work.finished() and not any(work.unpacked.glob("*.json")):
            shutil.rmtree(work.root)
    if work.root.exists():
        error.add_note(
            f"{len(work.finished())} of {sum(plan.shards)} shards are kept in {work.root}; run the "
            "same command again to resume"
        )
    elif isinstance(error, KeyboardInterrupt):
        error.add_note("nothing is left behind")


@contextmanager
def _owned(work: Unfinished, target: Path) -> Iterator[None]:
    """Hold ownership of a preparation's folder by heartbeats."""
    created = _create(work, target)
    _require_inactive(work, target)
    me = _Owner(process=this_process(), host=os.uname().nodename)
    work.owner.unlink(missing_ok=True)
    with work.owner.open(
        "x", encoding="utf-8"
    ) as file:  # If two processes start at the same time, one of them fails.
        file.write(me.model_dump_json() + "\n")
    try:
        with in_background(partial(_send_heartbeats, work.owner), "heartbeats"):
            yield
    finally:
        work.owner.unlink(missing_ok=True)
        if created and not work.plan.exists():
            shutil.rmtree(work.root, ignore_errors=True)


def _create(work: Unfinished, target: Path) -> bool:
    """Create the folder; return whether it is new. Raises DatasetError if the path is in use."""
    with suppress(FileExistsError):
        work.root.mkdir()
        return True
    if not work.plan.exists() and not work.owner.exists() and any(work.root.iterdir()):
        raise DatasetError(
            f"{work.root} exists, but is not from an interrupted preparation of {target}; move it"
        )
    return False


def _require_inactive(work: Unfinished, target: Path) -> None:
    """Raise DatasetError if another process appears to be preparing the same folder."""
    try:
        content = work.owner.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        owner = _Owner.model_validate_json(content)
        gone, who = owner.process.gone, f"process {owner.process.pid} of {owner.host}"
    except ValidationError:
        gone, who = None, "another process"  # The owner is still writing the file.
    if gone is False:
        raise DatasetError(f"{who} is preparing {target}; wait for its end")
    if gone is None and (age := _heartbeat_age(work)) < LAG_SECONDS:
        raise DatasetError(
            f"{who} is preparing {target}: its last heartbeat was {max(0.0, age):.0f} s ago; "
            "wait for its end, or a minute if it was killed"
        )


def _heartbeat_age(work: Unfinished) -> float:
    """Return the seconds since an owner's last heartbeat by the file server's clock."""
    now = work.root / f".now.{os.uname().nodename}.{os.getpid()}"
    now.touch()
    try:
        return now.stat().st_mtime - work.owner.stat().st_mtime
    finally:
        now.unlink()


def _send_heartbeats(owner: Path, over: threading.Event) -> None:
    while not over.wait(HEARTBEAT_SECONDS):
        with suppress(OSError):  # If the file server is unreachable, the next write reports it.
            os.utime(owner)
