"""A preparation that can be interrupted: what is finished of it is kept and gone on with.

Beside the target FOLDER lies ``FOLDER.partial`` as long as its dataset is not complete:

    preparation.json   what is being prepared (``Plan``)
    owner.json         which process does it; its time of change is a sign of life
    dataset/           the dataset's files; renamed to FOLDER when all are there
    finished/          a note of each finished file: what it was made of, its checksum
    unpacked/          what a source needs to be read in another order than its own
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from aiperf_hpc.errors import DatasetError, reason_of
from aiperf_hpc.host.processes import ProcessId, in_background, this_process
from aiperf_hpc.replica.data.staging import Options, refuse_filled
from aiperf_hpc.run.liveness import LAG_SECONDS
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.trial import Stored, Value

SIGN_SECONDS = 5.0
"""How often an owner gives a sign of life."""


class Plan(Value):
    """What is being prepared: two preparations of the same may go on with each other's files."""

    schema_version: Literal[1] = 1
    dataset: str
    source: str
    """Where the source lies; it may be moved."""
    names_sha256: str
    """Of the names and labels of all samples, in their order."""
    shards: tuple[int, int]
    """Of training and validation."""
    stored: Stored = "jpeg"
    """Format of stored images."""

    def difference(self, other: Plan) -> str | None:
        """Return in what the other is not a preparation of the same, in words."""
        if (self.dataset, self.names_sha256) != (other.dataset, other.names_sha256):
            return f"of other samples than {other.source} has now"
        if self.shards != other.shards:
            return f"with {self.shards[0]} training shards, not {other.shards[0]}"
        if self.stored != other.stored:
            return f"with --stored {self.stored}, not {other.stored}"
        return None


class _Owner(Value):
    process: ProcessId
    host: str


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The folder of a preparation that is under way, or was interrupted."""

    root: Path

    @classmethod
    def of(cls, target: Path) -> Unfinished:
        """Return that of the dataset in ``target``."""
        return cls(target.with_name(f"{target.name}.partial"))

    @property
    def plan(self) -> Path:
        return self.root / "preparation.json"

    @property
    def owner(self) -> Path:
        return self.root / "owner.json"

    @property
    def dataset(self) -> Path:
        return self.root / "dataset"

    @property
    def unpacked(self) -> Path:
        return self.root / "unpacked"

    def note(self, file: str) -> Path:
        """Return the note that a file of the dataset is finished."""
        return self.root / "finished" / f"{file}.json"

    def finished(self) -> list[str]:
        """Return the dataset's finished files."""
        return sorted(path.stem for path in (self.root / "finished").glob("*.json"))

    def kept(self) -> bool:
        """Return whether there is anything that is worth keeping."""
        return bool(self.finished()) or any(self.unpacked.glob("*.json"))

    def clear(self) -> None:
        """Remove what is not finished. Raises OSError."""
        finished = set(self.finished())
        for path in self.dataset.glob("*"):
            if path.name not in finished:
                path.unlink()


