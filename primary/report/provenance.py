"""What a report was made from: the SHA-256 of every file, so that any change can be seen."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import Field, ValidationError

from aiperf_hpc.errors import RunDirectoryError, reason_of
from aiperf_hpc.primary.monitor.run_view import RunView
from aiperf_hpc.primary.report.stated import MOST_REPORT_BYTES
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted import bytes_inside, open_inside, parsed_json, path_inside

HASHING = 4
"""Files that are read and hashed at once: gigabytes of journals, on a file system of many disks."""

PIECE = 2**20
"""Bytes that are hashed at once: however large a file is, or says that it is."""


class HashedFile(Value):
    """A file that the report was made from, or the part of it that was read; or the report."""

    path: str
    """The file's path below the run directory."""
    bytes: Annotated[int, Field(ge=0)]
    sha256: str
    """SHA-256 of the first ``bytes`` bytes, in hexadecimal."""


class ReportManifest(Value):
    """What a report was made from, so that anyone can tell whether it has changed since."""

    schema_version: Literal[1] = 1
    run_id: str
    final: bool
    files: tuple[HashedFile, ...]


def provenance_of(view: RunView, report: Mapping[Path, bytes], *, final: bool) -> ReportManifest:
    """Return what a report of ``view`` is made from. Raises OSError when a file is missing.

    A stored graph that is missing is not among them: the report was not made from it, and says so.

    Args:
        view: the run.
        report: the report's own files, which need not be written yet.
        final: whether the run has ended.
    """
    paths = view.paths
    graphs = sorted(p for p in map(paths.graph, view.history.graphs) if p.exists())
    # A running replica may have appended since: the hash covers what the report knows.
    read: dict[Path, int | None] = {paths.manifest: None, **view.history.bytes_read}
    read |= dict.fromkeys(graphs)
    with ThreadPoolExecutor(HASHING) as pool:  # Neither reading nor hashing holds the interpreter.
        hashed = list(pool.map(lambda each: _hashed(paths.root, *each), read.items()))
    files = [
        *hashed,
        *(_entry(paths.root, path, content) for path, content in report.items()),
    ]
    return ReportManifest(run_id=view.manifest.run_id, final=final, files=tuple(files))


def is_final(view: RunView) -> bool:
    """Return whether a final report was made, as it says itself or its manifest."""
    paths = view.paths
    return any(_says_final(paths, path) for path in (paths.report_manifest, paths.report_json))


def changed_files(view: RunView) -> list[str]:
    """Return what is wrong with the report and what it was made from; nothing, if nothing."""
    try:
        entries = _load(view).files
    except RunDirectoryError as error:
        return [str(error)]
    return _changed(view, entries, {_name(view, path) for path in _always(view.paths)})


def changed_inputs(view: RunView) -> list[str]:
    """Return what is wrong with the files that the report was made from; nothing, if nothing.

    Raises:
        RunDirectoryError: its manifest, which names them, is damaged or gone.
    """
    report = view.paths.report.name
    inputs = [entry for entry in _load(view).files if Path(entry.path).parts[0] != report]
    return _changed(view, inputs, {_name(view, view.paths.manifest)})


def has_grown(view: RunView) -> bool:
    """Return whether any journal has more in it than the report was made from.

    Raises:
        RunDirectoryError: the report's manifest is damaged or gone.
    """
    known = {entry.path: entry.bytes for entry in _load(view).files}
    sizes = view.history.bytes_read
    return any(known.get(_name(view, path)) != size for path, size in sizes.items())


def _always(paths: RunPaths) -> tuple[Path, ...]:
    """Return what every report is made from besides journals and graphs, and its own files."""
    return paths.manifest, paths.report_json, paths.report_html


def _name(view: RunView, path: Path) -> str:
    return str(path.relative_to(view.paths.root))


def _changed(view: RunView, entries: Sequence[HashedFile], required: set[str]) -> list[str]:
    known = {entry.path for entry in entries}
    found = [f"manifest.json does not name {path}" for path in sorted(required - known)]
    for entry in entries:
        try:
            path = path_inside(view.paths.root, entry.path)
            same = _hashed(view.paths.root, path, entry.bytes) == entry
        except OSError as error:
            found.append(f"{entry.path[:100]}: {reason_of(error)}")
            continue
        if not same:
            found.append(f"{entry.path} is not what the report was made from")
    later = {_name(view, path) for path in view.history.bytes_read} - known
    found += [
        f"{path} was not there when the report was made"
        for path in sorted(later)
        if not _is_after_the_end(view, path)
    ]
    return found


def _is_after_the_end(view: RunView, path: str) -> bool:
    """Return whether a journal was begun when the run was over, so that nothing in it counts.

    A scheduler may start a replica after the end of the run, which then ends at once.
    """
    end = view.history.end_utc
    first = next(JournalReader(view.paths.root / path).read(), None)
    return first is not None and end is not None and first.utc > end


def _says_final(paths: RunPaths, path: Path) -> bool:
    """Return what a file of the report says; one that is damaged or gone says nothing."""
    try:
        content = parsed_json(bytes_inside(paths.root, path, MOST_REPORT_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("final") is True


def _load(view: RunView) -> ReportManifest:
    """Read a report's manifest. Raises RunDirectoryError when it is damaged or gone."""
    try:
        content = bytes_inside(view.paths.root, view.paths.report_manifest)
        return ReportManifest.model_validate_json(content)
    except OSError as error:
        raise RunDirectoryError(f"manifest.json cannot be read: {reason_of(error)}") from None
    except ValidationError as error:
        raise RunDirectoryError(f"manifest.json is damaged: {error.errors()[0]['msg']}") from None


def _hashed(root: Path, path: Path, length: int | None) -> HashedFile:
    with open_inside(root, path) as file:
        digest, size = _digest(file, sys.maxsize if length is None else length)
    return HashedFile(path=str(path.relative_to(root)), bytes=size, sha256=digest)


def _digest(file: BinaryIO, length: int) -> tuple[str, int]:
    """Return the SHA-256 of the first ``length`` bytes of a file, and how many there are."""
    digest, size = hashlib.sha256(), 0
    while size < length and (piece := file.read(min(PIECE, length - size))):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def _entry(root: Path, path: Path, content: bytes) -> HashedFile:
    return HashedFile(
        path=str(path.relative_to(root)),
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
