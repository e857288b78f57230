"""Verification: whether a run's score, and its report, are what the run's own records give.

Recounted, by other code than made the score: the samples, summed here from the progress records,
those of replaced replicas left out anew; the graphs, grown again from the initial network by the
recorded morphisms, not the stored ones; and from both the operations, OPS and regulated score.

Not recounted, but the same code as the score's: what a line of a journal means, which trials and
evaluations the records tell of, when the run began and ended, and how a graph is counted. The
rules train and evaluate nothing again: accuracies are those that the replicas recorded, and
``execution/`` is where some are. The report is made again by the code that made it, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from aiperf_hpc.errors import AIPerfError
from aiperf_hpc.integrity.signatures import PublicKey
from aiperf_hpc.results.report.provenance import named_files
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.history import no_collections
from aiperf_hpc.verification.beside import beside
from aiperf_hpc.verification.evidence import Evidence, Failures, Note
from aiperf_hpc.verification.rules import (
    baseline,
    batches,
    clock,
    course,
    descent,
    heads,
    kept,
    launches,
    names,
    physical,
    records,
    result,
    resumption,
    signs,
    statement,
    study,
    telemetry,
    timekeeping,
    trust,
    witness,
    work,
    writers,
)

MANY_RECORDS = 100_000
"""Of a run with so many, making the report again takes seconds."""


class Rule(NamedTuple):
    """What must hold for a run."""

    name: str
    checks: str
    """The rule in words."""
    holds: Callable[[Evidence], Failures]
    """The function that yields what is wrong."""
    checked: Callable[[Evidence], int]
    """The function that returns how much there was to check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one rule: what it checks, how much was checked, what is wrong."""

    rule: str
    checks: str
    checked: int
    failures: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What it has to say besides, which is no failure."""

    @property
    def passed(self) -> bool:
        return not self.failures

    @property
    def skipped(self) -> str | None:
        """Why nothing was checked, e.g. ``unsigned``; None if something was, or is wrong."""
        if self.checked or self.failures:
            return None
        return "; ".join(self.notes) or "nothing recorded"


def _records(run: Evidence) -> int:
    return sum(len(journal.times) for journal in run.journals.values())


def _replicas(run: Evidence) -> int:
    return len(run.history.replicas)


def _trials(run: Evidence) -> int:
    return len(run.trials)


def _progress(run: Evidence) -> int:
    return sum(1 for _ in run.progress())


def _evaluations(run: Evidence) -> int:
    return sum(len(trial.evaluations) for trial in run.trials)


