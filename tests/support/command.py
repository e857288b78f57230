"""Execution of ``aiperf`` commands by tests.

In this process they take what they do; a process of its own takes a second of processor time more,
for what it imports. That the installed program is the same function: test_command_line.py.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from tests.support.waiting import PATIENCE_SECONDS

from aiperf_hpc.cli import main

AIPERF = (sys.executable, "-m", "aiperf_hpc.cli")
Done = subprocess.CompletedProcess[str]


def aiperf(*arguments: object, environment: Mapping[str, str] | None = None) -> Done:
    """Carry out a command in this process; what it does not foresee, it raises."""
    words = [str(argument) for argument in arguments]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, environment or {}):
        status = main(words)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def printed(*arguments: object) -> str:
    """Return what a command that succeeds prints."""
    done = aiperf(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def aiperf_process(
    *arguments: object, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Done:
    """Carry out a command in a process of its own, as one that conducts a run."""
    return subprocess.run(
        [*AIPERF, *(str(argument) for argument in arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
        timeout=PATIENCE_SECONDS,
    )
