"""``aiperf config``."""

from __future__ import annotations

import argparse

import yaml

from aiperf_hpc.config import load_config, preset_names, preset_text
from aiperf_hpc.primary.cli.output import say
from aiperf_hpc.primary.cli.parser import Commands, Parser


def add(commands: Commands) -> None:
    """Add ``config``."""
    config = commands.add_parser("config", help="show configurations")
    actions = config.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)
    show = actions.add_parser("show", help="print a preset, or all that it resolves to")
    show.add_argument("preset", metavar="FILE|PRESET")
    show.add_argument("--resolved", action="store_true", help="with every default filled in")
    show.set_defaults(command=_config_show)


def _config_show(options: argparse.Namespace) -> int:
    if options.resolved or options.preset not in preset_names():
        config = load_config(options.preset)
        say(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False).rstrip())
    else:
        say(preset_text(options.preset).rstrip())
    return 0
