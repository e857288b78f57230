"""What each of several factors contributes: ``aiperf study``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from aiperf_hpc.cli.output import say, say_document
from aiperf_hpc.cli.parameters import Json
from aiperf_hpc.run.storage import require_writable


def study(
    file: Annotated[Path, Argument(metavar="FILE", parser=Path, help="The study's YAML file.")],
    out: Annotated[
        Path | None,
        Option("--out", metavar="DIR", parser=Path, help="Its folder. Default: studies/NAME."),
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the runs that are to be made.")
    ] = False,
    json: Json = False,
) -> int:
    """Measure the contribution of each factor, alone and in combination.

    Examples:
      $ aiperf study study.yaml --dry-run
      $ aiperf study study.yaml --out studies/mine
    """
    from aiperf_hpc.analysis.document import as_json
    from aiperf_hpc.analysis.study.plan import in_turn, read_study
    from aiperf_hpc.analysis.study.result import lines
    from aiperf_hpc.cli.study_runs import StudyFolder, check, conduct

    planned = read_study(file)
    check(planned)
    folder = StudyFolder(out or Path("studies") / planned.name)
    if dry_run:
        for variation, repeat in in_turn(planned):
            settings = " ".join(variation.assignments(planned))
            say(f"{variation.name}, run {repeat} of {planned.repeats}: {settings}".rstrip(": "))
        return 0
    require_writable(folder.root, "the study", "--out")
    folder.begin(planned)
    result = conduct(planned, folder, _say_beside)
    folder.keep(result)
    if json:
        say_document(as_json(result.model_dump(mode="json")))
    else:
        say("\n".join(lines(result)))
        say(f"written to {folder.result} and {folder.plot}")
    return 0 if result.complete else 1


def _say_beside(text: str) -> None:
    """Print a line where it is in no way of JSON."""
    sys.stderr.write(f"{text}\n")
