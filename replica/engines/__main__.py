"""``python -m aiperf_hpc.replica.engines``: check whether this machine can train a configuration.

Reads the JSON configuration of a run from standard input and loads its engine. Prints the visible
accelerators in the format of ``VisibleDevices``, or an empty line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.replica.engines import seen_devices
from aiperf_hpc.streams import print_in_any_locale, warn


def main(arguments: Sequence[str] | None = None) -> int:
    """Load the engine; return the exit status."""
    print_in_any_locale()
    parser = argparse.ArgumentParser(prog="python -m aiperf_hpc.replica.engines")
    parser.parse_args(arguments)
    try:
        config = RunConfig.model_validate_json(sys.stdin.read())
        seen = seen_devices(config)
    except AIPerfError as error:
        warn(error)
        return error.exit_status
    sys.stdout.write(f"{seen or ''}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
