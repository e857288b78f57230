"""A process that answers one request: JSON from standard input, its results in ``--out``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from aiperf_hpc.errors import AIPerfError, DeviceLostError, UsageError
from aiperf_hpc.streams import print_in_any_locale, warn
from aiperf_hpc.untrusted.bounds import first_fault

Request = TypeVar("Request", bound=BaseModel)


def answer(
    arguments: Sequence[str] | None,
    kind: type[Request],
    module: str,
    work: Callable[[Request, Path], None],
) -> int:
    """Execute the request from standard input, and return the exit status.

    Args:
        arguments: the command line; by default, that of the process.
        kind: type of the request.
        module: name of the process's module, for its usage message.
        work: called with the request and the path given as ``--out``.
    """
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--out", type=Path, required=True, help="the file or folder of results")
    options = parser.parse_args(arguments)
    try:
        try:
            request = kind.model_validate_json(sys.stdin.read())
        except ValidationError as error:
            raise UsageError(f"standard input: {first_fault(error, 'the request')}") from None
        work(request, options.out)
    except (AIPerfError, DeviceLostError) as error:
        warn(error)
        return error.exit_status
    return 0
