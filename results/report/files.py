"""Files of a run directory with their SHA-256, and the bytes of its report."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import without_stand_ins
from aiperf_hpc.trial import Value
from aiperf_hpc.untrusted.files import bytes_inside, open_inside, parsed_json

OUTSIDE = ("report/manifest.json", "report/manifest.json.sig", "annotations.json")
"""The files of a run that its manifest does not name: itself and the signature of its bytes, which
are made of it and which ``aiperf verify`` checks by themselves; and the tags and the note, which
may change at any time and which nothing is computed from."""
BEING_WRITTEN = re.compile(r"\.annotations\.json\.[^/]+\.\d+\.\d+")
"""Temporary names of ``annotations.json`` (``write_whole``), directly in the run directory."""
MOST_AT_ONCE = 16
"""Maximum number of files that are read and hashed concurrently: one per core, because reading and
hashing release the GIL."""
PIECE = 2**20
"""Maximum number of bytes of a file in memory."""


class HashedFile(Value):
    """A file of a run, or its first bytes."""

    path: str
    """Path of the file, relative to the run directory."""
    bytes: Annotated[int, Field(ge=0)]
    sha256: str
    """SHA-256 of the first ``bytes`` bytes, in hexadecimal."""


class Listing(Value):
    """Content of a run directory, by relative paths."""

    files: tuple[str, ...]
    """Regular files, sorted, without those in ``OUTSIDE`` and ``BEING_WRITTEN``."""
    others: tuple[str, ...]
    """Entries that are neither folders nor regular files, or whose name is not valid text."""
    empty: tuple[str, ...] = ()
    """Empty folders that a run does not create."""


def hashed_file(path: str, content: bytes) -> HashedFile:
    """Return the hash of a file with this content."""
    return HashedFile(path=path, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def list_files(root: Path) -> Listing:
    """Return the content of a run directory without following links. Raises OSError."""
    files, others, empty, folders = list[str](), list[str](), list[str](), [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as opened:
            entries = list(opened)
        if not entries and not RunPaths.FOLDERS.fullmatch(folder):
            empty.append(folder)
        for entry in entries:
            path = f"{folder}{entry.name}"
            if without_stand_ins(path) != path:
                others.append(path)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(f"{path}/")
            elif not entry.is_file(follow_symlinks=False):
                others.append(path)
            elif path not in OUTSIDE and not BEING_WRITTEN.fullmatch(path):
                files.append(path)
    return Listing(
        files=tuple(sorted(files)),
        others=tuple(sorted(map(ascii, others))),
        empty=tuple(sorted(empty)),
    )


def hash_beginnings(
    root: Path, lengths: Mapping[str, int | None]
) -> dict[str, HashedFile | OSError]:
    """Return the hash of the first bytes of files (all bytes if the length is None), or why a file
    cannot be read. Paths are relative to ``root``."""
    at_once = min(MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(at_once) as pool:
        found = pool.map(lambda each: _hashed(root, *each), lengths.items())
        return dict(zip(lengths, found, strict=True))


def _hashed(root: Path, path: str, length: int | None) -> HashedFile | OSError:
    try:
        with open_inside(root, root / path) as file:
            return _hash_of(path, file.fileno(), length)
    except OSError as error:
        return error


def _hash_of(path: str, file: int, length: int | None) -> HashedFile:
    digest, done = hashlib.sha256(), 0
    left = float("inf") if length is None else length
    while left > 0 and (piece := os.read(file, int(min(PIECE, left)))):
        digest.update(piece)
        done += len(piece)
        left -= len(piece)
    return HashedFile(path=path, bytes=done, sha256=digest.hexdigest())


MOST_REPORT_BYTES = 256 * 2**20
"""Maximum size of report.json; 512 replicas for a day (12.6 million records) need 14 MB."""


def report_document(paths: RunPaths) -> Any:  # noqa: ANN401 -- whatever was written
    """Return the parsed report of a run.

    Raises:
        OSError: there is no readable report.
        ValueError: the report is damaged.
    """
    return parsed_json(bytes_inside(paths.root, paths.report_json, MOST_REPORT_BYTES))
