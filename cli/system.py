"""``aiperf system``: what machine this is, or what machine a run had."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from aiperf_hpc.cli.output import say, say_document
from aiperf_hpc.cli.parameters import Json, PerhapsRun


def system(
    run: PerhapsRun = None,
    site: Annotated[
        Path | None,
        Option("--system", metavar="FILE", parser=Path, help="What it cannot tell itself."),
    ] = None,
    template: Annotated[bool, Option("--template", help="Print such a file, to fill in.")] = False,
    mlperf: Annotated[
        Path | None,
        Option("--mlperf", metavar="FILE", parser=Path, help="Write MLPerf's description of it."),
    ] = None,
    json: Json = False,
) -> int:
    """Describe this machine, or the machine of a run.

    Its nodes, equal ones together: processors, memory, accelerators, network, file systems,
    software. What cannot be had is named with the reason.

    Examples:
      $ aiperf system
      $ aiperf system --template > system.yaml
      $ aiperf system last --system system.yaml --mlperf system.json
    """
    from aiperf_hpc.results import system_text
    from aiperf_hpc.system.site import template as empty

    if template:
        say(empty().rstrip())
        return 0
    machine = system_text.machine_of(run, site)
    if json:
        say_document(machine.model_dump_json(indent=1))
    else:
        say("\n".join(system_text.lines(machine)))
    if mlperf is not None:
        sys.stderr.write(f"aiperf: {system_text.write_mlperf(machine, mlperf)}\n")
    return 0
