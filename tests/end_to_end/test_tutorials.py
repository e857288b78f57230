"""The commands of the laptop's tutorial, as they stand there, one after another."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import aiperf
from tests.support.waiting import PATIENCE_SECONDS, until

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "laptop.md"
LONGER = ("--hours 0.05", "--hours 1")
"""What is changed in a command: the run is stopped when its first replica has trained an epoch,
however long that takes."""
RUN = re.compile(r"\d{8}-\d{6}-quickstart-[0-9a-f]{4}")
"""The name of the run that the tutorial shows."""


def commands() -> list[str]:
    """Return the commands behind a prompt."""
    lines = TUTORIAL.read_text("utf-8").splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The exit status and the output of each command, in a shell in an empty folder."""
    folder = tmp_path_factory.mktemp("tutorial")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found: dict[str, tuple[int, str]] = {}
    for command in commands():
        given = command.replace(*LONGER)
        if runs := sorted(folder.glob("runs/*-quickstart-*")):
            given = RUN.sub(runs[0].name, given)
        with subprocess.Popen(
            ["bash", "-c", given],
            cwd=folder,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            if command.startswith("aiperf start"):
                until(lambda: _trained(folder), of=process)
                assert aiperf("stop", next(folder.glob("runs/*"))).returncode == 0
            output, _ = process.communicate(timeout=PATIENCE_SECONDS)
        found[command] = process.returncode, output
    return found


def _trained(folder: Path) -> bool:
    journals = folder.glob("runs/*/replicas/r0/*/journal.jsonl")
    texts = [journal.read_text("utf-8") for journal in journals]
    return any('"type":"progress"' in text and '"type":"evaluated"' in text for text in texts)


def test_each_command_of_the_tutorial(outputs: dict[str, tuple[int, str]]) -> None:
    failed = {command: given for command, given in outputs.items() if given[0] != 0}
    assert list(failed) == ["aiperf verify runs/copy"], failed


def test_verification_finds_only_the_forgery(outputs: dict[str, tuple[int, str]]) -> None:
    honest, forged = (outputs[f"aiperf verify {run}"][1] for run in ("last", "runs/copy"))
    assert "records: consistent; unsigned" in honest
    assert re.search(r"^FAILED +samples ", forged, re.MULTILINE)
    assert "records: inconsistent; failed: " in forged
