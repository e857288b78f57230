"""The manifest of a report: the SHA-256 of every file of the run, so that any change can be seen.

While a run lasts, its report's manifest names what the report was made from. Once the run has
ended it names all that is in the run's directory, each file to its last byte.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from pydantic import ValidationError

from aiperf_hpc import __version__
from aiperf_hpc.errors import RunDirectoryError, reason_of
from aiperf_hpc.integrity.commit import source_commit
from aiperf_hpc.results.report.files import (
    MOST_REPORT_BYTES,
    HashedFile,
    hash_beginnings,
    hashed_file,
    list_files,
)
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.journal import MOST_LINE_BYTES, JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import RECORD
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import bytes_inside, open_inside, parsed_json

LIBRARIES = ("jinja2", "matplotlib", "numpy", "pydantic")
"""What draws the plots and formats numbers."""
OURS = "aiperf-hpc"


@cache
def report_software() -> dict[str, str]:
    """Return the versions of what makes reports here."""
    return {
        OURS: __version__,
        "commit": source_commit() or "unknown",
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        **{name: version(name) for name in LIBRARIES},
    }


def software_difference(made_by: Mapping[str, str]) -> str | None:
    """Return the first difference of a report's software from the one here; None if equal."""
    here = report_software()
    for name in {**here, **made_by}:
        if made_by.get(name) != here.get(name):
            return f"{name} {made_by.get(name, 'unknown')}, here it is {here.get(name, 'unknown')}"
    return None


LOG = "output.log"
"""The name of what processes print, and a scheduler after they have ended: no record."""
EARLIER = 1
"""The version of manifests that name what a report was made from and no other file."""


class ReportManifest(Value):
    """The files of a run, so that anyone can tell whether it has changed since."""

    schema_version: Literal[1, 2] = 2
    run_id: str
    final: bool
    """Whether the run has ended, so that every file of it is named."""
    made_by: dict[str, str] = {}
    """The versions of what made the report's files; none in manifests of earlier versions."""
    files: tuple[HashedFile, ...]

    @property
    def complete(self) -> bool:
        return self.final and self.schema_version > EARLIER

    def content(self) -> bytes:
        """Return the file's bytes, which are what is signed."""
        return self.model_dump_json(indent=1).encode() + b"\n"


class Difference(NamedTuple):
    """A file that is not as the manifest says."""

    said: str
    late: bool = False
    """Whether it is of what may happen after the end of a run: nothing in it counts."""


def provenance_of(view: RunView, report: Mapping[Path, bytes], *, final: bool) -> ReportManifest:
    """Return the manifest of a report of ``view``. Raises OSError when a file cannot be read.

    A stored graph that is missing is not among them: the report was not made from it, and says so.

    Args:
        view: the run.
        report: the report's own files, which need not be written yet.
        final: whether the run has ended: then all files of the run are named.
    """
    root = view.paths.root
    own = {_name(view, path): content for path, content in report.items()}
    lengths = dict.fromkeys(list_files(root).files) if final else _sources(view)
    hashed = hash_beginnings(root, {p: length for p, length in lengths.items() if p not in own})
    files = [*_readable(hashed.values()), *(hashed_file(*each) for each in own.items())]
    return ReportManifest(
        run_id=view.manifest.run_id, final=final, made_by=report_software(), files=tuple(files)
    )


def _sources(view: RunView) -> dict[str, int | None]:
    """Return what a report is made from, and how much of each file; None for all."""
    graphs = sorted(p for p in map(view.paths.graph, view.history.graphs) if p.exists())
    # A running replica may have appended since: the hash covers what the report knows.
    read: dict[Path, int | None] = {view.paths.manifest: None, **view.history.bytes_read}
    read |= dict.fromkeys(graphs)
    return {_name(view, path): length for path, length in read.items()}


def _readable(hashed: Iterable[HashedFile | OSError]) -> Iterator[HashedFile]:
    for each in hashed:
        if isinstance(each, OSError):
            raise each
        yield each


