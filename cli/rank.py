"""Verified runs in order of their score: ``aiperf rank``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from aiperf_hpc.cli.output import say, say_document
from aiperf_hpc.cli.parameters import Json, Trusted
from aiperf_hpc.streams import window_columns


def rank(
    folder: Annotated[Path, Argument(metavar="DIR", parser=Path, help="A folder of runs.")],
    output: Annotated[
        Path | None,
        Option("--output", metavar="PAGE.html", parser=Path, help="Write it as a page, too."),
    ] = None,
    key: Trusted = None,
    json: Json = False,
) -> int:
    """Rank verified runs by their score.

    Every run in the folder is verified first. Only those that pass and keep the benchmark's rules
    have a rank; others are listed apart, each with the reason. With --key, one of these keys must
    have signed each.

    Examples:
      $ aiperf rank runs
      $ aiperf rank /shared/results --key submitters/
      $ aiperf rank /shared/results --output ranking.html
    """
    from aiperf_hpc.analysis.layout import tables_as_lines
    from aiperf_hpc.analysis.rank.page import write_page
    from aiperf_hpc.analysis.rank.ranking import rank_runs
    from aiperf_hpc.analysis.rank.tables import tables_of
    from aiperf_hpc.integrity.signatures import read_trusted
    from aiperf_hpc.run.storage import require_writable

    trusted = read_trusted(key or ())
    if output is not None:
        require_writable(output.parent, "the page", "--output")
    announce = _announce if sys.stderr.isatty() else lambda name: None
    ranking = rank_runs(folder, announce, trusted)
    if output is not None:
        write_page(ranking, output)
    if json:
        say_document(ranking.model_dump_json(indent=1))
        return 0
    for line in tables_as_lines(tables_of(ranking), window_columns()):
        say(line)
    if output is not None:
        say(str(output))
    return 0


def _announce(name: str) -> None:
    sys.stderr.write(f"verifying {name}\n")
