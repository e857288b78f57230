"""`make offline`, by a pip that fetches nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *" wheel "*) touch {folder}/aiperf_hpc-0.1.0-py3-none-any.whl ;;
  *" download "*) touch {folder}/numpy-2.0-any.whl {folder}/scikit_learn-1.5-any.whl ;;
esac
"""


def make_offline(tmp_path: Path, *variables: str) -> subprocess.CompletedProcess[str]:
    python, folder = tmp_path / "venv" / "bin" / "python", tmp_path / "wheels"
    for made in (python.parent, folder):
        made.mkdir(parents=True, exist_ok=True)
    python.write_text(PYTHON.format(log=tmp_path / "log", folder=folder), "utf-8")
    python.chmod(0o755)
    command = ["make", "offline", f"VENV={tmp_path / 'venv'}", f"OFFLINE={folder}", *variables]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_wheels_are_fetched_for_the_python_that_is_named(tmp_path: Path) -> None:
    old = tmp_path / "wheels" / "numpy-1.0-any.whl"
    old.parent.mkdir()
    old.touch()
    done = make_offline(tmp_path, "PYTHON=3.12", "EXTRAS=mpi,hdf5", "WITHOUT=scikit_learn scipy")
    assert done.returncode == 0, done.stderr
    built, fetched = (tmp_path / "log").read_text("utf-8").splitlines()
    assert "wheel --quiet --no-deps" in built
    assert "--only-binary=:all: --python-version 3.12" in fetched
    assert fetched.endswith("/wheels/aiperf_hpc-0.1.0-py3-none-any.whl[mpi,hdf5]")
    left = sorted(file.name for file in (tmp_path / "wheels").iterdir())
    assert left == ["aiperf_hpc-0.1.0-py3-none-any.whl", "numpy-2.0-any.whl"]


def test_the_python_has_to_be_named(tmp_path: Path) -> None:
    done = make_offline(tmp_path)
    assert done.returncode != 0
    assert "make: for which Python? make offline PYTHON=3.12, or 3.11" in done.stdout
    assert not (tmp_path / "log").exists()


def test_no_extras_are_fetched_unless_they_are_named(tmp_path: Path) -> None:
    assert make_offline(tmp_path, "PYTHON=3.11").returncode == 0
    assert (tmp_path / "log").read_text("utf-8").splitlines()[-1].endswith("any.whl")
