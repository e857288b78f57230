"""Other programs of this package, each in a separate process.

Only the replica side imports frameworks; the primary runs its programs instead.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from pydantic import BaseModel

from aiperf_hpc.host.processes import run_in_session
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import ascii_json


def output_for(module: list[str], config: BaseModel) -> str:
    """Run a program of the replica side with a configuration as input; return its output.

    Raises UsageError with the reason from its output if it fails.
    """
    given = ascii_json(config.model_dump_json())
    return run_in_session([sys.executable, "-m", *module], given=given)


def start_command(
    name: str, paths: RunPaths, options: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a command of ``aiperf`` on a run in its own session.

    It continues after this process exits; its output is in the run directory.
    """
    command = [sys.executable, "-m", "aiperf_hpc.cli", name, str(paths.root), *options]
    paths.primary_log.parent.mkdir(parents=True, exist_ok=True)
    with paths.primary_log.open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
