"""Asking programs of the working side, which import frameworks: the primary imports none."""

from __future__ import annotations

import subprocess
import sys

from pydantic import BaseModel

from aiperf_hpc.errors import UsageError
from aiperf_hpc.host.processes import failure_reason
from aiperf_hpc.streams import ascii_json


def ask(module: list[str], config: BaseModel, refusal: type[UsageError]) -> str:
    """Give a program of the working side a configuration; return what it prints.

    Raises ``refusal`` in its last words when it fails.
    """
    done = subprocess.run(
        [sys.executable, "-m", *module],
        input=ascii_json(config.model_dump_json()),
        capture_output=True,
        encoding="locale",
        errors="backslashreplace",
        check=False,
    )
    if done.returncode != 0:
        raise refusal(failure_reason(done))
    return done.stdout