def is_final(view: RunView) -> bool:
    """Return whether a final report was made, as it says itself or its manifest."""
    paths = view.paths
    return any(_says_final(paths, path) for path in (paths.report_manifest, paths.report_json))


def software_of(view: RunView) -> dict[str, str]:
    """Return the versions of what made a report's files, as its manifest says.

    Raises:
        RunDirectoryError: it is damaged or gone.
    """
    return _read(view)[1].made_by


def is_complete(view: RunView) -> bool:
    """Return whether the manifest names every file of a run that has ended.

    Raises:
        RunDirectoryError: it is damaged or gone.
    """
    return _read(view)[1].complete


def is_whole(view: RunView) -> bool:
    """Return whether a final report was written to its end: all its files are there."""
    if not is_final(view):
        return False
    own = [each for each in named_files(view) if each.path.startswith("report/")]
    return bool(own) and not any(_changed(view, own))


def differences(view: RunView) -> list[Difference]:
    """Return what is not as the manifest of the final report says; nothing, if all is."""
    try:
        content, manifest = _read(view)
    except RunDirectoryError as error:
        return [Difference(str(error))]
    found = [] if _as_written(content, manifest) else ["manifest.json is not as it was written"]
    known = {entry.path for entry in manifest.files}
    if len(known) < len(manifest.files):
        found.append("manifest.json names a file twice")
    required = sorted({_name(view, path) for path in _always(view.paths)} - known)
    found += [f"manifest.json does not name {path}" for path in required]
    compared = _all_differences if manifest.complete else _earlier_differences
    return [*map(Difference, found), *compared(view, manifest.files)]


def named_files(view: RunView) -> tuple[HashedFile, ...]:
    """Return the files that a report's manifest names; none where it is damaged or gone."""
    try:
        return _read(view)[1].files
    except RunDirectoryError:
        return ()


def changed_inputs(view: RunView) -> list[str]:
    """Return what is wrong with the files that the report was made from; nothing, if nothing.

    Journals may have grown: by what, the report says anew.

    Raises:
        RunDirectoryError: its manifest, which names them, is damaged or gone.
    """
    _, manifest = _read(view)
    inputs = [entry for entry in manifest.files if _is_input(entry.path)]
    found = [] if any(e.path == _name(view, view.paths.manifest) for e in inputs) else [
        f"manifest.json does not name {_name(view, view.paths.manifest)}"
    ]  # fmt: skip
    found += [each.said for each in _changed(view, inputs)]
    return found + [each.said for each in _new_journals(view, inputs) if not each.late]


def has_grown(view: RunView) -> bool:
    """Return whether any journal has more in it than the report was made from.

    Raises:
        RunDirectoryError: the report's manifest is damaged or gone.
    """
    known = {entry.path: entry.bytes for entry in _read(view)[1].files}
    sizes = view.history.bytes_read
    return any(known.get(_name(view, path), 0) < size for path, size in sizes.items())


def _always(paths: RunPaths) -> tuple[Path, ...]:
    """Return what every report is made from besides journals and graphs, and its own files."""
    return paths.manifest, paths.report_json, paths.report_html


def _is_input(path: str) -> bool:
    """Return whether a report is made from a file: the configuration, a journal or a graph."""
    parts = PurePosixPath(path).parts
    if len(parts) < 2:
        return path == "run.yaml"
    return (parts[0], path.rpartition(".")[2]) in {
        ("primary", "jsonl"),
        ("replicas", "jsonl"),
        ("candidates", "json"),
    } and path != "primary/digest.jsonl"


def _name(view: RunView, path: Path) -> str:
    return str(path.relative_to(view.paths.root))


