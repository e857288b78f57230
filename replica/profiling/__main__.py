"""``python -m aiperf_hpc.replica.profiling --out DIR``: profile what standard input asks for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from aiperf_hpc.errors import AIPerfError, DeviceLostError, OutOfMemoryError, UsageError
from aiperf_hpc.replica.profiling.steps import profile_steps
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.step_profile import ProfileRequest
from aiperf_hpc.streams import print_in_any_locale


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, write ``profile.json``, and return the exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="python -m aiperf_hpc.replica.profiling")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the results")
    options = parser.parse_args(arguments)
    try:
        profile = profile_steps(_request(sys.stdin.read()), options.out)
    except (MemoryError, OutOfMemoryError) as error:
        why = " ".join(str(error).split()) or "the host has no memory left"
        sys.stderr.write(f"aiperf: {why}; lower --batch-size\n")
        return OutOfMemoryError.exit_status
    except (AIPerfError, DeviceLostError) as error:
        sys.stderr.write(f"aiperf: {error}\n")
        return error.exit_status
    write_whole(options.out / "profile.json", profile.model_dump_json(indent=1))
    return 0


def _request(text: str) -> ProfileRequest:
    try:
        return ProfileRequest.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the request"
        raise UsageError(f"standard input: {where}: {first['msg']}") from None


if __name__ == "__main__":
    sys.exit(main())
