"""A rule, and the result of checking it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from aiperf_hpc.errors import AIPerfError

E = TypeVar("E")
Part = TypeVar("Part")

MOST_REASONS: Final = 3
"""The reasons of one kind that a report lists."""


class Division(StrEnum):
    """By which rules a result is official, after MLPerf HPC's divisions."""

    CLOSED = "closed"
    """The workload exactly as in Ren et al. 2021: only the machine differs."""
    OPEN = "open"
    """The same task, with other hyperparameters and search, which are declared."""


class Note(str):
    """A finding that is no failure: a remark, or why something could not be checked."""

    __slots__ = ()


class Each(str):
    """One of several failures of a kind, of which only the first are listed."""

    __slots__ = ()


class Found(str):
    """What the run has, as the report prints it."""

    __slots__ = ()


class Required(str):
    """What is required, if that depends on the run."""

    __slots__ = ()


class Checked(int):
    """How many things there were to check."""

    __slots__ = ()


Findings = Iterator[str | Checked]
"""What a rule's function yields: each failure in a line, and findings of the classes above."""


_KINDS: Final = (Note, Each, Found, Required, Checked)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule on one run, or on a run that is planned."""

    rule: str
    requirement: str
    found: str = ""
    """What the run has; empty if the rule only counts what it checks."""
    failures: tuple[str, ...] = ()
    """Why the rule is violated; empty if it is satisfied."""
    notes: tuple[str, ...] = ()
    checked: int = 1
    """How many things were checked."""

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def skipped(self) -> str | None:
        """Why nothing was checked, e.g. ``unsigned``; None if something was checked or failed."""
        if self.checked or self.failures:
            return None
        return "; ".join(self.notes) or "nothing recorded"


@dataclass(frozen=True, slots=True)
class Rule(Generic[E]):
    """A requirement, and the function that checks it on evidence of a kind."""

    name: str
    requirement: str
    findings: Callable[[E], Findings]

    def check(self, evidence: E) -> RuleResult:
        """Return the result of this rule."""
        kinds: defaultdict[type, list[Any]] = defaultdict(list)
        for finding in self._findings(evidence):
            kinds[next((k for k in _KINDS if isinstance(finding, k)), str)].append(finding)
        return RuleResult(
            self.name,
            str([self.requirement, *kinds[Required]][-1]),
            str(["", *kinds[Found]][-1]),
            tuple(map(str, (*kinds[str], *first_reasons(kinds[Each])))),
            tuple(map(str, kinds[Note])),
            int([1, *kinds[Checked]][-1]),
        )

    def _findings(self, evidence: E) -> Findings:
        try:
            yield from self.findings(evidence)
        except AIPerfError as error:
            yield f"it cannot be checked: {error}"

    def on(self, part: Callable[[Part], E]) -> Rule[Part]:
        """Return this rule for evidence that contains the evidence which it checks."""
        return Rule(self.name, self.requirement, lambda whole: self.findings(part(whole)))


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule and one reason."""

    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"


def violations_of(results: Iterable[RuleResult]) -> list[Violation]:
    """Return each reason of each violated rule."""
    return [Violation(each.rule, reason) for each in results for reason in each.failures]


def first_reasons(reasons: Iterable[str]) -> Iterator[str]:
    """Yield the first reasons, and how many more there are."""
    several = iter(reasons)
    yield from islice(several, MOST_REASONS)
    if more := sum(1 for _ in several):
        yield f"and {more:,} more"
