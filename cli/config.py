"""``aiperf config``."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel
from typer import Argument

from aiperf_hpc.cli.output import say, say_lines, say_text
from aiperf_hpc.cli.parameters import Assignments, option
from aiperf_hpc.config import RunConfig, differences, load_config, preset_names, preset_text
from aiperf_hpc.errors import UsageError
from aiperf_hpc.rules.judgement import check_settings, division_of
from aiperf_hpc.rules.rule import Division, RuleResult, violations_of
from aiperf_hpc.rules.validity.result import WORKLOAD
from aiperf_hpc.workloads.base import Workload
from aiperf_hpc.workloads.registry import workload_of


@dataclass(frozen=True)
class ShowOptions:
    """Configuration to print, and the form of its settings."""

    preset: Annotated[str, Argument(metavar="FILE|PRESET")]
    """A YAML file, or the name of a preset."""
    resolved: bool = False
    """Print all settings with their descriptions."""
    changed: bool = False
    """Print the settings that differ from the defaults and from the preset."""


def show(chosen: ShowOptions) -> int:
    """Print a preset or a resolved configuration.

    The output is YAML that --config accepts, with a description after each setting.

    Examples:
      $ aiperf config show quickstart
      $ aiperf config show imagenet --resolved
      $ aiperf config show mine.yaml --changed
    """
    preset, changed = chosen.preset, chosen.changed
    if changed and chosen.resolved:
        raise UsageError("--changed and --resolved are mutually exclusive")
    if not changed and not chosen.resolved and preset in preset_names():
        say_text(preset_text(preset))
        return 0
    config = load_config(preset)
    say_lines([*_lines(config, type(config).model_construct() if changed else None)] or ["{}"])
    if changed and preset not in preset_names() and config.preset in preset_names():
        say_lines(_changes_of_preset(config))
    return 0


def _changes_of_preset(config: RunConfig) -> Iterator[str]:
    """Yield comments with the settings that a file changes relative to its preset."""
    found = differences(config)
    if not found:
        yield f"# No differences from the preset {config.preset}."
        return
    yield f"# Differences from the preset {config.preset}:"
    for key, value, of_preset in found:
        # As JSON without line breaks, which would end the comment.
        yield f"#   {key}: {json.dumps(value)} (preset: {json.dumps(of_preset)})"


def _lines(section: BaseModel, default: BaseModel | None, indent: str = "") -> Iterator[str]:
    """Yield settings as YAML with their descriptions; only changed ones if a default is given.

    Args:
        section: section with settings and nested sections.
        default: the same section with default values.
        indent: prefix of the lines.
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
            comment = f"  # {' '.join(field.description.split())}" if field.description else ""
            yield f"{indent}{name}: {_as_yaml(section, name)}{comment}"


def _as_yaml(section: BaseModel, name: str) -> str:
    """Return a setting's value in one line."""
    plain = section.model_dump(mode="json", include={name})[name]
    # Without double quotes, line breaks would be written as such.
    style = '"' if isinstance(plain, str) and "\n" in plain else None
    text = yaml.safe_dump(
        plain, default_style=style, default_flow_style=True, sort_keys=False, width=math.inf
    )
    return text.removesuffix("...\n").rstrip()


@dataclass(frozen=True)
class CheckOptions:
    """Configuration to check, and the required division."""

    source: Annotated[str, Argument(metavar="FILE|PRESET")]
    """A YAML file, or the name of a preset."""
    assignments: Assignments = None
    division: Literal["closed", "open"] | None = None
    """Exit with status 1 unless the configuration satisfies this division's rules."""


def check(chosen: CheckOptions) -> int:
    """Check a configuration and report the division in which its runs may be official.

    The dataset, the code and the environment are checked only by `aiperf start --division`. The
    exit status is 1 if runs cannot be official in either division, or in the requested one. For
    workloads other than automl, the command reports the closed division of the workload's own
    benchmark.

    Examples:
      $ aiperf config check imagenet
      $ aiperf config check mine.yaml --division open
    """
    config, division = load_config(chosen.source, chosen.assignments or ()), chosen.division
    workload = workload_of(config)
    if workload.name != WORKLOAD:
        return _check_of(workload, config, division)
    requested = Division.CLOSED if division is None else Division(division)
    checks = check_settings(config, requested)
    _say_checks(checks)
    found = division_of(config)
    say(f"Division: {'none' if found is None else found}")
    broken = violations_of(checks)
    return int(found is None if division is None else bool(broken))


def _say_checks(checks: Sequence[RuleResult]) -> None:
    width = max((len(each.rule) for each in checks), default=0)
    for each in checks:
        say(f"{each.rule:<{width}}  {'PASSED' if each.passed else 'FAILED'}  {each.found}")
        for reason in each.failures:
            say(f"  {reason}")


def _check_of(workload: Workload, config: RunConfig, division: str | None) -> int:
    """Check a configuration against the closed division of another workload's benchmark."""
    if division is not None:
        raise UsageError(
            f"--division {division}: runs of the workload '{workload.name}' are official in no "
            "division; omit it"
        )
    checks = [rule.check(config) for rule in workload.settings_rules]
    _say_checks(checks)
    broken = bool(violations_of(checks))
    if checks:
        verdict = "violated" if broken else "satisfied as far as a configuration determines them"
        say(f"{workload.definition.benchmark}, closed division: {verdict}")
    say(f"Division: none, the benchmark's score is that of {WORKLOAD}")
    return int(broken or not checks)


def init(
    path: Annotated[
        Path, Argument(metavar="[FILE]", parser=Path, help="New file.", show_default=False)
    ] = Path("aiperf.yaml"),
    preset: Annotated[str, option("--preset", "PRESET", "Preset to start from.")] = "quickstart",
) -> int:
    """Write a configuration file with all settings and their descriptions.

    FILE defaults to `aiperf.yaml`. An existing file is not overwritten.

    Examples:
      $ aiperf config init
      $ aiperf config init mine.yaml --preset imagenet
    """
    if str(path) in preset_names():
        raise UsageError(f"{path} is a preset; give the file another name")
    text = "\n".join(_lines(load_config(preset), None)) + "\n"
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists; give another name, or delete it first") from None
    config = shlex.quote(str(path))
    say(f"wrote {path}; edit it, then run `aiperf start --config {config}`")
    return 0


CONFIG = {"init": init, "show": show, "check": check}
"""Create, show and check configurations."""
