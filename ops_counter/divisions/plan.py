"""The rules that can be asked before a run starts: what cannot become official is not begun."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aiperf_hpc.config import RunConfig
from aiperf_hpc.ops_counter.divisions.arithmetic import environment_rule, precision_rule
from aiperf_hpc.ops_counter.divisions.dataset import content_rule, dataset_rule
from aiperf_hpc.ops_counter.divisions.release import release_rule
from aiperf_hpc.ops_counter.divisions.rule import Division, RuleCheck, violations_of
from aiperf_hpc.ops_counter.divisions.settings import closed_settings, fixed_settings
from aiperf_hpc.trial import DatasetInfo, Stored

LEAST_HOURS = 1.0


@dataclass(frozen=True, slots=True)
class Code:
    """The code that is to run."""

    versions: Mapping[str, str]
    changes: Sequence[str]
    """The files that differ from the release of its version."""


def check_settings(config: RunConfig, division: Division) -> list[RuleCheck]:
    """Return what comes of the rules for a configuration alone."""
    checks = [fixed_settings(config), precision_rule([config.training.precision])]
    if division is Division.CLOSED:
        checks.append(closed_settings(config))
    return checks


def division_of(config: RunConfig) -> Division | None:
    """Return the stricter division whose rules a configuration keeps; None if it keeps none's."""
    kept = (each for each in Division if not violations_of(check_settings(config, each)))
    return next(kept, None)


def check_plan(
    config: RunConfig,
    division: Division,
    *,
    hours: float,
    code: Code,
    variables: Mapping[str, str],
    dataset: DatasetInfo | None = None,
) -> list[RuleCheck]:
    """Return what comes of the rules before a run.

    Args:
        config: what is to run.
        division: in which it is to be official.
        hours: for how long.
        code: by which code.
        variables: of the process that starts it, which its replicas may inherit.
        dataset: what is there; None where that has not been looked at.
    """
    return [
        *check_settings(config, division),
        asked_hours(hours),
        release_rule(code.versions, code.changes),
        environment_rule([variables], config.training.precision),
        *(_datasets(dataset, config.dataset.stored) if dataset is not None else ()),
    ]


def _datasets(dataset: DatasetInfo, stored: Stored) -> Iterator[RuleCheck]:
    yield dataset_rule([dataset], stored)
    yield content_rule([dataset])


def clock_rule(starts: str) -> RuleCheck:
    """Return whether the clock starts with the first node, or with the run."""
    wrong = () if starts != "all" else ("all; loading and staging would lie outside the clock",)
    return RuleCheck("start when", starts, "first", wrong)


def asked_hours(hours: float) -> RuleCheck:
    """Return whether a run is to last long enough."""
    limit = f">= {LEAST_HOURS:g} h"
    wrong = (
        () if hours >= LEAST_HOURS else (f"{hours:g} h; at least {LEAST_HOURS:g} h is required",)
    )
    return RuleCheck("hours", f"{hours:g} h", limit, wrong)
