"""Which commit this code is: by its own repository, or stamped when it was built.

The standard library only, since ``setup.py`` runs it before anything is installed.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

PROJECT = "aiperf-hpc"
HERE = Path("src/aiperf_hpc/integrity/commit.py")
"""The path of this file in the repository."""
STAMP = "commit.txt"
"""The name of a file at the top of a package that was built, never in the repository, which has
the commit."""


def source_commit() -> str | None:
    """Return the commit of this code, with + when it was changed; None where that is not known."""
    try:
        return Path(__file__).parents[1].joinpath(STAMP).read_text("ascii").strip() or None
    except FileNotFoundError:
        return commit_of(Path(__file__))


def commit_of(file: Path) -> str | None:
    """Return the commit of the repository whose copy of this file ``file`` is.

    Not that of any other repository around it: of a project whose virtual environment this
    package is installed in, or of this project's own, if that has the environment in it.
    """
    top = _top(file)
    if top is None:
        return None
    # Without tags, which are no commits.
    return _git(top, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+") or None


def uncommitted(file: Path) -> list[str]:
    """Return the paths that git reports as changed or untracked in the repository of ``file``."""
    top = _top(file)
    changes = _git(top, "status", "--porcelain") if top else None
    return [line.split(maxsplit=1)[1] for line in (changes or "").splitlines()]


def _top(file: Path) -> Path | None:
    """Return the repository whose copy of this file ``file`` is; None where it is in no other."""
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
    """Return what git says about the repository of ``folder``; None where it says nothing."""
    # What is set for another repository, e.g. GIT_DIR in a hook, is not about this one.
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
        return None  # No git here.
    return done.stdout.strip() if done.returncode == 0 else None
