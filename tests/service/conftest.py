"""What several tests of the service need."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

TOKEN: Final = "0123456789abcdef-for-tests"  # noqa: S105 -- of nothing
SHOWN: Final = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Give what the service keeps from the collector back to it, with all else in this process."""
    yield
    gc.unfreeze()


@pytest.fixture
def token_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(f"# who may\nanother-token-0123456789\n{TOKEN}  # of the tests\n")
    file.chmod(0o600)
    return file


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that nobody has signed, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    paths = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=aiperf-hpc"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return paths
