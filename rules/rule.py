"""A rule, and the result of checking it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.trial import Value

E = TypeVar("E")
Part = TypeVar("Part")

MOST_REASONS: Final = 3
"""Maximum number of reasons of one kind in a report."""


class Division(StrEnum):
    """Divisions of official results, modeled on MLPerf HPC's."""

    CLOSED = "closed"
    """The exact workload of Ren et al. 2021: only the machine differs."""
    OPEN = "open"
    """The same task, with other, declared settings of training and search."""


class Note(str):
    """A finding that is not a failure: a remark, or the reason why something was not checked."""

    __slots__ = ()


class Caution(str):
    """The verdict to print instead of PASSED: the rule is satisfied, but this proves little."""

    __slots__ = ()


class Each(str):
    """One of several failures of the same kind; only the first ones are listed."""

    __slots__ = ()


class Found(str):
    """The found value, as printed in the report."""

    __slots__ = ()


class Required(str):
    """The required value, if it depends on the run."""

    __slots__ = ()


class Checked(int):
    """The number of checked items."""

    __slots__ = ()


Findings = Iterator[str | Checked]
"""Result of a rule's function: failures as plain strings, and findings of the classes above."""


_KINDS: Final = (Note, Caution, Each, Found, Required, Checked)


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of one rule for a run or a planned run."""

    rule: str
    requirement: str
    found: str = ""
    """Found value; empty if the rule only counts checked items."""
    failures: tuple[str, ...] = ()
    """Reasons of the violation; empty if the rule is satisfied."""
    notes: tuple[str, ...] = ()
    checked: int = 1
    """Number of checked items."""
    caution: str = ""
    """Verdict to print instead of PASSED; empty for most results."""

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def skipped(self) -> str | None:
        """Reason why nothing was checked, e.g. ``unsigned``; None if anything was checked."""
        if self.checked or self.failures:
            return None
        return "; ".join(self.notes) or "nothing recorded"


@dataclass(frozen=True, slots=True)
class Rule(Generic[E]):
    """A requirement, and the function that checks it on evidence of type ``E``."""

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
            str(["", *kinds[Caution]][-1]),
        )

    def _findings(self, evidence: E) -> Findings:
        try:
            yield from self.findings(evidence)
        except AIPerfError as error:
            yield f"it cannot be checked: {error}"

    def on(self, part: Callable[[Part], E]) -> Rule[Part]:
        """Return this rule for evidence from which ``part`` extracts this rule's evidence."""
        return Rule(self.name, self.requirement, lambda whole: self.findings(part(whole)))


class Violation(Value):
    """A violated rule and one reason."""

    rule: str
    """Name of the rule."""
    reason: str
    """Reason for the violation."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"


def violations_of(results: Iterable[RuleResult]) -> list[Violation]:
    """Return each reason of each violated rule."""
    return [
        Violation(rule=each.rule, reason=reason) for each in results for reason in each.failures
    ]


def first_reasons(reasons: Iterable[str]) -> Iterator[str]:
    """Yield the first reasons, and the number of further ones if there are any."""
    several = iter(reasons)
    yield from islice(several, MOST_REASONS)
    if more := sum(1 for _ in several):
        yield f"and {more:,} more"
