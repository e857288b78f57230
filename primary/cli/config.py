"""``aiperf config``."""

from __future__ import annotations

from typing import Annotated

import yaml
from typer import Argument, Option

from aiperf_hpc.config import load_config, preset_names, preset_text
from aiperf_hpc.primary.cli.output import say


def show(
    preset: Annotated[
        str, Argument(metavar="FILE|PRESET", help="A YAML file, or the name of a preset.")
    ],
    resolved: Annotated[
        bool, Option("--resolved", help="All that it resolves to, every default filled in.")
    ] = False,
) -> int:
    """Print a preset, or all that it resolves to.

    Examples:
      $ aiperf config show quickstart
      $ aiperf config show imagenet --resolved
    """
    if resolved or preset not in preset_names():
        config = load_config(preset)
        say(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).rstrip())
    else:
        say(preset_text(preset).rstrip())
    return 0


CONFIG = {"show": show}
