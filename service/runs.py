"""Served runs: a single one, or all in a folder."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import wait
from functools import cached_property
from pathlib import Path
from typing import Annotated

import fastapi

from aiperf_hpc.errors import AIPerfError, RunDirectoryError
from aiperf_hpc.results.views.cached_view import CachedView
from aiperf_hpc.results.views.run_catalog import (
    LASTING,
    ListedRun,
    RunSummary,
    Unreadable,
    age_order,
    bytes_written,
    find_runs,
    listed,
)
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.service.answers.base import Answer
from aiperf_hpc.service.problem import not_found
from aiperf_hpc.service.served_run import Readers, ServedRun

LOOK_SECONDS = 1.0
"""Validity of a listing of the folder, in seconds."""
IDLE_SECONDS = 600.0
"""Seconds after its last request until a run is removed from memory."""


RunName = Annotated[
    str,
    fastapi.Path(
        description="The run's name in the list.", examples=["20261121-101500-imagenet-3f2a"]
    ),
]


class RunList(Answer):
    """List of the served runs."""

    runs: tuple[ListedRun, ...]
    """Runs, latest first; runs that have not started precede all others."""
    loading: tuple[str, ...]
    """Runs whose records are being read for the first time; they will appear in `runs`."""
    unreadable: tuple[Unreadable, ...]
    """Runs that are unreadable or were removed while served, each with the reason."""
    foreign: int
    """Number of folders that are not runs."""


class Runs(ABC):
    """Interface to the runs of a service."""

    only: ServedRun | None = None
    """Name of the run if the service has only one."""

    def __init__(self, readers: Readers | None) -> None:
        self._readers = readers or Readers()

    @abstractmethod
    def known(self, name: str) -> ServedRun | None:
        """Return the run of that name if it was requested before, without reading any file."""

    @abstractmethod
    def find(self, name: str) -> ServedRun:
        """Return the run of that name. Raises ProblemError if it does not exist."""

    @abstractmethod
    def paths(self, name: str) -> RunPaths:
        """Return the path of a run. Raises ProblemError if it does not exist."""

    def lost(self, run: ServedRun) -> None:
        """Forget a run whose directory was replaced or removed, to look it up again."""
        return  # The directory of a single served run may be restored.

    @abstractmethod
    def list(self) -> RunList:
        """Return all runs with the data that is available without reading large journals."""

    @abstractmethod
    def check(self) -> None:
        """Raise AIPerfError if the runs cannot be read."""

    @abstractmethod
    def _being_served(self) -> Iterable[ServedRun]:
        """Return the runs in memory."""

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Read runs and refresh their answers while the block executes."""
        self._readers.start()
        try:
            yield
        finally:
            for run in self._being_served():
                run.close()
            self._readers.stop()


class OneRun(Runs):
    """A single served run."""

    def __init__(self, name: str, live: CachedView, readers: Readers | None = None) -> None:
        """Serve a run from its name, a view that may be unread, and the threads that read it."""
        super().__init__(readers)
        self.only: ServedRun = ServedRun(name, live, self._readers)

    def known(self, name: str) -> ServedRun | None:
        return self.only if name == self.only.name else None

    def paths(self, name: str) -> RunPaths:
        self.find(name)
        return self._paths

    def find(self, name: str) -> ServedRun:
        if name != self.only.name:
            raise not_found(f"there is no run {name!r}; {self.only.name!r} alone is served")
        return self.only

    def list(self) -> RunList:
        wait([self.only.load()], self._readers.patience)
        try:
            row = self.only.row()
        except AIPerfError as error:
            return _list((), unreadable={self.only.name: str(error)})
        if row is None:
            return _list((), loading=(self.only.name,))
        row = row.model_copy(update={"name": self.only.name})
        return _list((listed(row, self._paths),))

    def check(self) -> None:
        self.only.check()

    @cached_property
    def _paths(self) -> RunPaths:
        # Read once, because the view may be busy with reading.
        return self.only.live.uncached(lambda view: view.paths)

    def _being_served(self) -> Iterable[ServedRun]:
        return (self.only,)