@contextmanager
def resumed(target: Path, plan: Plan, options: Options) -> Iterator[Unfinished]:
    """Give the folder to prepare in, with what an interrupted preparation has finished.

    At the end the dataset is renamed to ``target``. When the body raises, its finished files are
    kept, if there are any, and the error gets a note that says so.

    Raises:
        DatasetError: ``target`` is there and not empty, is being prepared by another process,
            cannot be written, or an interrupted preparation was of something else.
    """
    target = target.resolve()
    work = Unfinished.of(target)
    with _errors_of(target):
        refuse_filled(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _owned(work, target):
            _begin(work, plan, options)
            try:
                yield work
                work.dataset.rename(target)
            except BaseException as error:
                _keep(work, plan, error)
                raise
            shutil.rmtree(work.root)


def check_target(target: Path) -> None:
    """Require that nothing is in the way of preparing ``target``, before anything takes long.

    Raises:
        DatasetError: as ``resumed`` does.
    """
    target = target.resolve()
    with _errors_of(target):
        refuse_filled(target)
        _refuse_living(Unfinished.of(target), target)


@contextmanager
def _errors_of(target: Path) -> Iterator[None]:
    """Say what the system refuses in a DatasetError, with the notes that it has."""
    try:
        yield
    except OSError as error:
        failed = DatasetError(f"cannot write the dataset to {target}: {reason_of(error)}")
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        raise failed from None


def _begin(work: Unfinished, plan: Plan, options: Options) -> None:
    if options.restart and work.plan.exists():
        for path in work.root.iterdir():
            if path != work.owner:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        options.report(f"begun anew: what was finished in {work.root} is removed")
    elif work.plan.exists():
        _go_on(work, plan)
    for folder in (work.dataset, work.unpacked):
        folder.mkdir(exist_ok=True)
    if not work.plan.exists():
        write_whole(work.plan, plan.model_dump_json(indent=1) + "\n")


def _go_on(work: Unfinished, plan: Plan) -> None:
    try:
        begun = Plan.model_validate_json(work.plan.read_bytes())
    except ValidationError:
        raise DatasetError(f"{work.plan} is damaged; begin anew with --restart") from None
    difference = begun.difference(plan)
    if difference is not None:
        raise DatasetError(
            f"{work.root} is an interrupted preparation {difference}; begin anew with --restart, "
            "or name another folder with --to"
        )
    work.clear()


def _keep(work: Unfinished, plan: Plan, error: BaseException) -> None:
    """Remove what is not finished, or everything where nothing is; say in a note what is left."""
    with suppress(OSError):
        work.clear()
        if not work.kept():
            shutil.rmtree(work.root)
    if work.root.exists():
        error.add_note(
            f"{len(work.finished())} of {sum(plan.shards)} shards are kept in {work.root}, and the "
            "same command goes on with them"
        )
    elif isinstance(error, KeyboardInterrupt):
        error.add_note("nothing is left behind")


@contextmanager
def _owned(work: Unfinished, target: Path) -> Iterator[None]:
    """Hold a preparation's folder, and give signs of life."""
    created = _create(work, target)
    _refuse_living(work, target)
    me = _Owner(process=this_process(), host=os.uname().nodename)
    work.owner.unlink(missing_ok=True)
    with work.owner.open("x", encoding="utf-8") as file:  # Of two that begin at once, one fails.
        file.write(me.model_dump_json() + "\n")
    try:
        with in_background(partial(_give_signs, work.owner), "signs of life"):
            yield
    finally:
        work.owner.unlink(missing_ok=True)
        if created and not work.plan.exists():
            shutil.rmtree(work.root, ignore_errors=True)


def _create(work: Unfinished, target: Path) -> bool:
    """Make the folder and say whether it was new. Raises DatasetError where it is not ours."""
    with suppress(FileExistsError):
        work.root.mkdir()
        return True
    if not work.plan.exists() and not work.owner.exists() and any(work.root.iterdir()):
        raise DatasetError(
            f"{work.root} is in the way: it is not what an interrupted preparation of {target} "
            "leaves; move it away"
        )
    return False


def _refuse_living(work: Unfinished, target: Path) -> None:
    """Raise DatasetError while another process prepares the same, as far as can be seen."""
    try:
        content = work.owner.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        owner = _Owner.model_validate_json(content)
        gone, who = owner.process.gone, f"process {owner.process.pid} of {owner.host}"
    except ValidationError:
        gone, who = None, "another process"  # It is just writing who it is.
    if gone is False:
        raise DatasetError(f"{who} is preparing {target}; wait for its end")
    if gone is None and (silent := _silence(work)) < LAG_SECONDS:
        raise DatasetError(
            f"{who} is preparing {target}: it gave a sign of life {max(0.0, silent):.0f} s ago; "
            "wait for its end, or a minute if it was killed"
        )


def _silence(work: Unfinished) -> float:
    """Return the seconds since an owner's last sign, by the clock of whoever keeps the file."""
    beside = work.root / f".now.{os.uname().nodename}.{os.getpid()}"
    beside.touch()
    try:
        return beside.stat().st_mtime - work.owner.stat().st_mtime
    finally:
        beside.unlink()


def _give_signs(owner: Path, over: threading.Event) -> None:
    while not over.wait(SIGN_SECONDS):
        with suppress(OSError):  # A file server may be away; what is written will say so.
            os.utime(owner)
