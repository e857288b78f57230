"""From the sources that a user names to the entries in them, whatever their formats."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.dawnbench import read_entry, read_inference
from aiperf_hpc.analysis.readers.mllog_lines import TOKEN
from aiperf_hpc.analysis.readers.run_directory import read_run
from aiperf_hpc.analysis.readers.submission import read_results
from aiperf_hpc.analysis.training_log import Entry, ReadResult, Unreadable
from aiperf_hpc.errors import UsageError, reason_of
from aiperf_hpc.streams import without_controls, without_stand_ins
from aiperf_hpc.untrusted.files import open_regular

RUN_FILE = "run.yaml"
"""The file whose folder is a run directory."""
PROBED = 4 << 20
"""Bytes at the beginning of a file in which a log's first line is looked for."""

Unit = tuple[Path, ...]
"""Files that are read together."""


class Format(NamedTuple):
    """A format of logs: how its files are found, and how they are read."""

    name: str
    find: Callable[[Sequence[Path], Path], Sequence[Unit]]
    """Takes the regular files of a source, in order, and the source."""
    read: Callable[[Sequence[Unit], Options], ReadResult]
    """Reads all units of all sources."""


def read_sources(sources: Sequence[Path], options: Options | None = None) -> ReadResult:
    """Read all entries of all sources.

    A log that cannot be read is named with the reason; the others are read all the same.

    Raises:
        UsageError: a source is not there.
    """
    chosen = options or Options()
    for source in sources:
        if not source.exists():
            raise UsageError(f"{source}: no such file or folder")
    units: dict[str, list[Unit]] = {form.name: [] for form in FORMATS}
    unreadable: list[Unreadable] = []
    met: set[tuple[int, int]] = set()
    for source in sources:
        walk = Walk(source)
        files = list(walk.files())
        new = [path for path in files if _first_met(path, met)]
        if not _divide(new, source, units) and len(new) == len(files):
            reason = "no run directory, mllog result or DAWNBench entry is in it"
            unreadable.append(Unreadable(path=str(source), reason=reason))
        unreadable += walk.unreadable
    readings = [form.read(units[form.name], chosen) for form in FORMATS if units[form.name]]
    found = ReadResult.joined(readings)
    return ReadResult(named_apart(found.entries), (*unreadable, *found.unreadable))


def _divide(files: Sequence[Path], source: Path, units: dict[str, list[Unit]]) -> bool:
    """Give each format what is its own; return whether anything was anyone's."""
    left = list(files)
    for form in FORMATS:
        found = form.find(left, source)
        units[form.name] += found
        own = {path for unit in found for path in unit}
        left = [path for path in left if path not in own]
    return len(left) < len(files)


def _first_met(path: Path, met: set[tuple[int, int]]) -> bool:
    """Return whether a file has not been met yet, by another source or another name."""
    try:
        status = path.stat()
    except OSError:
        return False
    identity = (status.st_dev, status.st_ino)
    new = identity not in met
    met.add(identity)
    return new


class Walk:
    """The regular files of a source, and the folders that could not be listed.

    Links to what lies outside of the source are not followed, and no folder is entered by a link.
    Of a run directory only its ``run.yaml`` is given: what is beneath belongs to it.
    """

    def __init__(self, source: Path) -> None:
        self._source = source
        self._root = source.resolve()
        self.unreadable: list[Unreadable] = []

    def files(self) -> Iterator[Path]:
        """Yield them, folder by folder, in the order of their names."""
        if not self._source.is_dir():
            yield self._source
            return
        for folder, folders, names in os.walk(self._source, onerror=self._not_listed):
            yield from self._folder(Path(folder), folders, names)

    def _folder(self, folder: Path, folders: list[str], names: list[str]) -> Iterator[Path]:
        if RUN_FILE in names:
            folders.clear()
            names = [RUN_FILE]
        elif "results" in folders:
            # A submission's code lies beside its results.
            folders[:] = [name for name in folders if name != "benchmarks"]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (folder / name for name in sorted(names) if self._is_own(folder / name))

    def _is_own(self, path: Path) -> bool:
        try:
            regular = stat.S_ISREG(path.stat().st_mode)
        except OSError:
            return False
        return regular and (not path.is_symlink() or path.resolve().is_relative_to(self._root))

    def _not_listed(self, error: OSError) -> None:
        self.unreadable.append(Unreadable(path=str(error.filename), reason=reason_of(error)))


def run_directories(files: Sequence[Path], source: Path) -> Sequence[Unit]:
    """Find run directories: the folders with a ``run.yaml``."""
    return [(path,) for path in files if path.name == RUN_FILE]


