"""The laptop tutorial: its commands run, and its output has the words shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command import aiperf
from tests.support.waiting import PATIENCE_SECONDS, until

from aiperf_hpc.config import load_config

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "laptop.md"
LONGER = ("--hours 0.05", "--hours 1")
"""What is changed in a command: the run is stopped when its first replica has trained an epoch,
however long that takes."""
RUN = re.compile(r"\d{8}-\d{6}-quickstart-[0-9a-f]{4}")
"""The name of the run that the tutorial shows."""
MACHINE_DEPENDENT = ("aiperf doctor", "aiperf peaks")
"""Commands whose output depends on the machine."""
ONLY_IN_A_COMPLETE_RUN = {
    "after", "candidate", "completed", "conv", "convolution", "ended", "grown", "hpo", "kernel",
    "min", "not", "over", "relu", "run", "stem", "time", "train", "trained",
}  # fmt: skip
"""Words of a complete run that the stopped run may not print."""
WORD = re.compile(r"[A-Za-z][a-z]{2,}")


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


def _shown() -> dict[str, str]:
    """The output that the tutorial shows below each command."""
    blocks = re.findall(r"```console\n(.*?)```", TUTORIAL.read_text("utf-8"), re.DOTALL)
    parts = (part.partition("\n") for block in blocks for part in block.split("$ ")[1:])
    return {command: output for command, _, output in parts if output}


def test_commands_print_the_words_that_the_tutorial_shows(
    outputs: dict[str, tuple[int, str]],
) -> None:
    shown = {c: text for c, text in _shown().items() if not c.startswith(MACHINE_DEPENDENT)}
    assert len(shown) >= 6
    missing = {
        command: set(WORD.findall(RUN.sub("", text)))
        - set(WORD.findall(outputs[command][1]))
        - ONLY_IN_A_COMPLETE_RUN
        for command, text in shown.items()
    }
    assert {command: words for command, words in missing.items() if words} == {}


def test_the_shown_batch_sizes_are_configured() -> None:
    batches = set(map(int, re.findall(r"batch (\d+)", TUTORIAL.read_text("utf-8"))))
    assert batches
    assert batches <= set(load_config("quickstart").hpo.space.batch_size.choices or ())
