"""What several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from aiperf_hpc.config import preset_names

Run = Annotated[Path, Argument(metavar="RUN", parser=Path, help="A run directory.")]
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
