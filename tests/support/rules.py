"""Rules on consistency by their names, checked on runs of tests."""

from __future__ import annotations

from collections.abc import Sequence

from cryptography.x509 import Certificate

from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Evidence
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.verification.audit import evidence_of, verify

ROWS = {rule.name: rule for rule in CONSISTENCY}


def check_rule(
    name: str,
    run: RunPaths | RunView | Evidence,
    *,
    trusted: Sequence[PublicKey] = (),
    witnesses: Sequence[PublicKey] = (),
    authorities: Sequence[Certificate] = (),
) -> RuleResult:
    """Check one rule on a run."""
    if isinstance(run, RunPaths):
        run = RunView(run)
    if isinstance(run, RunView):
        run = evidence_of(run, trusted, witnesses, authorities)
    return ROWS[name].check(run)


def failures_by_rule(
    run: RunPaths, *, trusted: Sequence[PublicKey] = (), witnesses: Sequence[PublicKey] = ()
) -> dict[str, tuple[str, ...]]:
    """Verify a run; return the failures of each rule that failed."""
    found = verify(RunView(run), trusted, witnesses)
    return {result.rule: result.failures for result in found if not result.passed}
