"""What several commands take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Option

from aiperf_hpc.config import preset_names
from aiperf_hpc.errors import UsageError

if TYPE_CHECKING:
    from aiperf_hpc.integrity.signatures import PrivateKey


def run_named(text: str) -> Path:
    """Return the directory of the run that a user names.

    A name is a path, or one that `aiperf list` prints: below ``runs``. ``last`` is the latest run
    in ``runs``, and ``DIR/last`` the latest in DIR.

    Raises:
        RunDirectoryError: the latest run is requested, and there is none.
    """
    from aiperf_hpc.results.views.run_catalog import RUNS, latest_run

    path = Path(text)
    if not path.exists() and path.name == "last":
        return latest_run(RUNS if text == "last" else run_named(str(path.parent)))
    return RUNS / path if not path.exists() and (RUNS / path).exists() else path


class NodeRange(NamedTuple):
    """How many nodes a run begins with, and how many it takes at most."""

    least: int
    most: int


def nodes_named(text: str) -> NodeRange:
    """Return the nodes that a user asks for: N, or MIN-MAX.

    Raises:
        UsageError: it is neither.
    """
    found = re.fullmatch(r"(-?\d{1,12})(?:-(\d{1,12}))?", text.strip(), re.ASCII)
    if found is None:
        raise UsageError(f"--nodes {text}: give a number, or MIN-MAX, e.g. 2-4")
    least = int(found[1])
    return NodeRange(least, least if found[2] is None else int(found[2]))


def key_of(file: Path | None) -> PrivateKey | None:
    """Return the private key in a file, if one is named. Raises UsageError where it is none."""
    if file is None:
        return None
    from aiperf_hpc.integrity.signatures import load_private_key

    return load_private_key(file)


RUN_HELP = "A name that `aiperf list` prints, or a path; last: the latest in runs."
Run = Annotated[Path, Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
SomeRuns = Annotated[list[Path], Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
PerhapsRun = Annotated[Path | None, Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Trusted = Annotated[
    list[Path] | None,
    Option(
        "--key",
        metavar="PUBLIC",
        parser=Path,
        help="A public key, a file of allowed signers or a folder of *.pub, one of which must have "
        "signed; may be repeated.",
    ),
]
SigningKey = Annotated[
    Path | None,
    Option(
        "--key",
        metavar="FILE",
        parser=Path,
        help="Sign the result with this private key (`aiperf keygen`).",
    ),
]
Out = Annotated[Path, Option("--out", metavar="DIR", parser=Path, help="A folder for the result.")]
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
PerhapsConfig = Annotated[
    str | None,
    Option(
        "--config",
        metavar="FILE|PRESET",
        help=f"A YAML file or a preset: {', '.join(preset_names())}. Default: that of the "
        "workload.",
        autocompletion=preset_names,
    ),
]
Assignments = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="E.g. training.batch_size=64; may be repeated."),
]
