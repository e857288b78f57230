"""Random faults on runs of a real SLURM cluster on this machine, and a check of the records.

    python -m tests.chaos --faults 200 --seed 1

Exit status 0 if no record is lost or counted twice, every score is its recount, nothing has said
a traceback, no process is left, and whatever was hit came back.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.session import Session


def main(arguments: Sequence[str] | None = None) -> int:
    """Do it; print what came of it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--faults", type=int, default=200, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--hours", type=float, default=0.08, help="length of one run")
    parser.add_argument("--launcher", choices=("array", "allocation"), default="array")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep all files of all runs here")
    options = parser.parse_args(arguments)
    # The name of a socket may have 107 characters only.
    with tempfile.TemporaryDirectory(prefix="aiperf-chaos-") as name:
        with Session(
            Path(name), options.seed, options.hours, options.keep, launcher=options.launcher
        ) as session:
            session.torment(options.faults)
        sys.stdout.write(f"{json.dumps(session.result(), indent=1)}\n")
    return 0 if not session.problems else 1


if __name__ == "__main__":
    raise SystemExit(main())
