"""Rules by their names, a judgement, and small changes of runs that rules are checked on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from benchmarks import synthetic_run
from cryptography.x509 import Certificate
from tests.support.clock import Clock
from tests.support.run_writer import trial_ended

from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Evidence, Trusted
from aiperf_hpc.rules.judgement import Judgement
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.rules.rule import Division, RuleResult
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records.parsing import model_of
from aiperf_hpc.trial import TimePhase
from aiperf_hpc.verification.audit import check, evidence_of

ROWS = {rule.name: rule for rule in CONSISTENCY}
SATISFIED = Judgement(Division.CLOSED, (RuleResult("all", "satisfied", "satisfied"),))


@contextmanager
def satisfying_all_rules() -> Iterator[None]:
    """Judge short runs as if they satisfied the rules of the closed division."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunView, "judgement", lambda view: SATISFIED)
        yield


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
        run = evidence_of(run, Trusted(trusted, witnesses, authorities))
    return ROWS[name].check(run)


def verify(
    view: RunView, trusted: Sequence[PublicKey] = (), witnesses: Sequence[PublicKey] = ()
) -> list[RuleResult]:
    """Return the results of all rules on a run."""
    return check(evidence_of(view, Trusted(trusted, witnesses)))


def failures_by_rule(run: RunPaths) -> dict[str, tuple[str, ...]]:
    """Verify a run; return the failures of each rule that failed."""
    return {result.rule: result.failures for result in verify(RunView(run)) if not result.passed}


def reported(paths: RunPaths) -> RunPaths:
    """Write the report of a run."""
    write_report(RunView(paths))
    return paths


def append(path: Path, utc: float, *events: records.AnyEvent) -> None:
    """Append to a journal of version 1."""
    with JournalWriter(path, clock=Clock(utc)) as journal:
        journal.append_all(events)
    _make_version_1(path)


def _make_version_1(journal: Path) -> None:
    lines = journal.read_bytes()
    journal.write_bytes(lines.replace(b'{"v":2,"seq":', b'{"v":1,"seq":'))


def append_before_the_end(run: RunPaths, replica: str, event: records.AnyEvent) -> None:
    """Append to the journal of a replica, or of the primary, before its last record."""
    journal = run.primary_journal if replica == "primary" else run.replica_journal(replica)
    *others, end = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(others))
    last = model_of(end)
    append(journal, last.utc, event)
    append(journal, last.utc, last.event)


def end_amid_the_last_trial(root: Path) -> tuple[RunPaths, Trial, float]:
    """End a run while r0 trains; return its last trial, and the end in UTC seconds."""
    paths = synthetic_run.write_run(root, 3, distinct=2, ended=False).paths
    journal = paths.replica_journal("r0")
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(place for place, line in enumerate(lines) if b'"evaluated"' in line)
    journal.write_bytes(b"".join(lines[: last - 3]))  # Without the last epoch.
    history = RunHistory.read(paths)
    start, end = history.start_utc, history.last_utc + 1.0
    assert start is not None
    clock = Clock(start)
    with JournalWriter(paths.primary_journal, clock=clock) as primary:
        while clock.now + 30.0 < end:
            clock.sleep(30.0)
            primary.append(records.PrimaryHeartbeat())
        clock.now = end
        primary.append(records.RunEnded(reason="stopped"))
    _make_version_1(paths.primary_journal)
    return paths, history.trials[history.replicas["r0"].trials[-1]], end


def write_late(paths: RunPaths, trial: Trial, utc: float) -> None:
    """Let r0 go on with its trial after the end of the run."""
    epoch = synthetic_run.EPOCHS[-1]
    append(
        paths.replica_journal("r0"),
        utc,
        *synthetic_run.epoch_events(trial.id, epoch, 359),
        records.TimeSpent(trial=trial.id, seconds={TimePhase.TRAIN: utc - trial.started_utc}),
        trial_ended(trial.id, reason="", checkpoint=False),
    )
