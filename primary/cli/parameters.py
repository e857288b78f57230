"""What several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from aiperf_hpc.config import preset_names


def run_named(text: str) -> Path:
    """Return the run that a user names: a folder, ``last`` in ``runs``, or ``DIR/last``.

    Raises:
        RunDirectoryError: the latest run is asked for, and there is none.
    """
    path = Path(text)
    if path.name != "last" or path.exists():
        return path
    from aiperf_hpc.primary.monitor.run_catalog import RUNS, latest_run

    return latest_run(RUNS if text == "last" else path.parent)


RUN_HELP = "A run directory; last: the latest in runs."
Run = Annotated[Path, Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
SomeRuns = Annotated[list[Path], Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
PerhapsRun = Annotated[Path | None, Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
FinalJson = Annotated[bool, Option("--json", help="Print the final status as JSON.")]
Config = Annotated[
    str,
    Option(
        "--config",
        metavar="FILE|PRESET",
        help=f"A YAML file or a preset: {', '.join(preset_names())}.",
        autocompletion=preset_names,
    ),
]
Assignments = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="E.g. training.batch_size=64; may be repeated."),
]
