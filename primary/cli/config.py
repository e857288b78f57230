"""``aiperf config``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import yaml
from pydantic import BaseModel
from typer import Argument, Option

from aiperf_hpc.config import load_config, preset_names, preset_text
from aiperf_hpc.errors import UsageError
from aiperf_hpc.primary.cli.output import say


def show(
    preset: Annotated[
        str, Argument(metavar="FILE|PRESET", help="A YAML file, or the name of a preset.")
    ],
    resolved: Annotated[
        bool, Option("--resolved", help="All that it resolves to, and what each setting is.")
    ] = False,
    changed: Annotated[
        bool, Option("--changed", help="Only what differs from the defaults, and what it is.")
    ] = False,
) -> int:
    """Print a preset, or all that it resolves to.

    Whatever is printed is YAML that --config takes; what a setting is stands behind it.

    Examples:
      $ aiperf config show quickstart
      $ aiperf config show imagenet --resolved
      $ aiperf config show mine.yaml --changed
    """
    if changed and resolved:
        raise UsageError("--changed shows less than --resolved; leave one of them out")
    if not changed and not resolved and preset in preset_names():
        say(preset_text(preset).rstrip())
        return 0
    config = load_config(preset)
    say("\n".join(_lines(config, type(config).model_construct() if changed else None)) or "{}")
    return 0


def _lines(section: BaseModel, default: BaseModel | None, indent: str = "") -> Iterator[str]:
    """Yield settings as YAML, with what each is; those that differ from a default, if one is given.

    Args:
        section: the settings, and sections in it.
        default: the same with no setting changed.
        indent: what lines begin with.
    """
    for name, field in type(section).model_fields.items():
        value, usual = getattr(section, name), getattr(default, name, None)
        if default is not None and value == usual:
            continue
        if isinstance(value, BaseModel):
            same_kind = type(value) is type(usual)
            yield f"{indent}{name}:"
            yield from _lines(value, usual if same_kind else None, f"{indent}  ")
        else:
            said = f"  # {field.description}" if field.description else ""
            yield f"{indent}{name}: {_as_yaml(section, name)}{said}"


def _as_yaml(section: BaseModel, name: str) -> str:
    """Return a setting's value in one line."""
    plain = section.model_dump(mode="json", include={name})[name]
    text = yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("...\n").rstrip()


CONFIG = {"show": show}
