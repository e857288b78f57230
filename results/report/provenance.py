"""Manifest of a report: the SHA-256 of every file of the run, to detect any change; its signature.

Before the end of a run, its report's manifest names the sources of the report. After the run has
ended, it covers all files in the run directory completely, and may be signed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from pydantic import ValidationError

from aiperf_hpc import __version__
from aiperf_hpc.errors import RunDirectoryError, UsageError, reason_of
from aiperf_hpc.integrity.commit import source_commit
from aiperf_hpc.integrity.signatures import (
    LONGEST,
    BadSignatureError,
    PrivateKey,
    PublicKey,
    check_signature,
)
from aiperf_hpc.results.report.files import (
    MOST_REPORT_BYTES,
    HashedFile,
    hash_beginnings,
    hashed_file,
    list_files,
)
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.journal import MOST_LINE_BYTES, JournalReader
from aiperf_hpc.run.paths import RunPaths, write_whole
from aiperf_hpc.run.records.parsing import model_of
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.bounds import first_fault
from aiperf_hpc.untrusted.files import bytes_inside, open_inside, parsed_json

LIBRARIES = ("jinja2", "matplotlib", "numpy", "optuna", "pydantic")
"""Software that affects plots, hyperparameter importance and number formats."""
OURS = "aiperf-hpc"


@cache
def report_software() -> dict[str, str]:
    """Return the versions of the report software in this environment."""
    return {
        OURS: __version__,
        "commit": source_commit() or "unknown",
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        **{name: version(name) for name in LIBRARIES},
    }


def software_difference(made_by: Mapping[str, str]) -> str | None:
    """Return the first difference between a report's software and this environment, or None."""
    here = report_software()
    for name in {**here, **made_by}:
        if made_by.get(name) != here.get(name):
            return f"{name} {made_by.get(name, 'unknown')}, here it is {here.get(name, 'unknown')}"
    return None


LOG = "output.log"
"""Name of the log files with output of processes and schedulers, which are not records."""
EARLIER = 1
"""Version of manifests that contain only the sources of a report."""


class ReportManifest(Value):
    """Manifest of a run's files, to detect later changes."""

    schema_version: Literal[1, 2] = 2
    run_id: str
    final: bool
    """Whether the run has ended, so that the manifest covers all its files."""
    made_by: dict[str, str] = {}
    """Versions of the software that wrote the report's files; none in manifests of earlier
    versions."""
    files: tuple[HashedFile, ...]

    @property
    def complete(self) -> bool:
        """Whether the manifest names every file of a run that has ended."""
        return self.final and self.schema_version > EARLIER

    def content(self) -> bytes:
        """Return the bytes of the manifest, which the signature covers."""
        return self.model_dump_json(indent=1).encode() + b"\n"


class Difference(NamedTuple):
    """A file that differs from the manifest."""

    said: str
    late: bool = False
    """Whether it is a legitimate change after the end of a run, which has no effect on the
    result."""


def provenance_of(view: RunView, report: Mapping[Path, bytes], *, final: bool) -> ReportManifest:
    """Return the manifest of a report of ``view``. Raises OSError when a file cannot be read.

    Missing stored graphs are omitted: the report does not use them, and states that.

    Args:
        view: view of the run.
        report: files of the report, which need not be written yet.
        final: whether the run has ended, so that all its files are included.
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
    """Return the sources of a report with the number of used bytes of each, or None for all."""
    graphs = sorted(p for p in map(view.paths.graph, view.history.graphs) if p.exists())
    # A running replica may have appended since: the hash covers only the bytes used in the report.
    read: dict[Path, int | None] = {view.paths.manifest: None, **view.history.bytes_read}
    read |= dict.fromkeys(graphs)
    return {_name(view, path): length for path, length in read.items()}


def _readable(hashed: Iterable[HashedFile | OSError]) -> Iterator[HashedFile]:
    for each in hashed:
        if isinstance(each, OSError):
            raise each
        yield each


def is_final(view: RunView) -> bool:
    """Return whether the report is final according to itself or its manifest."""
    paths = view.paths
    return any(_says_final(paths, path) for path in (paths.report_manifest, paths.report_json))


def manifest_of(view: RunView) -> ReportManifest:
    """Return a report's manifest. Raises RunDirectoryError if it is damaged or missing."""
    return _read(view)[1]


