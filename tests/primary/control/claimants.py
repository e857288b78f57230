"""A process that claims one run after another on request.

It reads the run directory from a line of its input, says in a line of JSON what came of it, and
holds what it has got until the next line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from aiperf_hpc.primary.control.claim import ClaimedError, take
from aiperf_hpc.run.history import RunHistory
from aiperf_hpc.run.paths import RunPaths


def main() -> None:
    """Take part until the input ends."""
    say({"pid": os.getpid()})
    for line in sys.stdin:
        try:
            with take(RunHistory(RunPaths(Path(line.strip()))), 1.0, "resume") as claim:
                say({"number": claim.number})
                sys.stdin.readline()
        except ClaimedError as error:
            say({"refused": str(error)})
            sys.stdin.readline()
        say({})


def say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
