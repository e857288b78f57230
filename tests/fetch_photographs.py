"""Fetch 20 photographs of ImageNet, true JPEG files, from the package that carries them.

    python tests/fetch_photographs.py FOLDER

leaves them in FOLDER. The exit status is 0, or 1 when what came is not what is expected, or 75 when
no package index can be reached: the one failure that is nobody's fault.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

NAME = "foolbox"
PACKAGE = f"{NAME}==2.4.0"
SHA256 = "052437e6bb2fd0eaa6b39cd295abd288f2e6db89e3609784f04f425fdc64903c"
PHOTOGRAPHS = "*/foolbox/data/imagenet_*.jpg"
NUMBER = 20
PATIENCE = 300
"""Seconds to wait for pip."""

FAILED = 1
NOT_AVAILABLE = 75


class NotAvailableError(Exception):
    """No package index can be reached."""


class WrongContentError(Exception):
    """What came is not what is expected."""


def download(folder: Path) -> Path:
    """Have pip put the package's source into ``folder``, and return its path.

    Raises:
        NotAvailableError: pip failed, or it took too long.
        WrongContentError: the archive is another one than the pinned.
    """
    # In isolation pip would make, and with ":all:" from their sources too, what builds the package.
    options = ["--no-deps", "--no-binary", NAME, "--no-build-isolation", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), PACKAGE]
    try:
        done = subprocess.run(
            command, timeout=PATIENCE, check=False, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError(f"pip download {PACKAGE} took over {PATIENCE} s") from None
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = said[-1] if said else f"exit status {done.returncode}"
        raise NotAvailableError(f"pip download {PACKAGE} failed: {reason}")
    digest = hashlib.sha256(archives[0].read_bytes()).hexdigest()
    if digest != SHA256:
        raise WrongContentError(f"{PACKAGE} has the SHA-256 {digest}, not {SHA256}")
    return archives[0]


def fetch(folder: Path) -> None:
    """Leave the photographs in ``folder``. Raises as ``download`` does."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        tarfile.open(download(Path(temporary))) as archive,
    ):
        files = [each for each in archive if PurePosixPath(each.name).match(PHOTOGRAPHS)]
        found = {PurePosixPath(each.name).name: archive.extractfile(each) for each in files}
        photographs = {name: file.read() for name, file in found.items() if file}
    if len(photographs) != NUMBER:
        raise WrongContentError(f"{PACKAGE} has {len(photographs)} photographs, not {NUMBER}")
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in photographs.items():
        (folder / name).write_bytes(content)


def main(arguments: list[str]) -> int:
    """Run the script and return its exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python tests/fetch_photographs.py FOLDER\n")
        return 2
    try:
        fetch(Path(arguments[0]))
    except NotAvailableError as error:
        sys.stderr.write(f"photographs of ImageNet are not available: {error}\n")
        return NOT_AVAILABLE
    except WrongContentError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