def _all_differences(view: RunView, entries: Iterable[HashedFile]) -> Iterator[Difference]:
    """Yield each file that is not as it was, not named, or named and gone."""
    known = {entry.path: entry for entry in entries}
    listing = list_files(view.paths.root)
    for other in listing.others:
        yield Difference(f"{other} is not a regular file; a run contains only regular files")
    yield from _changed(view, known.values(), frozenset(listing.files))
    late = _late_folders(view, known)
    always = {_name(view, path) for path in _always(view.paths)}
    for path in listing.files:
        if path not in known and path not in always:
            said = f"manifest.json does not name {path}: it was not there when the run ended"
            yield Difference(said, any(path.startswith(folder) for folder in late))


def _late_folders(view: RunView, known: Mapping[str, HashedFile]) -> set[str]:
    """Return the folders of lives of replicas that began after the end of the run."""
    later = {_name(view, path) for path in view.history.bytes_read} - known.keys()
    folders = {f"{PurePosixPath(path).parent}/" for path in later if _is_after_the_end(view, path)}
    return {each for each in folders if not any(path.startswith(each) for path in known)}


def _earlier_differences(view: RunView, entries: Iterable[HashedFile]) -> Iterator[Difference]:
    """Yield what of the named files is not as it was, and each journal that is not named."""
    named = list(entries)
    yield from _changed(view, named)
    yield from _new_journals(view, named)


def _changed(
    view: RunView, entries: Iterable[HashedFile], there: frozenset[str] | None = None
) -> Iterator[Difference]:
    """Yield each named file that is gone or not as it was.

    Args:
        view: the run.
        entries: what the manifest says.
        there: the run's files, of which each has to be as long as it was; where it is not given,
            any may have grown.
    """
    named = {entry.path: entry for entry in entries}
    root = view.paths.root
    found = list_files(root).files if there is None else there
    now = hash_beginnings(
        root, {path: named[path].bytes for path in sorted(named.keys() & set(found))}
    )
    for path, entry in named.items():
        each = now.get(path)
        if each is None:
            yield Difference(f"{path[:100]}: no file of the run")
        elif isinstance(each, OSError):
            yield Difference(f"{path}: {reason_of(each)}")
        elif each != entry:
            yield Difference(f"{path} is not what the report was made from")
        elif there is not None and (more := (root / path).stat().st_size - entry.bytes) > 0:
            said = f"{path} has {more:,} bytes more than when the run ended"
            yield Difference(said, _has_grown_late(view, entry))


def _has_grown_late(view: RunView, entry: HashedFile) -> bool:
    """Return whether what was added to a file is a log's, or records of after the end of the run.

    A replica that was cut off does not know of the end, and records on.
    """
    if PurePosixPath(entry.path).name == LOG:
        return True
    end = view.history.end_utc
    if end is None or not entry.path.endswith(".jsonl"):
        return False
    with open_inside(view.paths.root, view.paths.root / entry.path) as file:
        file.seek(entry.bytes)
        try:
            added = iter(partial(file.readline, MOST_LINE_BYTES), b"")
            return all(RECORD.validate_json(line).utc > end for line in added)
        except ValidationError:
            return False


def _new_journals(view: RunView, entries: Iterable[HashedFile]) -> Iterator[Difference]:
    later = {_name(view, path) for path in view.history.bytes_read} - {e.path for e in entries}
    for path in sorted(later):
        said = f"{path} was not there when the report was made"
        yield Difference(said, _is_after_the_end(view, path))


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


def _as_written(content: bytes, manifest: ReportManifest) -> bool:
    """Return whether each byte is as this version writes it: spaces have no meaning, but change."""
    return manifest.schema_version == EARLIER or content == manifest.content()


def _read(view: RunView) -> tuple[bytes, ReportManifest]:
    """Read a report's manifest. Raises RunDirectoryError when it is damaged or gone."""
    try:
        content = bytes_inside(view.paths.root, view.paths.report_manifest)
        return content, ReportManifest.model_validate_json(content)
    except OSError as error:
        raise RunDirectoryError(f"manifest.json cannot be read: {reason_of(error)}") from None
    except ValidationError as error:
        raise RunDirectoryError(f"manifest.json is damaged: {first_fault(error)}") from None
