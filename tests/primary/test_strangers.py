"""Runs of strangers: one clear line from each command, in bounded time and memory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.hostile import CHANGES, asked_everything, finished_run

from aiperf_hpc.run.paths import RunPaths


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("runs") / "run").root


def test_the_run_itself_is_in_order(run: Path) -> None:
    found = asked_everything(run)
    assert {name: done.status for name, done in found.items() if done.status} == {}, found


@pytest.mark.parametrize("name", CHANGES)
def test_each_command_says_what_is_wrong_in_a_line(run: Path, tmp_path: Path, name: str) -> None:
    changed = tmp_path / "runs" / "run"
    shutil.copytree(run, changed)
    CHANGES[name](RunPaths(changed))
    found = asked_everything(changed)
    assert found["verify"].status in (1, 2), found["verify"].out
