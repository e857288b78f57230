"""``aiperf resume``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.cli.conduct import Address, conduct_run, free_address, take_run
from aiperf_hpc.primary.cli.parser import Commands
from aiperf_hpc.primary.control.prepare import (
    require_packages,
)
from aiperf_hpc.primary.control.resume import (
    check_resumable,
    end_leftovers,
)
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.service import Service


def add(commands: Commands) -> None:
    """Add ``resume``."""
    resume = commands.add_parser("resume", help="go on with a run whose primary died")
    resume.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    served = resume.add_mutually_exclusive_group()
    served.add_argument(
        "--serve", nargs="?", const="", metavar="HOST:PORT",
        help="REST status; default: where it was served before",
    )  # fmt: skip
    served.add_argument("--no-serve", action="store_true", help="even if it was served before")
    resume.add_argument("--json", action="store_true", help="print the final status as JSON")
    resume.set_defaults(command=_resume)


def _resume(options: argparse.Namespace) -> int:
    manifest, history = check_resumable(options.run)
    require_packages(manifest.config, manifest.launcher)
    with take_run(history, manifest, "resume") as claim:
        if history.run_ended is not None:  # By who had it since it was looked at.
            raise UsageError(f"{options.run}: this run has ended; see `aiperf report`")
        address = _address_again(options, history.paths)
        end_leftovers(history)
        launch = max(len(history.run_starts), claim.number - 1)
        return conduct_run(
            manifest, history.paths, address, claim, as_json=options.json, launch=launch
        )


def _address_again(options: argparse.Namespace, paths: RunPaths) -> Address | None:
    """Return where a run that goes on is served: as asked for, else where it was before.

    Nobody asked for the latter just now, so that the run goes on without it if it is not known, or
    cannot be had.
    """
    if options.no_serve:
        return None
    if options.serve is not None:
        return free_address(options.serve)
    try:
        before = Service.load(paths)
        if before is None:
            return None
        from aiperf_hpc.primary.service.rest import check_free

        check_free(before.host, before.port)
    except UsageError as error:
        sys.stderr.write(f"aiperf: {error}; not served: `aiperf serve {paths.root}` does that\n")
        return None
    return before.host, before.port
