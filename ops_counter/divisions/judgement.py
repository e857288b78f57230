"""In which division a run is official, by all rules on its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aiperf_hpc.ops_counter.divisions import accelerators, closed, course, earlier, machine, work
from aiperf_hpc.ops_counter.divisions.dataset import content_rule, dataset_rule
from aiperf_hpc.ops_counter.divisions.evidence import RunEvidence
from aiperf_hpc.ops_counter.divisions.plan import clock_rule
from aiperf_hpc.ops_counter.divisions.rule import Division, RuleCheck, Violation, violations_of
from aiperf_hpc.ops_counter.divisions.settings import (
    Declared,
    closed_settings,
    declared,
    fixed_settings,
)
from aiperf_hpc.trial import DatasetInfo

WORKLOAD: Final = "automl"
"""The workload that the benchmark's rules are for."""
Rule = Callable[[RunEvidence], RuleCheck]


def _seen(run: RunEvidence) -> set[DatasetInfo]:
    return {each.dataset for each in run.replicas if each.dataset is not None}


def _dataset(run: RunEvidence) -> RuleCheck:
    return dataset_rule(_seen(run), run.config.dataset.stored)


def _content(run: RunEvidence) -> RuleCheck:
    return content_rule(_seen(run))


def _workload(run: RunEvidence) -> RuleCheck:
    reason = f"{run.config.workload}; the benchmark's score is that of {WORKLOAD}"
    return RuleCheck("workload", run.config.workload, WORKLOAD, (reason,))


BRIEF: Final[Sequence[Rule]] = (
    work.engine,
    course.duration,
    course.end,
    work.error,
    _dataset,
    _content,
    lambda run: fixed_settings(run.config),
    machine.release,
    course.records,
)
"""The rules that are asked of a run while it lasts, every second: none looks at each trial."""
BOTH: Final[Sequence[Rule]] = (
    *BRIEF[:-1],
    machine.versions,
    machine.environment,
    machine.precision,
    work.initial,
    work.morphism,
    work.proposals,
    work.hpo,
    work.weights,
    course.replicas,
    course.heartbeats,
    course.clocks,
    course.rates,
    course.peaks,
    course.staging,
    course.records,
)
"""The rules of both divisions."""
CLOSED: Final[Sequence[Rule]] = (
    lambda run: closed_settings(run.config),
    closed.hyperparameters,
    machine.nodes,
    accelerators.accelerators,
)
"""Those of the closed division besides."""
EARLIER: Final[Sequence[Rule]] = (
    work.engine,
    earlier.duration,
    work.error,
    _dataset,
    earlier.initial,
    machine.precision,
    work.morphism,
    earlier.hpo,
    course.records,
)
"""Those of versions without divisions."""
OF_OTHER_WORKLOADS: Final[Sequence[Rule]] = (_workload, work.engine, course.records)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of all rules."""

    division: Division | None
    """The division in which the run is official; None where it is so in none."""
    checks: tuple[RuleCheck, ...]
    """What came of every rule of the division that was asked for or, if none was, that it is
    official in."""
    declared: tuple[Declared, ...] = ()
    """The settings that are not the closed division's."""
    not_closed: tuple[Violation, ...] = ()
    """Why it is not official in the closed division, where it is in the open one."""

    @property
    def violations(self) -> list[Violation]:
        """Every rule that the run breaks, with each reason; none where it is official."""
        return violations_of(self.checks)


def judge(run: RunEvidence, of_workload: Sequence[Rule] = ()) -> Judgement:
    """Return in which division a run is official: the one that it was to be in, or the stricter.

    Args:
        run: what it recorded.
        of_workload: the rules of another workload's own benchmark. They are told beside, and make
            no run official: the score is that of the one workload.
    """
    if run.config.workload != WORKLOAD:
        return Judgement(None, _checked((*OF_OTHER_WORKLOADS, *of_workload), run))
    if run.manifest.rules == 1:
        checks = _checked(EARLIER, run)
        late = () if violations_of(checks) else (earlier.without_divisions(),)
        return Judgement(None, (*checks, *late))
    # Asked only of those that changed their nodes or waited for all, so that others are judged as
    # they were.
    changed = [machine.constant_nodes(run)] if run.history.scalings else []
    waited = [clock_rule("all")] if run.history.clock_starts == "all" else []
    both, besides = (*_checked(BOTH, run), *changed, *waited), _checked(CLOSED, run)
    asked = run.manifest.division
    is_closed = asked == "closed" or (asked is None and not violations_of(besides))
    checks = (*both, *besides) if is_closed else both
    division = None
    if not violations_of(checks):
        division = Division.CLOSED if is_closed else Division.OPEN
    why = () if is_closed else tuple(violations_of(besides))
    return Judgement(division, checks, declared(run.config), why)


def judge_briefly(run: RunEvidence, of_workload: Sequence[Rule] = ()) -> list[Violation]:
    """Return which rules are broken of those that are quick to ask."""
    if run.config.workload != WORKLOAD or run.manifest.rules == 1:
        return judge(run, of_workload).violations
    return violations_of(_checked(BRIEF, run))


def _checked(rules: Iterable[Rule], run: RunEvidence) -> tuple[RuleCheck, ...]:
    return tuple(rule(run) for rule in rules)
