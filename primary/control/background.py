"""Commands of ``aiperf`` that go on without whoever started them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from aiperf_hpc.run.paths import RunPaths


def in_background(
    command: str, paths: RunPaths, options: Sequence[str] = ()
) -> subprocess.Popen[bytes]:
    """Start a command on a run in a session of its own; what it prints is in the run directory."""
    words = [sys.executable, "-m", "aiperf_hpc.cli", command, str(paths.root), *options]
    paths.primary_log.parent.mkdir(parents=True, exist_ok=True)
    with paths.primary_log.open("ab") as log:
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
