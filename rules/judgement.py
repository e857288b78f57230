"""Judgement of a run: its division, by all rules on validity."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from aiperf_hpc.config import RunConfig
from aiperf_hpc.rules import registry
from aiperf_hpc.rules.rule import Division, E, Rule, RuleResult, Violation, violations_of
from aiperf_hpc.rules.validity.evidence import RunEvidence
from aiperf_hpc.rules.validity.result import WORKLOAD, Assurance
from aiperf_hpc.rules.validity.settings import DeclaredSetting, declared
from aiperf_hpc.run.manifest import RunManifest

IF_ASSURED: Final = f"if it is {registry.ASSURANCE.requirement}"
"""The condition of a closed result: a run cannot establish it itself (``assured``)."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The results of all rules on a run."""

    division: Division | None
    """The division in which the run is official; None if it is official in none."""
    results: tuple[RuleResult, ...]
    """The result of every rule of the requested division or, if none was requested, of the division
    in which it is official."""
    declared: tuple[DeclaredSetting, ...] = ()
    """Settings that differ from the closed division's."""
    closed_violations: tuple[Violation, ...] = ()
    """Violations that exclude a run of the open division from the closed one."""

    @property
    def violations(self) -> list[Violation]:
        """Every violated rule, with each reason; none if the run is official."""
        return violations_of(self.results)


def judge(run: RunEvidence, of_workload: Sequence[Rule[RunEvidence]] = ()) -> Judgement:
    """Judge a run in the requested division or, if none was requested, the strictest it satisfies.

    Args:
        run: evidence of the run.
        of_workload: rules of another workload's benchmark. Their results are listed, but such runs
            are never official, because the score is defined for one workload only.
    """
    if run.config.workload != WORKLOAD:
        return Judgement(None, _checked((*registry.OTHER_WORKLOADS, *of_workload), run))
    if run.manifest.rules == 1:
        results = _checked(registry.EARLIER, run)
        late = () if violations_of(results) else (registry.NO_DIVISION.check(run),)
        return Judgement(None, (*results, *late))
    # Only for runs that changed their nodes or waited for all; results of others stay the same.
    changed = [registry.CONSTANT_NODES.check(run)] if run.history.scalings else []
    waited = [registry.CLOCK_START.check("all")] if run.history.clock_starts == "all" else []
    both = (*_checked(registry.BOTH, run), *changed, *waited)
    closed = _checked(registry.CLOSED, run)
    requested = run.manifest.division
    is_closed = requested == "closed" or (requested is None and not violations_of(closed))
    results = (*both, *closed) if is_closed else both
    division = None
    if not violations_of(results):
        division = Division.CLOSED if is_closed else Division.OPEN
    why = () if is_closed else tuple(violations_of(closed))
    return Judgement(division, results, declared(run.config), why)


def assured(judged: Judgement, run: RunManifest, found: Assurance) -> Judgement:
    """Judge a closed result of a run also by what its verifier has established.

    Without it, the result is official only in the open division, if no division was requested.
    """
    if judged.division is not Division.CLOSED:
        return judged
    result = registry.ASSURANCE.check(found)
    if not result.passed and run.division is None:
        return replace(
            judged, division=Division.OPEN, closed_violations=(*violations_of([result]),)
        )
    division = Division.CLOSED if result.passed else None
    return replace(judged, division=division, results=(*judged.results, result))


def judge_briefly(
    run: RunEvidence, of_workload: Sequence[Rule[RunEvidence]] = ()
) -> list[Violation]:
    """Return the violations of the rules that are fast to check."""
    if run.config.workload != WORKLOAD or run.manifest.rules == 1:
        return judge(run, of_workload).violations
    return violations_of(_checked(registry.BRIEF, run))


def check_settings(config: RunConfig, division: Division) -> tuple[RuleResult, ...]:
    """Return the results of a division's rules on a configuration alone."""
    further = (registry.CLOSED_SETTINGS,) if division is Division.CLOSED else ()
    return _checked((*registry.CONFIGURATION, *further), config)


def division_of(config: RunConfig) -> Division | None:
    """Return the strictest division whose rules a configuration satisfies, or None."""
    satisfied = (each for each in Division if not violations_of(check_settings(config, each)))
    return next(satisfied, None)


def check_plan(plan: RunManifest, division: Division) -> tuple[RuleResult, ...]:
    """Return the results of a division's rules before a run.

    The rules on the dataset are omitted before it has been read.
    """
    on_data = registry.BEFORE_START_ON_DATA if plan.dataset is not None else ()
    return (
        registry.PLANNED_NODES.check(plan),
        registry.CLOCK_START.check(plan.start_when),
        *check_settings(plan.config, division),
        *_checked((*registry.BEFORE_START, *on_data), plan),
    )


def _checked(rules: Iterable[Rule[E]], evidence: E) -> tuple[RuleResult, ...]:
    return tuple(rule.check(evidence) for rule in rules)
