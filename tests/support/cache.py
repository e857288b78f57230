"""A cache of fetched files for all processes and later test runs."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest


def cached(name: str, make: Callable[[Path], object]) -> Path:
    """Return the path of a file or folder in the cache, made under a lock unless it is there.

    Other processes wait for the lock, which the kernel releases when its holder exits. What appears
    under the name is complete.

    Args:
        name: of the file or folder.
        make: writes it to the path that it is given, which does not exist.
    """
    root = Path(os.environ.get("AIPERF_TEST_CACHE", Path.home() / ".cache" / "aiperf-hpc-tests"))
    root.mkdir(parents=True, exist_ok=True)
    path, part = root / name, root / f"{name}.part"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            if part.is_dir():
                shutil.rmtree(part)
            part.unlink(missing_ok=True)
            make(part)
            part.rename(path)
    return path


def unavailable(message: str) -> NoReturn:
    """Skip, or in CI fail, because a test that never runs must not pass for one that does."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
