"""Discovery of entries of all formats in the sources given by the user."""

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
"""Name of the file that identifies a run directory."""
PROBED = 4 << 20
"""Bytes at the beginning of a file that are searched for a log's first line."""

Unit = tuple[Path, ...]
"""Files that belong together, such as a training run and its description."""


class Format(NamedTuple):
    """A log format, with functions to find and read its files."""

    name: str
    find: Callable[[Sequence[Path], Path], Sequence[Unit]]
    """Returns the units of a source, from its regular files in order and its path."""
    read: Callable[[Sequence[Unit], Options], ReadResult]
    """Reads all units of all sources."""


def read_sources(sources: Sequence[Path], options: Options | None = None) -> ReadResult:
    """Read all entries of all sources.

    An unreadable log is listed with the reason; the others are still read.

    Raises:
        UsageError: a source does not exist.
    """
    chosen = options or Options()
    for source in sources:
        if not source.exists():
            raise UsageError(f"{source}: no such file or folder")
    units: dict[str, list[Unit]] = {form.name: [] for form in FORMATS}
    unreadable: list[Unreadable] = []
    met: set[tuple[int, int]] = set()
    for source in sources:
        unlisted: list[Unreadable] = []
        files = list(regular_files(source, unlisted))
        new = [path for path in files if _first_met(path, met)]
        if not _divide(new, source, units) and len(new) == len(files):
            reason = "no run directory, mllog result or DAWNBench entry is in it"
            unreadable.append(Unreadable(path=str(source), reason=reason))
        unreadable += unlisted
    readings = [form.read(units[form.name], chosen) for form in FORMATS if units[form.name]]
    found = ReadResult.joined(readings)
    return ReadResult(named_apart(found.entries), (*unreadable, *found.unreadable))


def _divide(files: Sequence[Path], source: Path, units: dict[str, list[Unit]]) -> bool:
    """Assign files to formats; return whether any file was assigned."""
    left = list(files)
    for form in FORMATS:
        found = form.find(left, source)
        units[form.name] += found
        own = {path for unit in found for path in unit}
        left = [path for path in left if path not in own]
    return len(left) < len(files)


def _first_met(path: Path, met: set[tuple[int, int]]) -> bool:
    """Return whether a file is new, not already found by another source or name."""
    try:
        status = path.stat()
    except OSError:
        return False
    identity = (status.st_dev, status.st_ino)
    new = identity not in met
    met.add(identity)
    return new


def regular_files(source: Path, unreadable: list[Unreadable]) -> Iterator[Path]:
    """Yield the regular files of a source, by folder in the order of their names.

    Links to files outside the source and links to folders are not followed. A run directory yields
    only its ``run.yaml``, since its other files belong to the run. Folders that cannot be listed
    are added to ``unreadable``.
    """
    if not source.is_dir():
        yield source
        return

    def not_listed(error: OSError) -> None:
        unreadable.append(Unreadable(path=str(error.filename), reason=reason_of(error)))

    root = source.resolve()
    for folder, folders, names in os.walk(source, onerror=not_listed):
        if RUN_FILE in names:
            folders.clear()
            names = [RUN_FILE]
        elif "results" in folders:
            # A submission contains code next to its results.
            folders[:] = [name for name in folders if name != "benchmarks"]
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (Path(folder, name) for name in sorted(names))
        yield from (path for path in paths if _is_own(path, root))


def _is_own(path: Path, root: Path) -> bool:
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False
    return regular and (not path.is_symlink() or path.resolve().is_relative_to(root))


def run_directories(files: Sequence[Path], source: Path) -> Sequence[Unit]:
    """Find run directories, which are folders with a ``run.yaml``."""
    return [(path,) for path in files if path.name == RUN_FILE]


def dawnbench_pairs(files: Sequence[Path], source: Path) -> Sequence[Unit]:
    """Find DAWNBench entries: JSON and TSV files of equal name. The source may be one of them."""
    there = set(files)
    units = []
    for path in sorted({path.with_suffix(".json") for path in files if path.suffix in _PAIR}):
        pair = (path, path.with_suffix(".tsv"))
        if all(one in there or (source in pair and one.is_file()) for one in pair):
            units.append(pair)
    return units


