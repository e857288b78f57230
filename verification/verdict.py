"""The verdict on a run: whether its records are consistent, and whether its result is official."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Trusted
from aiperf_hpc.rules.judgement import Judgement, assured
from aiperf_hpc.rules.rule import Division, RuleResult, Violation
from aiperf_hpc.rules.validity.result import LEAST_EXECUTED, Assurance
from aiperf_hpc.verification.execution.outcome import OF_SIGNATURE, Outcome, differing


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """The result of verification in two answers: consistent records, and an official result."""

    failed: tuple[str, ...]
    """The rules of verification that failed."""
    executed: str
    """Re-executed trials that differ from their records; empty if there are none."""
    signature: str
    """Signer of the run, ``unsigned``, or the error of the signature."""
    assurance: Assurance
    """What the verifier has established."""
    ended: bool
    judgement: Judgement | None
    """Judgement by the rules of the benchmark, if the run has ended and its records are
    consistent."""

    @property
    def consistent(self) -> bool:
        """Whether every rule passed and every re-executed trial matches its records."""
        return not self.failed and not self.executed

    @property
    def official(self) -> bool:
        return self.division is not None

    @property
    def division(self) -> Division | None:
        """Division of an official result."""
        return None if self.judgement is None else self.judgement.division

    @property
    def records(self) -> str:
        """The first answer in one line."""
        verdict = "consistent" if self.consistent else "inconsistent"
        failed = f"failed: {', '.join(self.failed)}" if self.failed else ""
        return "; ".join(filter(None, (verdict, failed, self.executed, self.signature)))

    @property
    def result(self) -> str:
        """The second answer in one line, with the first reason and the other violated rules."""
        if self.judgement is not None and self.official:
            why = "; ".join(map(str, self.judgement.closed_violations[:1]))
            return f"official, {self.division} division{f', not closed: {why}' if why else ''}"
        rules = list(dict.fromkeys(each.rule for each in self._violations))
        also = f"; also violated: {', '.join(rules[1:])}" if rules[1:] else ""
        return f"unofficial: {self._reasons()[0]}{also}"

    @property
    def _violations(self) -> Sequence[Violation]:
        return () if self.judgement is None else self.judgement.violations

    def _reasons(self) -> Sequence[str]:
        if not self.consistent:
            return ["the records are inconsistent"]
        if not self.ended:
            return ["the run has not ended"]
        return [str(each) for each in self._violations]

    def document(self) -> dict[str, Any]:
        """Return the verdict for JSON."""
        return {
            "consistent": self.consistent,
            "official": self.official,
            "division": self.division,
            "unofficial_reasons": self._reasons(),
            "ended": self.ended,
            "signature": self.signature,
            "evidence": self.assurance._asdict(),
        }


def verdict_of(
    view: RunView, trusted: Trusted, results: Sequence[RuleResult], outcome: Outcome | None
) -> RunVerdict:
    """Return the verdict on a run that was verified.

    Args:
        view: view of the run.
        trusted: keys and certificates that the verifier trusts.
        results: result of each rule of verification.
        outcome: result of the re-execution, if it was requested.
    """
    rules = {each.rule: each for each in results}
    signature = rules["signature"]
    failed = tuple(each.rule for each in results if not each.passed)
    executed = "" if outcome is None else differing(outcome)
    ended = view.history.end_utc is not None
    enough = outcome is not None and suffices(outcome)
    found = assurance_of(trusted, results, executed=enough and not executed)
    judgement = None
    if ended and not failed and not executed:
        judgement = assured(view.judgement(), view.manifest, found)
    return RunVerdict(
        failed=failed,
        executed=executed,
        signature=(*signature.failures, *signature.notes)[0],
        assurance=found,
        ended=ended,
        judgement=judgement,
    )


def suffices(outcome: Outcome) -> bool:
    """Return whether enough sampled trials were re-executed to replace signature and witness.

    A sample by the submitter's signature is not enough, unless it includes all trials.
    """
    least = LEAST_EXECUTED if outcome.seed_origin != OF_SIGNATURE else outcome.population
    return 0 < min(outcome.population, least) <= outcome.sampled


def assurance_of(
    trusted: Trusted, results: Iterable[RuleResult], *, executed: bool = False
) -> Assurance:
    """Return what a verification has established.

    The rules on signature and witnesses require trusted ones if the verifier names any.
    """
    passed = {each.rule for each in results if each.passed}
    return Assurance(
        signed=bool(trusted.signers) and "signature" in passed,
        witnessed=bool(trusted.witnesses or trusted.authorities)
        and passed >= {"witness", "digests"},
        executed=executed,
    )