def is_whole(view: RunView) -> bool:
    """Return whether a final report is complete, with all its files."""
    if not is_final(view):
        return False
    own = [each for each in named_files(view) if each.path.startswith("report/")]
    return bool(own) and not any(_changed(view, own))


def differences(view: RunView) -> list[Difference]:
    """Return the differences from the manifest of the final report; empty if there are none."""
    try:
        content, manifest = _read(view)
    except RunDirectoryError as error:
        return [Difference(str(error))]
    found = []
    if manifest.schema_version > EARLIER and content != manifest.content():
        found.append("manifest.json has been changed")  # Including insignificant spaces.
    if manifest.schema_version == EARLIER and not view.manifest.earlier:
        found.append("manifest.json has the format of an earlier version than the run")
    known = {entry.path for entry in manifest.files}
    if len(known) < len(manifest.files):
        found.append("manifest.json names a file twice")
    required = sorted({_name(view, path) for path in _always(view.paths)} - known)
    found += [f"manifest.json does not name {path}" for path in required]
    compared = _all_differences if manifest.complete else _earlier_differences
    return [*map(Difference, found), *compared(view, manifest.files)]


def named_files(view: RunView) -> tuple[HashedFile, ...]:
    """Return the files in a report's manifest; none if it is damaged or missing."""
    try:
        return manifest_of(view).files
    except RunDirectoryError:
        return ()


def changed_inputs(view: RunView) -> list[str]:
    """Return the problems of the files that the report was made from; empty if there are none.

    Journals may have grown; a new report covers the added records.

    Raises:
        RunDirectoryError: the report's manifest is damaged or missing.
    """
    inputs = [entry for entry in manifest_of(view).files if _is_input(entry.path)]
    found = [] if any(e.path == _name(view, view.paths.manifest) for e in inputs) else [
        f"manifest.json does not name {_name(view, view.paths.manifest)}"
    ]  # fmt: skip
    found += [each.said for each in _changed(view, inputs)]
    return found + [each.said for each in _new_journals(view, inputs) if not each.late]


def has_grown(view: RunView) -> bool:
    """Return whether any journal has grown since the report was made.

    Raises:
        RunDirectoryError: the report's manifest is damaged or missing.
    """
    known = {entry.path: entry.bytes for entry in manifest_of(view).files}
    sizes = view.history.bytes_read
    return any(known.get(_name(view, path), 0) < size for path, size in sizes.items())


def _always(paths: RunPaths) -> tuple[Path, ...]:
    """Return the sources of every report besides journals and graphs, and its own files."""
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
    """Yield each file that was modified, added or removed."""
    known = {entry.path: entry for entry in entries}
    listing = list_files(view.paths.root)
    for other in listing.others:
        yield Difference(f"{other} is not a regular file; a run contains only regular files")
    for folder in listing.empty:
        yield Difference(
            f"{folder} is an empty folder that the run did not create; remove it", True
        )
    yield from _changed(view, known.values(), frozenset(listing.files))
    late = _late_folders(view, known)
    always = {_name(view, path) for path in _always(view.paths)}
    for path in listing.files:
        if path not in known and path not in always:
            said = f"manifest.json does not name {path}: it did not exist when the run ended"
            yield Difference(said, any(path.startswith(folder) for folder in late))


def _late_folders(view: RunView, known: Mapping[str, HashedFile]) -> set[str]:
    """Return the folders of replica attempts that started after the end of the run."""
    later = {_name(view, path) for path in view.history.bytes_read} - known.keys()
    folders = {f"{PurePosixPath(path).parent}/" for path in later if _is_after_the_end(view, path)}
    return {each for each in folders if not any(path.startswith(each) for path in known)}


def _earlier_differences(view: RunView, entries: Iterable[HashedFile]) -> Iterator[Difference]:
    """Yield the differences of the listed files, and each journal that is not listed."""
    named = list(entries)
    yield from _changed(view, named)
    yield from _new_journals(view, named)


