"""The commit of this code, from its repository or from a stamp written by the build.

This module uses only the standard library, because ``setup.py`` runs it before anything is
installed.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

PROJECT = "aiperf-hpc"
HERE = Path("src/aiperf_hpc/integrity/commit.py")
"""Path of this file in the repository."""
STAMP = "commit.txt"
"""Name of the file with the commit at the top of a built package; it is never in the repository."""


def source_commit() -> str | None:
    """Return the commit of this code, with ``+`` if it has changes, or None if it is unknown."""
    try:
        return Path(__file__).parents[1].joinpath(STAMP).read_text("ascii").strip() or None
    except FileNotFoundError:
        return commit_of(Path(__file__))


def commit_of(file: Path) -> str | None:
    """Return the commit of the repository that contains ``file`` as its copy of this file.

    Files that a sparse checkout omits are not changes: the package digest covers the package. Other
    repositories around ``file`` do not count, such as a project (or a checkout of this one) with a
    virtual environment that this package is installed in.
    """
    top = _top(file)
    if top is None:
        return None
    # Excludes tags, which are not commit hashes.
    found = _git(top, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+")
    if found and not found.endswith("+") and _hidden(top, missing=False):
        return f"{found}+"
    return found or None


def uncommitted(file: Path) -> list[str]:
    """Return the paths that differ from the commit, or whose changes git does not report."""
    top = _top(file)
    changes = _git(top, "status", "--porcelain") if top else None
    found = [line.split(maxsplit=1)[1] for line in (changes or "").splitlines()]
    return found + (_hidden(top, missing=True) if top else [])


def _hidden(top: Path, *, missing: bool) -> list[str]:
    """Return the paths whose changes git does not report, e.g. those assumed to be unchanged.

    Args:
        top: folder of the repository.
        missing: whether to include the files that a sparse checkout omits.
    """
    listed = (_git(top, "ls-files", "-v", "-z") or "").split("\0")
    hidden = [(line[0], line[2:]) for line in listed if line and not line.startswith("H ")]
    return [path for tag, path in hidden if missing or tag != "S" or os.path.lexists(top / path)]


def _top(file: Path) -> Path | None:
    """Return the repository that contains ``file`` as its copy of this file, or None."""
    file = file.resolve()
    top = file.parents[len(HERE.parts) - 1]
    if file != top / HERE or _project(top) != PROJECT or _git(top, "rev-parse", "--show-cdup"):
        return None
    if _git(top, "ls-files", "--error-unmatch", "--", str(HERE)) is None:
        return None
    return top


def _project(top: Path) -> str | None:
    try:
        values = tomllib.loads((top / "pyproject.toml").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    name = values.get("project", {}).get("name")
    return name if isinstance(name, str) else None


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command in the repository of ``folder``, or None if it fails."""
    # Variables for another repository, e.g. GIT_DIR in a hook, do not apply to this one.
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG_")
    }
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            env={**kept, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except OSError:
        return None  # git is not installed.
    return done.stdout.strip() if done.returncode == 0 else None
