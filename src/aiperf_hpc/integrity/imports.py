"""Imported files that belong neither to this package, to Python, nor to an installed distribution.

Such a file may replace a library's code: ``sitecustomize``, a module on PYTHONPATH with a library's
name, or a ``.pth`` file with code that Python runs when it starts. Python and ``.pth`` files of
distributions are compared with the SHA-256 that their installer recorded.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import site
import subprocess
import sys
import sysconfig
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from aiperf_hpc.integrity.release import PACKAGE

MOST: Final = 100
"""Maximum number of reported files of each kind."""
_PACKAGE_MANAGERS: Final = (
    ("dpkg-query", "--search"),
    ("rpm", "--query", "--file", "--queryformat", "[%{FILENAMES}\n]"),
)
"""Commands that print the paths of files that the system's packages installed."""
_CACHE: Final = "__pycache__"
"""Name of folders that the digest of this package excludes."""
_CUSTOMIZE: Final = {"sitecustomize", "usercustomize"}
"""Modules that Python imports when it starts."""
_TIMEOUT_SECONDS: Final = 30.0
_RECORD: Final = ".dist-info/RECORD,,"


class Imports(NamedTuple):
    """Imported files that may replace the code of a release."""

    foreign: Mapping[str, str]
    """SHA-256 of each file without a known owner, by path; empty if it cannot be read."""
    modified: tuple[str, ...]
    """Files of distributions that differ from the installed ones."""


class _Row(NamedTuple):
    """The entry of a file in the RECORD of its distribution."""

    sha256: str
    """SHA-256 in hexadecimal; empty if none is recorded."""
    size: str
    recorded: float
    """Time of the last change of RECORD: a file is unchanged if it did not change later."""


def find_imports(modules: Mapping[str, Any], generated: tuple[str, ...] = ()) -> Imports:
    """Return the imported files of this process that may replace a distribution's code.

    Args:
        modules: imported modules by name.
        generated: prefixes of the paths of modules that compilers of this process write. They do
            not cover ``sitecustomize`` or files in a folder of ``sys.path``, which replace code.
    """
    files = {
        each
        for each in (*_files_of(modules), *_startup_files())
        if not (_is_digested(each) or _is_generated(each, generated) or _is_standard(each))
    }
    rows = _rows_of(files)
    foreign = files - rows.keys()
    foreign -= _packaged(foreign)
    # Two distributions may have installed the same file.
    modified = {each for each, own in rows.items() if all(_differs(each, row) for row in own)}
    if foreign or modified:
        conda = _conda_files()
        modified |= {each for each in foreign & conda.keys() if conda[each] and _is_text(each)}
        foreign -= conda.keys()
        modified = {each for each in modified if conda.get(each) != _sha256(each)}
    return Imports(
        {_text(each): _sha256(each) for each in sorted(foreign)[:MOST]},
        tuple(_text(each) for each in sorted(modified)[:MOST]),
    )


def _is_digested(file: str) -> bool:
    """Return whether the digest of this package covers a path."""
    prefix = f"{PACKAGE}{os.sep}"
    return file.startswith(prefix) and _CACHE not in file.removeprefix(prefix).split(os.sep)


def _is_generated(file: str, generated: tuple[str, ...]) -> bool:
    """Return whether a compiler of this process, and not Python's search path, has a module."""
    prefix = next((each for each in generated if file.startswith(each)), None)
    path = Path(file)
    if prefix is None or _CUSTOMIZE & {path.stem, path.parent.name}:
        return False
    # A process may start in the prefix's folder, which Python then searches.
    below = {each for each in path.parents if str(each).startswith(prefix)}
    return below.isdisjoint(map(Path, sys.path))


def _files_of(modules: Mapping[str, Any]) -> Iterator[str]:
    for module in list(modules.values()):
        # Attributes of lazy modules would import them.
        attributes = getattr(module, "__dict__", {})
        spec: Any = attributes.get("__spec__")
        file = spec.origin if getattr(spec, "has_location", False) else attributes.get("__file__")
        if isinstance(file, str) and os.path.isabs(file):
            yield file


