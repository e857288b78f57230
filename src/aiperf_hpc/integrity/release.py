"""The releases of this package, identified by the SHA-256 of their files.

``releases/VERSION.sha256`` lists the files of a release in the format of ``sha256sum``, with paths
relative to the package. A checkout and an installed package have the same files, so either can be
compared with the list without git. ``python -m aiperf_hpc.integrity.release`` writes the list of
this version.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from aiperf_hpc import __version__
from aiperf_hpc.integrity.commit import STAMP, uncommitted
from aiperf_hpc.streams import print_in_any_locale

PACKAGE = Path(__file__).parents[1]
RELEASES = PACKAGE / "releases"
SUFFIX = ".sha256"
FILES = "aiperf-hpc files"
"""Name of the digest of the package's files in the recorded versions."""


def file_digests(package: Path = PACKAGE) -> dict[str, str]:
    """Return the SHA-256 of each file of a package, sorted by relative path.

    Bytecode caches, the build stamp and the lists of releases are excluded.

    Raises:
        OSError: a file cannot be read.
    """
    found = {
        path.relative_to(package).as_posix(): path
        for path in _files(package)
        if path != package / STAMP
        and not (path.parent == package / RELEASES.name and path.suffix == SUFFIX)
    }
    return {name: hashlib.sha256(found[name].read_bytes()).hexdigest() for name in sorted(found)}


def _files(package: Path) -> Iterator[Path]:
    # In a checkout, some folders of the package are links to folders of the repository.
    for folder, subfolders, names in os.walk(package, followlinks=True):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        yield from (Path(folder, name) for name in names)


def listing(digests: Mapping[str, str]) -> str:
    """Return digests in the format of ``sha256sum``."""
    return "".join(f"{digest}  {name}\n" for name, digest in digests.items())


def current_package_digest() -> str:
    """Return the package digest, the SHA-256 of the list of this package's files as they are now.

    Raises:
        OSError: a file cannot be read.
    """
    return hashlib.sha256(listing(file_digests()).encode()).hexdigest()


package_digest = cache(current_package_digest)
"""Function that returns the package digest as of its first call."""


def released() -> dict[str, Path]:
    """Return the lists of the releases' files, by version."""
    return {path.name.removesuffix(SUFFIX): path for path in sorted(RELEASES.glob(f"*{SUFFIX}"))}


@cache
def list_digest(path: Path) -> str:
    """Return the package digest of a release: the SHA-256 of its list."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def changes() -> list[str]:
    """Return the differences between this package's files and the release of its version, if any.

    Each is a path and ``changed``, ``missing`` or ``added``.
    """
    path = released().get(__version__)
    if path is None or list_digest(path) == package_digest():
        return []
    lines = path.read_text("utf-8").splitlines()
    release = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    return list(_differences(release, file_digests()))


def _differences(release: Mapping[str, str], files: Mapping[str, str]) -> Iterator[str]:
    for name in sorted(release.keys() | files.keys()):
        if name not in files:
            yield f"{name} missing"
        elif name not in release:
            yield f"{name} added"
        elif files[name] != release[name]:
            yield f"{name} changed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the list of this version's files, once, from an unmodified checkout."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(
        prog="python -m aiperf_hpc.integrity.release",
        description="Write the list of this version's files.",
    )
    parser.parse_args(arguments)
    path = RELEASES / f"{__version__}{SUFFIX}"
    if path.exists():
        sys.stderr.write(f"{path}: {__version__} is released; raise the version first\n")
        return 2
    if found := uncommitted(Path(__file__).with_name("commit.py")):
        sys.stderr.write(
            f"{found[0]} is not committed ({len(found)} in all); release a clean checkout\n"
        )
        return 2
    RELEASES.mkdir(exist_ok=True)
    path.write_text(listing(file_digests()), "utf-8")
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
