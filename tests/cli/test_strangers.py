"""Runs of strangers: one clear line from each command, in bounded time and memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.hostile import CHANGES, asked, commands, finished_run

from aiperf_hpc.run.paths import RunPaths


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("runs") / "run").root


def test_the_run_itself_is_in_order(run: Path) -> None:
    assert asked(run, commands(run)[:2])["verify"].returncode == 0


@pytest.mark.parametrize("name", [*CHANGES])
def test_commands_say_in_a_line_what_is_wrong(run: Path, tmp_path: Path, name: str) -> None:
    """Of all commands, verify and another in turn; `make fuzz` has all of them."""
    changed = tmp_path / "runs" / "run"
    shutil.copytree(run, changed)
    CHANGES[name](RunPaths(changed))
    verify, *others = commands(changed)
    found = asked(changed, [verify, others[[*CHANGES].index(name) % len(others)]])
    assert found["verify"].returncode in (1, 2), found["verify"].stdout
