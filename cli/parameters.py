"""Common parameters of several commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from typer import Argument, Option

from aiperf_hpc.config import preset_names
from aiperf_hpc.errors import UsageError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from aiperf_hpc.integrity.signatures import PrivateKey
    from aiperf_hpc.rules.consistency.evidence import Trusted as TrustedKeys


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
    """Initial and maximum number of nodes of a run."""

    least: int
    most: int


def nodes_named(text: str) -> NodeRange:
    """Return the requested number of nodes, N or MIN-MAX.

    Raises:
        UsageError: the text is neither.
    """
    found = re.fullmatch(r"(-?\d{1,12})(?:-(\d{1,12}))?", text.strip(), re.ASCII)
    if found is None:
        raise UsageError(f"--nodes {text}: give a number, or MIN-MAX, e.g. 2-4")
    least = int(found[1])
    return NodeRange(least, least if found[2] is None else int(found[2]))


def key_of(file: Path | None) -> PrivateKey | None:
    """Return the private key in a file, if one is given. Raises UsageError if it is invalid."""
    if file is None:
        return None
    from aiperf_hpc.integrity.signatures import load_private_key

    return load_private_key(file)


def option(
    name: str,
    metavar: str,
    help: str,
    parser: Callable[[str], object] | None = None,
    *,
    min: float | None = None,
) -> object:
    """Return an option that takes a value."""
    return Option(name, metavar=metavar, help=help, parser=parser, min=min)


def value(
    metavar: str,
    parser: Callable[[str], object] | None = None,
    *,
    name: str | None = None,
    min: float | None = None,
    show_default: bool = True,
) -> object:
    """Return the option of a dataclass's field, whose docstring is the help.

    The option is called as the field is, unless it has another name.
    """
    return Option(
        *filter(None, [name]), metavar=metavar, parser=parser, min=min, show_default=show_default
    )


def path_option(name: str, metavar: str, help: str) -> object:
    """Return an option that takes a path."""
    return option(name, metavar, help, Path)


def flag(name: str, help: str) -> object:
    """Return an option without a value, or with one of the values that its type lists."""
    return Option(name, help=help)


def config_option(help: str) -> object:
    """Return the option ``--config``; ``{}`` in its help is replaced by the presets."""
    text = help.format(", ".join(preset_names()))
    return Option("--config", metavar="FILE|PRESET", help=text, autocompletion=preset_names)


RUN_HELP = "Name of the run (from `aiperf list`), a path, or 'last' for the latest run in runs/."
Run = Annotated[Path, Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
SomeRuns = Annotated[list[Path], Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
PerhapsRun = Annotated[Path | None, Argument(metavar="RUN", parser=run_named, help=RUN_HELP)]
Json = Annotated[bool, flag("--json", "Print JSON.")]
SigningKey = Annotated[
    Path | None,
    path_option("--key", "FILE", "Sign the result with this private key (`aiperf keygen`)."),
]
Out = Annotated[Path, path_option("--out", "DIR", "Folder for the results.")]
FinalJson = Annotated[bool, flag("--json", "Print the final status as JSON.")]
Config = Annotated[str, config_option("A YAML file or a preset: {}.")]
PerhapsConfig = Annotated[
    str | None, config_option("A YAML file or a preset: {}. Default: the workload's preset.")
]
Tags = Annotated[list[str] | None, option("--tag", "NAME", "A tag of the run; may be repeated.")]
Assignments = Annotated[
    list[str] | None,
    option(
        "--set", "KEY=VALUE", "Override a setting, e.g. training.batch_size=64; may be repeated."
    ),
]


@dataclass(frozen=True)
class TrustOptions:
    """Trusted keys and certificates."""

    key: Annotated[list[Path] | None, value("PUBLIC", Path)] = None
    """Trusted public key, file of allowed signers or folder of *.pub; may be repeated."""
    witness: Annotated[list[Path] | None, value("KEY.pub", Path)] = None
    """Public key of a trusted timestamping server; may be repeated."""
    tsa: Annotated[list[Path] | None, value("ROOT.pem", Path)] = None
    """Root certificate of a trusted timestamp authority."""

    def read(self) -> TrustedKeys:
        """Return the named keys and certificates. Raises UsageError if one is invalid."""
        from aiperf_hpc.integrity.signatures import read_trusted
        from aiperf_hpc.rules.consistency.evidence import Trusted

        authorities: Sequence[Certificate] = ()
        if self.tsa:
            from aiperf_hpc.run.time_stamps import read_roots

            authorities = read_roots(self.tsa)
        return Trusted(read_trusted(self.key or ()), read_trusted(self.witness or ()), authorities)