RULES: tuple[Rule, ...] = (
    Rule("journals", "every line is a record in its place", records.journals, _records),
    Rule("writers", "each journal is one process's, from its start to its end",
         writers.writers, lambda run: len(run.journals)),
    Rule("clocks", "UTC and monotonic times agree", records.clocks, _records),
    Rule("timekeeping", "all clocks of each host, the kernel's and the file server's ran alike",
         timekeeping.timekeeping, timekeeping.readings),
    Rule("clock", "the clock started with the first node, or when all replicas were ready",
         clock.clock, clock.checked),
    Rule("heads", "journals are what the primary and the replicas saw of them while they grew",
         heads.heads, heads.checked),
    Rule("witness", "witnesses saw the primary's journal grow, and their time is the run's",
         witness.witnesses, witness.checked),
    Rule("replicas", "replicas that started or ended in order left records",
         records.replicas, _replicas),
    Rule("launches", "all replicas were launched, and each life of one has a cause",
         launches.launches, _replicas),
    Rule("config", "run.yaml is what every primary and replica had",
         records.config, records.stated_manifests),
    Rule("dataset", "all replicas had the configured dataset",
         records.dataset, lambda run: len(run.datasets)),
    Rule("graphs", "every graph follows from the initial one by its morphisms",
         work.graphs, _trials),
    Rule("counts", "recorded operations a sample are those of the graph", work.counts, _trials),
    Rule("names", "names, numbers and seeds of trials and proposals follow",
         names.names, _trials),
    Rule("candidates", "graphs were proposed, of weights that were there, within bounds",
         descent.candidates, lambda run: len(run.history.proposals)),
    Rule("resumes", "trials go on only with what was interrupted",
         resumption.resumes, _trials),
    Rule("batches", "batch sizes are configured, or halved where memory asked for it",
         batches.batches, _trials),
    Rule("samples", "each sample at most once an epoch, exactly once if evaluated",
         work.samples, _progress),
    Rule("evaluations", "evaluations are whole, in order, within limits",
         work.evaluations, _evaluations),
    Rule("baseline", "a trivial predictor's quality is of all validation samples, alike everywhere",
         baseline.baselines, baseline.measured),
    Rule("order", "one trial at a time on a replica, from the run's start on",
         course.order, _trials),
    Rule("rounds", "phases and epochs as configured; the chosen kernel size is in the graph",
         course.rounds, _trials),
    Rule("study", "studies were asked for and told what the journals say was tried",
         study.studies, study.studied),
    Rule("trainings", "replicas trained as often as was asked for", course.trainings, _replicas),
    Rule("states", "trials ended as their records say", course.states, _trials),
    Rule("time", "no replica spent more time than there was", course.time, _replicas),
    Rule("rates", "no device computed faster than it can, none as evenly as none does",
         physical.rates, physical.checked),
    Rule("signs", "who was at work gave signs of life",
         signs.signs, _replicas),
    Rule("machines", "replicas are on the machines that their ranks describe",
         signs.machines, lambda run: sum(len(r.described) for r in run.history.replicas.values())),
    Rule("score", "operations, OPS and regulated score equal the recount",
         result.score, _progress),
    Rule("energy", "the stated energy is the sum of the samples of each node",
         telemetry.energy,
         lambda run: sum(len(each.samples) for each in run.samplers())),
    Rule("predictions", "kept predictions are whole, and of the trials' last evaluations",
         result.predictions, lambda run: sum(t.predictions is not None for t in run.trials)),
    Rule("best epochs", "checkpoints of best epochs are there, and of the best evaluations",
         kept.best_epochs, lambda run: sum(t.best_epoch is not None for t in run.trials)),
    Rule("report", "the final report is what the records give",
         result.report, lambda run: int(run.reported)),
    Rule("result", "result.txt and result_0.txt state the recounted score, verdict and rules",
         statement.statements, statement.stated),
    Rule("files", "the manifest names every file of the run, and each is as it was at its end",
         trust.files, lambda run: len(named_files(run.view))),
    Rule("signature", "the manifest is signed, by a trusted key where one is named",
         trust.signature, trust.signatures),
)  # fmt: skip


def verify(
    view: RunView, trusted: Sequence[PublicKey] = (), witnesses: Sequence[PublicKey] = ()
) -> list[Finding]:
    """Check every rule on a run and return what came of each, in order.

    Args:
        view: the run.
        trusted: the keys of which one must have signed it; where there are none, it need not be
            signed, but not wrongly.
        witnesses: the keys of witnesses of which one must have seen the run go on; where there are
            none, nobody need have.

    Raises:
        JournalError: a journal cannot be read at all.
    """
    return check(Evidence(view, trusted, witnesses))


def check(run: Evidence) -> list[Finding]:
    """Check every rule on a run that is read already."""

    # The collector would walk all that was read, for each of the values that rules make.
    with no_collections(keep_all=True):
        if _records(run) < MANY_RECORDS:
            return [_finding(run, rule) for rule in RULES]
        return _check_beside(run)


def _check_beside(run: Evidence) -> list[Finding]:
    """Check every rule, ``report`` in a process of its own beside the others."""
    rules = {rule.name: rule for rule in RULES}
    # Graphs are grown again once, for all rules.
    found = {name: _finding(run, rules.pop(name)) for name in ("graphs", "counts")}
    report = partial(_finding, run, rules.pop("report"))
    with beside(report) as reported:
        found |= {name: _finding(run, rule) for name, rule in rules.items()}
        found["report"] = reported()
    return [found[rule.name] for rule in RULES]


def _finding(run: Evidence, rule: Rule) -> Finding:
    said = list(_failures(run, rule))
    return Finding(
        rule.name,
        rule.checks,
        rule.checked(run),
        tuple(each for each in said if not isinstance(each, Note)),
        tuple(str(each) for each in said if isinstance(each, Note)),
    )


def _failures(run: Evidence, rule: Rule) -> Failures:
    try:
        yield from rule.holds(run)
    except AIPerfError as error:
        yield f"it cannot be checked: {error}"
