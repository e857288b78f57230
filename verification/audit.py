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

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import TypeVar, cast

from aiperf_hpc.results.report import provenance
from aiperf_hpc.results.report.document import Report, make_report
from aiperf_hpc.results.report.files import report_document
from aiperf_hpc.results.report.scaling import Scaling
from aiperf_hpc.results.report.writer import report_files
from aiperf_hpc.results.views.earlier_versions import in_this_version
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.consistency.evidence import (
    NOBODY_TRUSTED,
    Change,
    Evidence,
    FinalReport,
    Json,
    Trusted,
)
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run.history import no_collections
from aiperf_hpc.workloads.registry import initial_graph, workload_of

T = TypeVar("T")
MANY_RECORDS = 100_000
"""Minimum number of records for which making the report again takes seconds."""


def evidence_of(view: RunView, trusted: Trusted = NOBODY_TRUSTED) -> Evidence:
    """Read the evidence of a run.

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
        trusted,
    )


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


def final_report(view: RunView) -> FinalReport:
    """Return the report of a run, which is made again once, at its first use."""
    made = cache(partial(make_report, view))
    return FinalReport(
        exists=partial(provenance.is_final, view),
        has_grown=partial(provenance.has_grown, view),
        signed=partial(provenance.is_signed, view.paths),
        complete=lambda: provenance.manifest_of(view).complete,
        stated=partial(report_document, view.paths),
        in_this_version=in_this_version,
        made=lambda: cast(Json, json.loads(made().model_dump_json())),
        files=lambda scaling: report_files(view, _with_scaling(made(), scaling)),
        other_maker=lambda: provenance.software_difference(provenance.manifest_of(view).made_by),
        score=partial(_score, view),
        result=partial(_result, view),
        violated=lambda: {each.rule for each in view.violations()},
        named_files=lambda: len(provenance.named_files(view)),
        changes=lambda: (Change(e.said, e.late) for e in provenance.differences(view)),
        signer=partial(provenance.signed_by, view.paths),
    )


def _with_scaling(document: Report, scaling: object) -> Report:
    if scaling is None:
        return document
    return document.model_copy(update={"scaling": Scaling.model_validate(scaling)})


def _score(view: RunView) -> Json:
    final = view.final()
    return {"operations": final.operations, "ops": final.ops, "regulated": final.regulated}


def _result(view: RunView) -> Json:
    resources = view.resources()
    divisions = {"division": view.judgement().division}
    return {
        "error": view.final().error,
        "replicas": resources.replicas,
        "hosts": resources.hosts,
        "accelerators": resources.accelerator_count,
        **(divisions if view.manifest.rules > 1 else {}),
    }