def dawnbench_pairs(files: Sequence[Path], source: Path) -> Sequence[Unit]:
    """Find DAWNBench's entries: a JSON file and a TSV file of one name. One may be the source."""
    there = set(files)
    units = []
    for path in sorted({path.with_suffix(".json") for path in files if path.suffix in _PAIR}):
        pair = (path, path.with_suffix(".tsv"))
        if all(one in there or (source in pair and one.is_file()) for one in pair):
            units.append(pair)
    return units


_PAIR = (".json", ".tsv")


def dawnbench_inference(files: Sequence[Path], source: Path) -> Sequence[Unit]:
    """Find DAWNBench's entries of inference: JSON files that state a latency, without a TSV."""
    found = (path for path in files if path.suffix == ".json")
    return [(path,) for path in found if b'"latency"' in (_head(path) or b"")]


def _head(path: Path) -> bytes | None:
    """Return the beginning of a file; None if it cannot be opened."""
    try:
        with open_regular(path) as file:
            return file.read(PROBED + 1)
    except OSError:
        return None


def mllog_results(files: Sequence[Path], source: Path) -> Sequence[Unit]:
    """Find MLPerf's result logs: by name, by what is in them, or as the source itself."""
    logs = {path for path in files if path == source or _is_log(path)}
    patterns = {(path.parent, _without_digits(path)) for path in logs}
    return [(path,) for path in files if (path.parent, _without_digits(path)) in patterns]


_OTHER_SUFFIXES = frozenset(
    {".json", ".tsv", ".csv", ".yaml", ".yml", ".toml", ".md", ".rst", ".adoc", ".html", ".css"}
    | {".js", ".svg", ".png", ".jpg", ".pdf", ".py", ".sh", ".gz", ".xz", ".bz2", ".zip", ".tar"}
    | {".tgz", ".npy", ".npz", ".h5", ".pt", ".safetensors"}
)
"""Of files that are no logs, whatever is in them."""


def _is_log(path: Path) -> bool:
    """Return whether a file is a result log: by its name in a submission, else by a line of it."""
    if re.fullmatch(r"result_\d+\.txt", path.name):
        return True
    return path.suffix.lower() not in _OTHER_SUFFIXES and _may_have_token(path)


def _may_have_token(path: Path) -> bool:
    """Return whether a log's line is at the beginning of a file, or only reading it all can tell.

    The latter of files that are called logs, empty or with more before them than is looked at, and
    of those that cannot be opened: the reader says what is wrong with them.
    """
    head = _head(path)
    if head is None:
        return True
    undecided = not head or len(head) > PROBED
    return TOKEN in head or (undecided and path.suffix.lower() in (".log", ".out"))


def _without_digits(path: Path) -> str:
    """Return what the names of logs of several runs share."""
    return re.sub(r"\d+", "#", path.name)


def each(read: Callable[[Unit], ReadResult]) -> Callable[[Sequence[Unit], Options], ReadResult]:
    """Return how a format whose units are read one by one reads all of them."""
    return lambda units, options: ReadResult.joined(map(read, units))


def _read_results(units: Sequence[Unit], options: Options) -> ReadResult:
    return read_results([path for unit in units for path in unit], options.accelerators)


FORMATS: tuple[Format, ...] = (
    Format("aiperf", run_directories, each(lambda unit: read_run(unit[0].parent))),
    Format("dawnbench", dawnbench_pairs, each(lambda unit: read_entry(*unit))),
    Format("inference", dawnbench_inference, each(lambda unit: read_inference(*unit))),
    Format("mllog", mllog_results, _read_results),
)
"""In the order in which they are asked: a file belongs to the first that takes it."""


def named_apart(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return entries of which no two have one name.

    Those that share one are distinguished by their division, by their round, by their path, and at
    last by a number. Names can be shown anywhere: what is no character is escaped.
    """
    entries = [entry.model_copy(update={"name": _printable(entry.name)}) for entry in entries]
    for suffix in ("division", "round", "path"):
        entries = _suffixed(entries, suffix)
    counts, numbers = Counter(entry.name for entry in entries), Counter[str]()
    for place, entry in enumerate(entries):
        if counts[entry.name] > 1:
            numbers[entry.name] += 1
            name = f"{entry.name} #{numbers[entry.name]}"
            entries[place] = entry.model_copy(update={"name": name})
    return tuple(entries)


def _printable(name: str) -> str:
    return without_controls(without_stand_ins(name))


def _suffixed(entries: Sequence[Entry], field: str) -> list[Entry]:
    """Add what distinguishes entries of one name, where it does."""
    values: defaultdict[str, set[str | None]] = defaultdict(set)
    for entry in entries:
        values[entry.name].add(getattr(entry, field))
    return [
        entry.model_copy(update={"name": _printable(f"{entry.name} ({getattr(entry, field)})")})
        if len(values[entry.name]) > 1 and getattr(entry, field) is not None
        else entry
        for entry in entries
    ]