class FolderOfRuns(Runs):
    """All runs in a folder. Each is read on first request and kept while it is requested.

    A finished run with a report is listed from the report's summary, any other run after it was
    read in the background.
    """

    def __init__(self, folder: Path, readers: Readers | None = None) -> None:
        """Serve a folder with the threads that read its runs. Raises RunDirectoryError if
        unreadable."""
        super().__init__(readers)
        self.folder = folder
        self._lock = threading.Lock()
        self._served: dict[str, ServedRun] = {}
        self._rows: dict[str, tuple[int, RunSummary | None]] = {}
        """Rows of inactive runs, with the size of their journals in bytes."""
        self._summaries: dict[str, tuple[tuple[int, ...], RunSummary | None]] = {}
        """Rows from reports, each with the identity of the report's file."""
        self._found = _runs_inside(folder)
        self._looked_at = time.monotonic()

    def known(self, name: str) -> ServedRun | None:
        return self._served.get(name)

    def find(self, name: str) -> ServedRun:
        with self._lock:
            return self._served.get(name) or self._serve(name, self._paths_of(name))

    def paths(self, name: str) -> RunPaths:
        with self._lock:
            return self._paths_of(name)

    def _paths_of(self, name: str) -> RunPaths:
        found = self._look()[0].get(name)
        if found is None:
            raise not_found(f"there is no run {name!r} in the folder")
        return found

    def lost(self, run: ServedRun) -> None:
        with self._lock:
            if run.name in self._look()[0] and self._served.get(run.name) is run:
                self._close(run)

    def list(self) -> RunList:
        rows, unreadable = dict[str, ListedRun](), dict[str, str]()
        with self._lock:
            self._forget_idle()
            found, foreign = self._look()
            loading = self._take_rows(found, rows, unreadable)
            opening = [
                (self._served.get(name) or self._serve(name, paths)).load()
                for name, paths in loading.items()
            ]
        wait(opening, self._readers.patience)
        with self._lock:
            loading = self._take_rows(loading, rows, unreadable)
            for name in self._served.keys() - found.keys():
                unreadable[name] = f"the run directory of {name} is missing; restore it"
        latest = sorted(rows.values(), key=age_order, reverse=True)
        return _list(tuple(latest), tuple(loading), unreadable, len(foreign))

    def _take_rows(
        self, runs: dict[str, RunPaths], rows: dict[str, ListedRun], unreadable: dict[str, str]
    ) -> dict[str, RunPaths]:
        """Sort the rows of runs into a list; return the runs that must be read first."""
        loading = dict[str, RunPaths]()
        for name, paths in runs.items():
            try:
                if (row := self._row(name, paths)) is None:
                    loading[name] = paths
                else:
                    rows[name] = listed(row, paths)
            except AIPerfError as error:
                unreadable[name] = str(error)
        return loading

    def check(self) -> None:
        with self._lock:
            self._look()

    def _being_served(self) -> Iterable[ServedRun]:
        return self._served.values()

    def _look(self) -> tuple[dict[str, RunPaths], tuple[str, ...]]:
        """Return the runs by their names in URLs, and the folders that are not runs."""
        now = time.monotonic()
        if now - self._looked_at >= LOOK_SECONDS:
            self._found = _runs_inside(self.folder)
            self._looked_at = now
        return self._found

    def _row(self, name: str, paths: RunPaths) -> RunSummary | None:
        """Return the row of a run, or None while the run is being read for the first time."""
        served = self._served.get(name)
        if served is None:
            return self._remembered(name, paths)
        if not served.goes_on and (stated := self._stated(name, paths)) is not None:
            return stated  # Lists of all runs do not extend the time that a run stays in memory.
        try:
            row = served.row()
        except RunDirectoryError:
            self._close(served)  # The directory may hold another run by now.
            raise
        if row is None:
            return None
        row = row.model_copy(update={"name": name})
        if row.state not in LASTING:
            self._rows[name] = bytes_written(paths), row
        return row

    def _remembered(self, name: str, paths: RunPaths) -> RunSummary | None:
        """Return the row of a run that is not in memory, or None if its records are needed."""
        if (row := self._stated(name, paths)) is not None:
            return row
        written, row = self._rows.get(name, (-1, None))
        return row if written == bytes_written(paths) else None

    def _stated(self, name: str, paths: RunPaths) -> RunSummary | None:
        """Return the row from the report of a run, or None if there is none."""
        version = _version(paths.report_summary)
        if version is None:
            return None
        known = self._summaries.get(name)
        if known is None or known[0] != version:
            known = self._summaries[name] = version, RunSummary.read(paths, name)
        return known[1]

    def _serve(self, name: str, paths: RunPaths) -> ServedRun:
        live = CachedView(lambda: RunView(paths))
        served = self._served[name] = ServedRun(name, live, self._readers)
        return served

    def _forget_idle(self) -> None:
        """Remove inactive runs without recent requests from memory."""
        before = time.monotonic() - IDLE_SECONDS
        for run in list(self._served.values()):
            if run.asked_at < before and not run.goes_on:
                self._close(run)

    def _close(self, run: ServedRun) -> None:
        del self._served[run.name]
        self._readers.answering.submit(run.close)


def runs_in(folder: Path) -> Runs:
    """Return the runs to serve from a folder: the folder itself if it is a run, or all runs in it.

    Raises:
        RunDirectoryError: the folder is not a run and cannot be listed.
    """
    paths = RunPaths(folder)
    if paths.manifest.exists():
        return OneRun(folder.resolve().name, CachedView(RunView(paths)))
    return FolderOfRuns(folder)


def _runs_inside(folder: Path) -> tuple[dict[str, RunPaths], tuple[str, ...]]:
    """Return the runs inside a folder, without links to other folders, and the folders without
    runs."""
    found, foreign = find_runs(folder)
    root = folder.resolve()
    inside = {n: p for n, p in found.items() if _is_inside(p.root, folder, root)}
    return {address_name(n): p for n, p in inside.items()}, (*foreign, *(found.keys() - inside))


def _is_inside(run: Path, folder: Path, root: Path) -> bool:
    """Return whether a run is inside a folder after all links are resolved.

    Args:
        run: path below the folder.
        folder: path of the folder as given.
        root: path of the folder with all links resolved.
    """
    # Resolution of all links needs a system call for each part of the path.
    below = run.parts[len(folder.parts) :]
    links = (folder.joinpath(*below[: depth + 1]).is_symlink() for depth in range(len(below)))
    return not any(links) or run.resolve().is_relative_to(root)


def address_name(name: str) -> str:
    """Return the name of a run in URLs: a single path segment for any folder name."""
    plain = name.encode("utf-8", "backslashreplace").decode()
    return plain.replace("/", "~")


def _version(file: Path) -> tuple[int, ...] | None:
    """Return the identity of a file, which changes when it is replaced, or None if it does not
    exist."""
    try:
        found = file.lstat()
    except OSError:
        return None  # Same as for a run without a report.
    return found.st_ino, found.st_size, found.st_mtime_ns


def _list(
    rows: tuple[ListedRun, ...],
    loading: tuple[str, ...] = (),
    unreadable: dict[str, str] | None = None,
    foreign: int = 0,
) -> RunList:
    return RunList(
        runs=rows,
        loading=loading,
        unreadable=tuple(Unreadable(name=n, reason=r) for n, r in (unreadable or {}).items()),
        foreign=foreign,
    )
