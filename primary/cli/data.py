"""``aiperf data``."""

from __future__ import annotations

import argparse
import sys

from aiperf_hpc.primary.cli.parser import Commands, Parser
from aiperf_hpc.signals import run_to_its_end

KILLED = 137


def add(commands: Commands) -> None:
    """Add ``data``."""
    data = commands.add_parser("data", help="prepare a dataset")
    actions = data.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)
    prepare = actions.add_parser("prepare", help="make a dataset's folder from its source")
    prepare.add_argument("name", metavar="NAME", help="cifar10 or imagenet")
    prepare.add_argument("--from", dest="source", required=True, metavar="ARCHIVE_OR_DIR")
    prepare.add_argument("--to", dest="target", metavar="FOLDER", help="default: data/NAME")
    prepare.add_argument("--shards", metavar="N", help="training shards (imagenet)")
    prepare.set_defaults(command=_data_prepare)


def _data_prepare(options: argparse.Namespace) -> int:
    target = options.target or f"data/{options.name}"
    command = [sys.executable, "-m", "aiperf_hpc.replica.data", "prepare", options.name]
    command += ["--from", options.source, "--to", target]
    if options.shards:
        command += ["--shards", options.shards]
    status = run_to_its_end(command)
    if status == KILLED:
        sys.stderr.write(
            "aiperf: the preparation was ended by SIGKILL; when it is started again, it removes "
            f"what is left beside {target}\n"
        )
    return status
