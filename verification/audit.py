"""Verification: whether a run's score, and its report, are what the run's own records give.

The rules recompute from the records, with other code than the score's: the samples, summed from the
progress records without those of replaced replicas; the graphs, derived again from the initial
network by the recorded morphisms instead of read; and from both the operations, OPS and regulated
score.

The same code as the score's has these parts: what a line of a journal means, which trials and
evaluations the records contain, when the run began and ended, and how a graph is counted. The rules
train and evaluate nothing: accuracies are those that the replicas recorded, and ``execution/``
re-executes some. The report is made again by the code that made it, and compared.
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
"""The number of records of a run for which making the report again takes seconds."""


def evidence_of(
    view: RunView,
    trusted: Sequence[PublicKey] = (),
    witnesses: Sequence[PublicKey] = (),
    authorities: Sequence[Certificate] = (),
) -> Evidence:
    """Read a run.

    Args:
        view: the run.
        trusted: the keys of which one must have signed it; if there are none, it need not be
            signed, but a wrong signature fails.
        witnesses: the keys of witnesses of which one must have seen all of the run; if there are
            none, nobody needs to have seen it.
        authorities: root certificates of time-stamp authorities, which are witnesses too.

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

    # The collector would walk all that was read, for each of the values that rules make.
    with no_collections(keep_all=True):
        if run.record_count < MANY_RECORDS:
            return [rule.check(run) for rule in CONSISTENCY]
        return _check_in_two_processes(run)


def _check_in_two_processes(run: Evidence) -> list[RuleResult]:
    """Check every rule, ``report`` in a process of its own."""
    rules = {rule.name: rule for rule in CONSISTENCY}
    # Graphs are derived again once, for all rules.
    found = {name: rules.pop(name).check(run) for name in ("graphs", "counts")}
    report = rules.pop("report")
    with forked(lambda: report.check(run)) as reported:
        found |= {name: rule.check(run) for name, rule in rules.items()}
        found["report"] = reported()
    return [found[rule.name] for rule in CONSISTENCY]


@contextmanager
def forked(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Do something in a fork of this process while the block runs, if there is a core for it.

    Yields:
        A function that waits for the result. If this process has threads, which a fork would lose,
        or one core, or if the fork ended without a result, it does the work itself.
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
