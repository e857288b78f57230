"""Rules on a result: its engine, its error, the stored weights and the workload."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiperf_hpc.formatting import distinct
from aiperf_hpc.rules.rule import Findings, Found
from aiperf_hpc.rules.validity.evidence import RunEvidence

LEAST_EXECUTED: Final = 10
"""Minimum number of sampled trials whose re-execution replaces a signature and a witness: they
include one of the fabricated trials with a probability of 65 % if those are 10 % of all."""


class Assurance(NamedTuple):
    """What someone other than the submitter has established of a run's records.

    It is known to a verifier who names trusted keys, not to the run itself.
    """

    signed: bool
    """Whether a trusted key signed the run."""
    witnessed: bool
    """Whether a trusted witness or time-stamp authority covered it from its start to its end."""
    executed: bool = False
    """Whether ``LEAST_EXECUTED`` trials, sampled with a seed that the submitter cannot choose, were
    re-executed, or all trials if there are fewer, and match their records."""

    @property
    def sufficient(self) -> bool:
        """Whether a closed result may rely on it."""
        return self.executed or (self.signed and self.witnessed)

    def __str__(self) -> str:
        kinds = "trusted signature", "trusted witness", "sufficient re-execution"
        named = zip(kinds, self, strict=True)
        found = ", ".join(what if there else f"no {what}" for what, there in named)
        return found if self.sufficient else f"self-reported: {found}"


WORKLOAD: Final = "automl"
"""Workload to which the benchmark's rules apply."""
MOST_ERROR: Final = 0.30


def engine(run: RunEvidence) -> Findings:
    """The engine is not the simulated one, which computes nothing."""
    used = {r.started.engine for r in run.replicas if r.started is not None}
    yield Found(", ".join(sorted(used)) or "none")
    if "simulated" in used:
        yield "simulated engine: nothing was computed"


def error(run: RunEvidence) -> Findings:
    """The error of the best complete evaluation is at most ``MOST_ERROR``."""
    error = run.final.error
    if error is None:
        yield Found("none")
        yield "no evaluation was completed"
        return
    found = distinct(error, MOST_ERROR, 2, "%")
    yield Found(found)
    if error > MOST_ERROR:
        yield f"{found}; at most {MOST_ERROR:.0%} is required"


def weights(run: RunEvidence) -> Findings:
    """The weights of the best evaluation are stored, so that others can repeat it."""
    best = run.history.best_until(run.end)
    trial = None if best is None else run.history.trials.get(best.trial)
    if best is None or trial is None:
        yield Found("none")
        yield "no evaluation was completed"
        return
    kept = trial.best_epoch
    if kept is not None and kept.epoch == best.epoch:
        yield Found(f"{trial.id}, epoch {kept.epoch}")
    else:
        yield Found("none")
        yield f"the weights of {trial.id} were not kept"


def workload(run: RunEvidence) -> Findings:
    """The run has the workload for which the benchmark's score is defined."""
    yield Found(run.config.workload)
    yield f"{run.config.workload}; the benchmark's score is that of {WORKLOAD}"


def assurance(found: Assurance) -> Findings:
    """The run was signed and witnessed, or its trials were re-executed."""
    yield Found(str(found))
    if not found.sufficient:
        yield (
            f"{found}; name its signer (--key) and its witness (--witness, --tsa), or re-execute "
            f"at least {LEAST_EXECUTED} trials sampled with your own seed "
            f"(--execute {LEAST_EXECUTED} --seed SEED)"
        )
