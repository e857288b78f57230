"""``python -m aiperf_hpc.replica.execution``: execute again what standard input asks for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, DeviceLostError, UsageError
from aiperf_hpc.replica.execution.epochs import execute
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.reexecution import ExecutionRequest
from aiperf_hpc.streams import print_in_any_locale


def main(arguments: Sequence[str] | None = None) -> int:
    """Execute, write what was found, and return the exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="python -m aiperf_hpc.replica.execution")
    parser.add_argument("--out", type=Path, required=True, help="the file of the result")
    options = parser.parse_args(arguments)
    try:
        result = execute(_request(sys.stdin.read()))
    except (AIPerfError, DeviceLostError) as error:
        sys.stderr.write(f"aiperf: {error}\n")
        return error.exit_status
    write_whole(options.out, result.model_dump_json(indent=1))
    return 0


def _request(text: str) -> ExecutionRequest:
    try:
        return ExecutionRequest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the request"
        raise UsageError(f"standard input: {where}: {first['msg']}") from None


if __name__ == "__main__":
    sys.exit(main())