def _startup_files() -> Iterator[str]:
    """Yield the ``.pth`` files that may have code, which Python runs when it starts."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    for folder in [*site.getsitepackages(), *user]:
        for path in Path(folder).glob("*.pth"):
            if _may_have_code(path):
                yield str(path)


def _may_have_code(path: Path) -> bool:
    """Return whether a ``.pth`` file has code, or cannot be read, e.g. because it is a folder."""
    try:
        lines = path.read_text("utf-8-sig", errors="replace").splitlines()
    except OSError:
        return True
    return any(line.startswith(("import ", "import\t")) for line in lines)


@cache
def _standard_folders() -> tuple[str, ...]:
    """Return the prefixes of the paths of the standard library's modules."""
    zipped = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    folders = {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    places = ((each / "lib-dynload", each, each.parent / zipped) for each in folders)
    return tuple(f"{place}{os.sep}" for each in places for place in each)


def _is_standard(file: str) -> bool:
    """Return whether a path is that of a module of the standard library."""
    folder = next((each for each in _standard_folders() if file.startswith(each)), None)
    if folder is None:
        return False
    module = file.removeprefix(folder).partition(os.sep)[0].partition(".")[0]
    return module in sys.stdlib_module_names or module.startswith("_sysconfigdata_")


def _rows_of(files: set[str]) -> dict[str, list[_Row]]:
    """Return the entries of files in the records of installed distributions, by path."""
    found: dict[str, list[_Row]] = {}
    for distribution in metadata.distributions():
        folder = f"{str(distribution.locate_file('')).rstrip(os.sep)}{os.sep}"
        record = _read(distribution, "RECORD")
        if record is None:
            # Of earlier installers, with paths relative to the folder of this list.
            listed = (_read(distribution, "installed-files.txt") or "").splitlines()
            names = (f"{folder}{name.removeprefix('../')}" for name in listed)
            found |= {name: [_Row("", "", 0.0)] for name in names if name in files}
            continue
        lines = record.splitlines()
        own = [line for line in lines if f"{folder}{line.partition(',')[0]}" in files]
        written = _written(folder, lines) if own else 0.0
        for line in own:
            try:
                ((name, digest, size),) = csv.reader([line])
                row = _Row(_hexadecimal(digest), size, written)
            except (csv.Error, ValueError):
                continue  # Malformed: another record may own the file, or it has no known owner.
            found.setdefault(f"{folder}{name}", []).append(row)
    return found


def _read(distribution: metadata.Distribution, name: str) -> str | None:
    """Return a metadata file's text, None if missing, or empty if it cannot be read as text."""
    try:
        return distribution.read_text(name)
    except (OSError, UnicodeDecodeError):
        return ""  # Its files have no known owner.


def _written(folder: str, lines: list[str]) -> float:
    """Return the time of the last change of a RECORD, which names itself without a digest."""
    own = next((line for line in lines if line.endswith(_RECORD)), None)
    try:
        return os.stat(f"{folder}{own.rstrip(',')}").st_ctime if own is not None else 0.0
    except OSError:
        return 0.0  # In an archive.


def _hexadecimal(digest: str) -> str:
    """Return a SHA-256 in hexadecimal, or empty if the algorithm differs.

    Raises:
        ValueError: the digest is malformed.
    """
    algorithm, _, text = digest.partition("=")
    return urlsafe_b64decode(f"{text}=").hex() if algorithm == "sha256" else ""


def _differs(file: str, row: _Row) -> bool:
    """Return whether a Python or ``.pth`` file differs from the installed one.

    Only a file that changed after the installation is read: a process imports thousands of files.
    """
    if not row.sha256 or not _is_text(file):
        return False
    try:
        status = os.stat(file)
    except OSError:
        return False  # In an archive.
    if str(status.st_size) == row.size and status.st_ctime <= row.recorded:
        return False
    return _sha256(file) != row.sha256


def _is_text(file: str) -> bool:
    return file.endswith((".py", ".pth"))


def _packaged(files: set[str]) -> set[str]:
    """Return the files that packages of the operating system installed."""
    found: set[str] = set()
    for command in _PACKAGE_MANAGERS if files else ():
        try:
            done = subprocess.run(
                [*command, *files],
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=False,
                timeout=_TIMEOUT_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        found |= {line.rpartition(": ")[2] for line in done.stdout.splitlines()}
    return files & found


def _conda_files() -> dict[str, str]:
    """Return the SHA-256 of each file that conda installed, by path."""
    found = {}
    for path in Path(sys.prefix, "conda-meta").glob("*.json"):
        for each in _conda_paths(path):
            match each:
                case {"_path": str(name)}:
                    digest = each.get("sha256_in_prefix") or each.get("sha256", "")
                    found[f"{sys.prefix}{os.sep}{name}"] = digest
    return found


def _conda_paths(path: Path) -> list[Any]:
    """Return the entries of the files of a conda package; none if its list is damaged."""
    try:
        listed = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return []  # Its files have no known owner.
    match listed:
        case {"paths_data": {"paths": [*entries]}}:
            return entries
    return []


def _sha256(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""


def _text(file: str) -> str:
    """Return a path as text that can be recorded."""
    return file.encode("utf-8", "backslashreplace").decode()
