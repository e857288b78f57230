"""The benchmark's rules as a report states them."""

from __future__ import annotations

from typing import Any

from aiperf_hpc.ops_counter.divisions import RuleCheck, Violation
from aiperf_hpc.ops_counter.divisions.settings import Declared, said
from aiperf_hpc.trial import Value


class Broken(Value):
    """A rule that the run does not keep, and how."""

    rule: str
    reason: str

    @classmethod
    def of(cls, violation: Violation) -> Broken:
        return cls(rule=violation.rule, reason=violation.reason)


class DeclaredSetting(Value):
    """A setting that is not as the closed division fixes it."""

    key: str
    """Dotted, as for ``--set``."""
    value: Any
    closed: Any
    """What the closed division fixes."""

    @classmethod
    def of(cls, declared: Declared) -> DeclaredSetting:
        return cls(key=declared.key, value=declared.value, closed=declared.closed)

    def __str__(self) -> str:
        return f"{self.key} {said(self.value)} (closed: {said(self.closed)})"


class RuleReport(Value):
    """One rule, kept or not."""

    rule: str
    value: str
    """What the run has."""
    limit: str
    """What is required."""
    passed: bool
    reasons: tuple[str, ...]
    """Why it is not kept; empty where it is."""

    @classmethod
    def of(cls, check: RuleCheck) -> RuleReport:
        return cls(
            rule=check.rule,
            value=check.value,
            limit=check.limit,
            passed=check.passed,
            reasons=check.reasons,
        )