_PAIR = (".json", ".tsv")


def dawnbench_inference(files: Sequence[Path], source: Path) -> Sequence[Unit]:
    """Find DAWNBench inference entries: JSON files with a latency and without a TSV file."""
    found = (path for path in files if path.suffix == ".json")
    return [(path,) for path in found if b'"latency"' in (_head(path) or b"")]


def _head(path: Path) -> bytes | None:
    """Return the beginning of a file, or None if it cannot be opened."""
    try:
        with open_regular(path) as file:
            return file.read(PROBED + 1)
    except OSError:
        return None


def mllog_results(files: Sequence[Path], source: Path) -> Sequence[Unit]:
    """Find MLPerf result logs by name or content, or as the source itself."""
    logs = {path for path in files if path == source or _is_log(path)}
    patterns = {(path.parent, _without_digits(path)) for path in logs}
    return [(path,) for path in files if (path.parent, _without_digits(path)) in patterns]


_OTHER_SUFFIXES = frozenset(
    {".json", ".tsv", ".csv", ".yaml", ".yml", ".toml", ".md", ".rst", ".adoc", ".html", ".css"}
    | {".js", ".svg", ".png", ".jpg", ".pdf", ".py", ".sh", ".gz", ".xz", ".bz2", ".zip", ".tar"}
    | {".tgz", ".npy", ".npz", ".h5", ".pt", ".safetensors"}
)
"""Suffixes of files that are never logs."""


def _is_log(path: Path) -> bool:
    """Return whether a file is a result log, by its name in a submission or else by a line."""
    if re.fullmatch(r"result_\d+\.txt", path.name):
        return True
    return path.suffix.lower() not in _OTHER_SUFFIXES and _may_have_token(path)


def _may_have_token(path: Path) -> bool:
    """Return whether a log line is at the beginning of a file, or the whole file must be read.

    The whole file must be read if it is named as a log but is empty or has a longer preamble, or if
    it cannot be opened; the reader then reports the problem.
    """
    head = _head(path)
    if head is None:
        return True
    undecided = not head or len(head) > PROBED
    return TOKEN in head or (undecided and path.suffix.lower() in (".log", ".out"))


def _without_digits(path: Path) -> str:
    """Return the common part of the names of logs of several runs."""
    return re.sub(r"\d+", "#", path.name)


def _each(read: Callable[[Unit], ReadResult]) -> Callable[[Sequence[Unit], Options], ReadResult]:
    """Return a function that reads all units with a reader of single units."""
    return lambda units, options: ReadResult.joined(map(read, units))


def _read_results(units: Sequence[Unit], options: Options) -> ReadResult:
    return read_results([path for unit in units for path in unit], options.accelerators)


FORMATS: tuple[Format, ...] = (
    Format("aiperf", run_directories, _each(lambda unit: read_run(unit[0].parent))),
    Format("dawnbench", dawnbench_pairs, _each(lambda unit: read_entry(*unit))),
    Format("inference", dawnbench_inference, _each(lambda unit: read_inference(*unit))),
    Format("mllog", mllog_results, _read_results),
)
"""Formats in order of precedence; a file belongs to the first format that accepts it."""


def named_apart(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries with unique names.

    Equal names are distinguished by division, round, path and finally a number. Names are
    printable: invalid characters are escaped.
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
    """Add a property to equal names if it distinguishes the entries."""
    values: defaultdict[str, set[str | None]] = defaultdict(set)
    for entry in entries:
        values[entry.name].add(getattr(entry, field))
    return [
        entry.model_copy(update={"name": _printable(f"{entry.name} ({getattr(entry, field)})")})
        if len(values[entry.name]) > 1 and getattr(entry, field) is not None
        else entry
        for entry in entries
    ]
