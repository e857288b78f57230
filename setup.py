"""Stamps a built package with its commit (``src/aiperf_hpc/integrity/commit.py``)."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

PACKAGE = Path("src/aiperf_hpc")
CODE = runpy.run_path(str(PACKAGE / "integrity" / "commit.py"))


def stamp(package: Path) -> None:
    """Leave the commit in a package that was built, where one is known."""
    target = package / CODE["STAMP"]
    target.unlink(missing_ok=True)  # Of an earlier build.
    if commit := CODE["source_commit"]():
        target.write_text(f"{commit}\n", "ascii")


class BuildPy(build_py):
    """Builds the package's files; an editable installation has none of its own."""

    def run(self) -> None:
        if self.editable_mode:
            return super().run()
        # setuptools keeps files of an earlier build that are no longer in the package.
        shutil.rmtree(Path(self.build_lib, "aiperf_hpc"), ignore_errors=True)
        super().run()
        return stamp(Path(self.build_lib, "aiperf_hpc"))


class Sdist(sdist):
    """Makes the source distribution, with the links of the repository and not copies instead."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for link in filter(Path.is_symlink, PACKAGE.iterdir()):
            copy = Path(base_dir, link)
            shutil.rmtree(copy)
            copy.symlink_to(link.readlink())
        stamp(Path(base_dir, PACKAGE))


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
