"""``python -m aiperf_hpc.replica.execution --out FILE``: execute again what was requested."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from aiperf_hpc.replica.execution.epochs import execute
from aiperf_hpc.replica.request_process import answer
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.reexecution import ExecutionRequest


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute, write what was found, and return the exit status."""
    return answer(arguments, ExecutionRequest, "aiperf_hpc.replica.execution", _execute)


def _execute(request: ExecutionRequest, out: Path) -> None:
    write_whole(out, execute(request).model_dump_json(indent=1))


if __name__ == "__main__":
    sys.exit(main())
