"""What tests fetch is fetched by one process, for which the others wait."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cache import cached

ASK = """
import sys
from pathlib import Path
from tests.support.cache import cached

def make(path):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    print("making", flush=True)
    sys.stdin.readline()
    path.mkdir()
    (path / "content").write_text("whole")

print("asking", flush=True)
print((cached("data", make) / "content").read_text(), flush=True)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIPERF_TEST_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ask(log: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", ASK, str(log)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert line(process) == "asking"
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_of_several_processes_makes_it_and_the_others_wait(tmp_path: Path) -> None:
    first = ask(tmp_path / "log")
    assert line(first) == "making"
    others = [ask(tmp_path / "log") for _ in range(3)]
    results = [process.communicate("\n")[0].strip() for process in (first, *others)]
    assert results == ["whole"] * 4
    assert (tmp_path / "log").read_text() == "made\n"


def test_a_failure_is_the_callers_and_the_next_one_tries_again() -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError("no network")

    with pytest.raises(OSError, match="no network"):
        cached("data", fail)
    assert cached("data", lambda path: path.write_text("whole")).read_text() == "whole"
