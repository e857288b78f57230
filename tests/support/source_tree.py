"""A copy of the repository that wheels can be built from."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from aiperf_hpc.integrity.commit import STAMP

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")


def package_texts() -> dict[str, str]:
    """Return the text of each module of the package, by its path in the repository."""
    links = [link.name for link in (ROOT / "src" / "aiperf_hpc").iterdir() if link.is_symlink()]
    found = {p.resolve() for folder in ("src", *links) for p in (ROOT / folder).rglob("*.py")}
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(found)}


def copy_tree(top: Path) -> Path:
    """Copy what a package is built from."""
    top.mkdir()
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, top)
    (top / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "aiperf.1", top / "docs")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", STAMP)
    links = [link.name for link in (ROOT / "src" / "aiperf_hpc").iterdir() if link.is_symlink()]
    for folder in ("src", *links):
        shutil.copytree(ROOT / folder, top / folder, symlinks=True, ignore=unwanted)
    return top


def unpack_wheel(tree: Path, folder: Path) -> Path:
    """Build a wheel of a copy and unpack it into a folder, as its installation does."""
    wheels = folder.with_name(f"{folder.name}-wheels")
    subprocess.run([*PIP, "wheel", *OFFLINE, "--wheel-dir", wheels, tree], check=True)
    (wheel,) = wheels.glob("*.whl")
    shutil.unpack_archive(wheel, folder, "zip")
    return folder


def built(source: Path, folder: Path) -> str | None:
    """Build the package's files as for a wheel; return the commit that they are stamped with."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(folder)]
    subprocess.run(command, check=True, cwd=source, capture_output=True)
    assert (folder / "aiperf_hpc/cli/program.py").exists()
    stamp = folder / "aiperf_hpc" / STAMP
    return stamp.read_text("ascii").strip() if stamp.exists() else None


Git = Callable[..., str]


def git_in(folder: Path) -> Git:
    def git(*arguments: object) -> str:
        settings = ("user.name=n", "user.email=e@example.org", "commit.gpgsign=false")
        identity = [part for setting in settings for part in ("-c", setting)]
        done = subprocess.run(
            ["git", "-C", str(folder), *identity, *map(str, arguments)],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    return git


def committed(top: Path) -> str:
    """Make a repository of a folder; return its commit."""
    git = git_in(top)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    return git("rev-parse", "HEAD")
