"""``aiperf data``."""

from __future__ import annotations

import sys
from typing import Annotated

from typer import Argument, Option

from aiperf_hpc.signals import run_to_its_end

KILLED = 137


def prepare(
    name: Annotated[str, Argument(metavar="NAME", help="cifar10 or imagenet.")],
    source: Annotated[str, Option("--from", metavar="ARCHIVE_OR_DIR", help="What was downloaded.")],
    target: Annotated[
        str | None, Option("--to", metavar="FOLDER", help="Default: data/NAME.")
    ] = None,
    shards: Annotated[
        str | None, Option("--shards", metavar="N", help="Training shards (imagenet).")
    ] = None,
) -> int:
    """Make a dataset's folder from its source.

    Examples:
      $ aiperf data prepare cifar10 --from cifar-10-binary.tar.gz
      $ aiperf data prepare imagenet --from /archives/imagenet --to /data/imagenet
    """
    target = target or f"data/{name}"
    command = [sys.executable, "-m", "aiperf_hpc.replica.data", "prepare", name]
    command += ["--from", source, "--to", target]
    if shards:
        command += ["--shards", shards]
    status = run_to_its_end(command)
    if status == KILLED:
        sys.stderr.write(
            "aiperf: the preparation was ended by SIGKILL; when it is started again, it removes "
            f"what is left beside {target}\n"
        )
    return status


DATA = {"prepare": prepare}