def _changed(
    view: RunView, entries: Iterable[HashedFile], there: frozenset[str] | None = None
) -> Iterator[Difference]:
    """Yield each listed file that is missing or modified.

    Args:
        view: view of the run.
        entries: entries of the manifest.
        there: present files of the run, whose sizes must be unchanged; if not given,
            files may have grown.
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
            yield Difference(f"{path[:100]}: not a file of the run")
        elif isinstance(each, OSError):
            yield Difference(f"{path}: {reason_of(each)}")
        elif each != entry:
            yield Difference(f"{path} has changed since the report was generated")
        elif there is not None and (more := (root / path).stat().st_size - entry.bytes) > 0:
            said = f"{path} has {more:,} bytes more than when the run ended"
            yield Difference(said, _has_grown_late(view, entry))


def _has_grown_late(view: RunView, entry: HashedFile) -> bool:
    """Return whether the data appended to a file is log output or records after the run's end.

    A disconnected replica does not notice the end and continues to record.
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
            return all(model_of(line).utc > end for line in added)
        except ValidationError:
            return False


def _new_journals(view: RunView, entries: Iterable[HashedFile]) -> Iterator[Difference]:
    later = {_name(view, path) for path in view.history.bytes_read} - {e.path for e in entries}
    for path in sorted(later):
        said = f"{path} did not exist when the report was generated"
        yield Difference(said, _is_after_the_end(view, path))


def _is_after_the_end(view: RunView, path: str) -> bool:
    """Return whether a journal started after the end of the run and has no effect on the result.

    A scheduler may start a replica after the end of the run; it exits immediately.
    """
    end = view.history.end_utc
    first = next(JournalReader(view.paths.root / path).read(), None)
    return first is not None and end is not None and first.utc > end


def _says_final(paths: RunPaths, path: Path) -> bool:
    """Return whether a file of the report states that it is final; damaged files do not."""
    try:
        content = parsed_json(bytes_inside(paths.root, path, MOST_REPORT_BYTES))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("final") is True


def _read(view: RunView) -> tuple[bytes, ReportManifest]:
    """Read a report's manifest. Raises RunDirectoryError if it is damaged or missing."""
    try:
        content = bytes_inside(view.paths.root, view.paths.report_manifest)
        return content, ReportManifest.model_validate_json(content)
    except OSError as error:
        raise RunDirectoryError(f"manifest.json cannot be read: {reason_of(error)}") from None
    except ValidationError as error:
        raise RunDirectoryError(f"manifest.json is damaged: {first_fault(error)}") from None


NAMESPACE = "run@aiperf-hpc"
"""Namespace of signatures of runs (``ssh-keygen -n``); signatures for other uses are rejected."""


def sign_run(view: RunView, key: PrivateKey) -> PublicKey:
    """Sign a run that has a final report and whose files match its manifest.

    Raises:
        UsageError: the run has no final report, or its files differ from the manifest.
    """
    root = view.paths.root
    view.refresh()
    if not is_final(view):
        raise UsageError(
            f"{root} has no final report to sign; `aiperf report {root}` writes "
            "it once the run has ended"
        )
    if wrong := differences(view):
        raise UsageError(
            f"{root} does not match its manifest: {wrong[0].said}; `aiperf report {root}` writes a "
            "new one if the records are unchanged"
        )
    if not manifest_of(view).complete:
        raise UsageError(
            f"{root}: its manifest is of an earlier version, which does not name every file; "
            f"`aiperf report {root}` writes a new one"
        )
    put_signature(view.paths, view.paths.report_manifest.read_bytes(), key)
    return key.public


def put_signature(paths: RunPaths, manifest: bytes, key: PrivateKey) -> None:
    """Write the signature of a manifest. Raises RunDirectoryError if it cannot be written."""
    try:
        write_whole(paths.signature, key.sign(manifest, NAMESPACE))
    except OSError as error:
        raise RunDirectoryError(f"cannot write {paths.signature}: {reason_of(error)}") from None


def is_signed(paths: RunPaths) -> bool:
    """Return whether a signature exists, valid or not."""
    return paths.signature.is_symlink() or paths.signature.exists()


def signed_by(paths: RunPaths, trusted: Sequence[PublicKey] = ()) -> PublicKey | None:
    """Return the key of a run's signature, with its name if trusted, or None if unsigned.

    Raises:
        BadSignatureError: the signature is malformed or does not match the manifest.
    """
    if not is_signed(paths):
        return None
    try:
        signature = bytes_inside(paths.root, paths.signature, LONGEST)
        manifest = bytes_inside(paths.root, paths.report_manifest)
    except OSError as error:
        raise BadSignatureError(f"it cannot be checked: {reason_of(error)}") from None
    key = check_signature(manifest, signature, NAMESPACE)
    return next((each for each in trusted if each.raw == key.raw), key)
