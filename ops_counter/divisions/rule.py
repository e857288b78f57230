"""What came of a rule: what a run has, what is required, and why it is not kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class Division(StrEnum):
    """By which rules a result is official, after MLPerf HPC's divisions."""

    CLOSED = "closed"
    """The workload exactly as Ren et al. 2021 have it: what differs is the machine."""
    OPEN = "open"
    """The same task, with hyperparameters and search of one's own, which are declared."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that a run does not keep, and how."""

    rule: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """What came of one rule on one run, or on what is asked of one."""

    rule: str
    value: str
    """What the run has."""
    limit: str
    """What is required."""
    reasons: tuple[str, ...] = ()
    """Why it is not kept; empty where it is."""

    @classmethod
    def of(cls, rule: str, value: str, limit: str, reasons: Iterable[str]) -> Self:
        """Return what came of a rule, of whatever yields the reasons."""
        return cls(rule, value, limit, tuple(reasons))

    @property
    def passed(self) -> bool:
        return not self.reasons


def violations_of(checks: Iterable[RuleCheck]) -> list[Violation]:
    """Return each reason of each rule that is not kept."""
    return [Violation(each.rule, reason) for each in checks for reason in each.reasons]
