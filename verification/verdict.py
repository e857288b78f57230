"""The verdict on a run: whether its records are consistent, and whether its result is official."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.rule import Division, RuleResult, Violation
from aiperf_hpc.verification.execution.outcome import Outcome, differing


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The result of verification in two answers: consistent records, and an official result."""

    failed: tuple[str, ...]
    """The rules of verification that failed."""
    executed: str
    """Re-executed trials that differ from their records; empty if there are none."""
    signature: str
    """Signer of the run, ``unsigned``, or the error of the signature."""
    ended: bool
    division: Division | None
    """Division of an official result."""
    violations: tuple[Violation, ...]
    """The violated rules of the benchmark, if the run has ended and its records are consistent."""

    @property
    def consistent(self) -> bool:
        """Whether every rule passed and every re-executed trial matches its records."""
        return not self.failed and not self.executed

    @property
    def official(self) -> bool:
        return self.division is not None

    @property
    def records(self) -> str:
        """The first answer in one line."""
        verdict = "consistent" if self.consistent else "inconsistent"
        failed = f"failed: {', '.join(self.failed)}" if self.failed else ""
        return "; ".join(filter(None, (verdict, failed, self.executed, self.signature)))

    @property
    def result(self) -> str:
        """The second answer in one line, with the first reason and the other violated rules."""
        if self.official:
            return f"official, {self.division} division"
        rules = list(dict.fromkeys(each.rule for each in self.violations))
        also = f"; also violated: {', '.join(rules[1:])}" if rules[1:] else ""
        return f"unofficial: {self._reasons()[0]}{also}"

    def _reasons(self) -> Sequence[str]:
        if not self.consistent:
            return ["the records are inconsistent"]
        if not self.ended:
            return ["the run has not ended"]
        return [str(each) for each in self.violations]

    def document(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        return {
            "consistent": self.consistent,
            "official": self.official,
            "division": self.division,
            "unofficial_reasons": self._reasons(),
            "ended": self.ended,
            "signature": self.signature,
        }


def verdict_of(view: RunView, results: Sequence[RuleResult], outcome: Outcome | None) -> RunVerdict:
    """Return the verdict on a run that was verified.

    Args:
        view: view of the run.
        results: result of each rule of verification.
        outcome: result of the re-execution, if it was requested.
    """
    (signature,) = (each for each in results if each.rule == "signature")
    failed = tuple(each.rule for each in results if not each.passed)
    executed = "" if outcome is None else differing(outcome)
    ended = view.history.end_utc is not None
    judgement = view.judgement() if ended and not failed and not executed else None
    return RunVerdict(
        failed=failed,
        executed=executed,
        signature=(*signature.failures, *signature.notes)[0],
        ended=ended,
        division=None if judgement is None else judgement.division,
        violations=() if judgement is None else tuple(judgement.violations),
    )
