"""Verification: whether a run's score and report follow from the run's own records.

The rules recompute the score with separate code: the samples from the progress records, without
those of replaced attempts; the graphs from the initial network and the recorded morphisms instead
of their files; and from both the operations, OPS and the regulated score.

Verification shares this code with the score: parsing of journals, the trials and evaluations of the
records, the start and the end of the run, and operation counts of graphs. The rules do not train or
evaluate: accuracies are taken from the records, and ``execution/`` re-executes some. The report is
made again by the same code and compared.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

from cryptography.x509 import Certificate

from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import Evidence, Trusted
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run.history import no_collections
from aiperf_hpc.verification.final_report import final_report
from aiperf_hpc.workloads.registry import initial_graph, workload_of

T = TypeVar("T")
MANY_RECORDS = 100_000
"""Minimum number of records for which making the report again takes seconds."""


def evidence_of(
    view: RunView,
    trusted: Sequence[PublicKey] = (),
    witnesses: Sequence[PublicKey] = (),
    authorities: Sequence[Certificate] = (),
) -> Evidence:
    """Read the evidence of a run.

    Args:
        view: view of the run.
        trusted: keys, one of which must have signed the run; if empty, the run need not be signed,
            but an invalid signature is a failure.
        witnesses: keys of witnesses, one of which must have covered the whole run; if empty, no
            witness is required.
        authorities: root certificates of timestamp authorities, which count as witnesses.

    Raises:
        JournalError: a journal cannot be read at all.
    """
    view.refresh()
    config = view.manifest.config
    return Evidence(
        view.history,
        view.manifest,
        workload_of(config).objective,
        partial(initial_graph, config),
        final_report(view),
        Trusted(trusted, witnesses, authorities),
    )


def verify(
    view: RunView, trusted: Sequence[PublicKey] = (), witnesses: Sequence[PublicKey] = ()
) -> list[RuleResult]:
    """Check every rule on a run and return the results in the order of the rules.

    Raises:
        JournalError: a journal cannot be read at all.
    """
    return check(evidence_of(view, trusted, witnesses))


def check(run: Evidence) -> list[RuleResult]:
    """Check every rule on a run that has been read."""

    # The collector would traverse all evidence repeatedly while rules allocate objects.
    with no_collections(keep_all=True):
        if run.record_count < MANY_RECORDS:
            return [rule.check(run) for rule in CONSISTENCY]
        return _check_in_two_processes(run)


def _check_in_two_processes(run: Evidence) -> list[RuleResult]:
    """Check every rule; ``report`` runs in a separate process."""
    rules = {rule.name: rule for rule in CONSISTENCY}
    # Regrow the graphs once, before the fork.
    found = {name: rules.pop(name).check(run) for name in ("graphs", "counts")}
    report = rules.pop("report")
    with forked(lambda: report.check(run)) as reported:
        found |= {name: rule.check(run) for name, rule in rules.items()}
        found["report"] = reported()
    return [found[rule.name] for rule in CONSISTENCY]


@contextmanager
def forked(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Run ``work`` in a fork of this process during the block, if a core is available.

    Yields:
        A function that waits for the result. It does the work itself if this process has threads,
        which a fork would lose, or a single core, or if the fork exited without a result.
    """
    if threading.active_count() > 1 or len(os.sched_getaffinity(0)) == 1:
        yield work
        return
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_send_result, args=(work, sender), daemon=True)
    process.start()
    sender.close()

    def result() -> T:
        with suppress(EOFError, OSError):
            found: T = receiver.recv()
            return found
        return work()

    try:
        yield result
    finally:
        receiver.close()
        process.kill()
        process.join()


def _send_result(work: Callable[[], object], sender: Connection) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    try:
        sender.send(work())
    except Exception:  # noqa: BLE001 -- the parent does the work itself, and reports what is wrong
        os._exit(1)
