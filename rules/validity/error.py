"""The rule on the error of the best evaluation."""

from __future__ import annotations

from typing import Final

from aiperf_hpc.rules.rule import Findings, Found
from aiperf_hpc.rules.validity.evidence import RunEvidence

MOST_ERROR: Final = 0.30


def error(run: RunEvidence) -> Findings:
    """The best complete evaluation is good enough."""
    error = run.final.error
    if error is None:
        yield Found("none")
        yield "no evaluation was completed"
        return
    yield Found(f"{error:.2%}")
    if error > MOST_ERROR:
        yield f"{error:.2%}; at most {MOST_ERROR:.0%} is required"
