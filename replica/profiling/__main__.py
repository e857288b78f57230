"""``python -m aiperf_hpc.replica.profiling --out DIR``: profile what standard input asks for."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from aiperf_hpc.errors import OutOfMemoryError
from aiperf_hpc.replica.profiling.steps import profile_steps
from aiperf_hpc.replica.request_process import answer
from aiperf_hpc.run.paths import write_whole
from aiperf_hpc.run.step_profile import ProfileRequest


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile, write ``profile.json``, and return the exit status."""
    return answer(arguments, ProfileRequest, "aiperf_hpc.replica.profiling", _profile)


def _profile(request: ProfileRequest, folder: Path) -> None:
    try:
        profile = profile_steps(request, folder)
    except (MemoryError, OutOfMemoryError) as error:
        why = " ".join(str(error).split()) or "the host has no memory left"
        raise OutOfMemoryError(f"{why}; lower --batch-size") from None
    write_whole(folder / "profile.json", profile.model_dump_json(indent=1))


if __name__ == "__main__":
    sys.exit(main())
