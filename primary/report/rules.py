"""The benchmark's rules as a report states them."""

from __future__ import annotations

from aiperf_hpc.ops_counter.validity import RuleCheck
from aiperf_hpc.trial import Value


class Broken(Value):
    """A rule that the run does not keep, and how."""

    rule: str
    reason: str


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
