"""Results of a run: ``aiperf report``, ``aiperf verify`` and ``aiperf search replay``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from aiperf_hpc.cli import output
from aiperf_hpc.cli.parameters import (
    Json,
    Run,
    SigningKey,
    TrustOptions,
    key_of,
    path_option,
    run_named,
    value,
)
from aiperf_hpc.errors import UsageError
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths

if TYPE_CHECKING:  # They import scientific packages.
    from aiperf_hpc.rules.consistency.evidence import Evidence
    from aiperf_hpc.rules.rule import RuleResult
    from aiperf_hpc.verification.execution.outcome import Outcome


@dataclass(frozen=True)
class ReportOptions:
    """Other runs, the signature and the output of a report."""

    scaling: Annotated[list[Path] | None, value("RUN ...", run_named)] = None
    """Runs with other numbers of nodes, for a section on weak scaling."""
    key: SigningKey = None
    json: Json = False


def report(run: Run, chosen: ReportOptions) -> int:
    """Write a run's report, even during the run.

    Prints the path of the HTML page, the first reason for each violated rule, and the score. The
    page and `report/result.txt` list all reasons.

    Examples:
      $ aiperf report 20261121-101500-imagenet-3f2a
      $ aiperf report runs/16nodes --scaling runs/1node runs/4nodes
    """  # fmt: skip
    from aiperf_hpc.results.report.writer import RESULT_INDENT, reason_lines, write_report

    own = key_of(chosen.key)
    view = RunView(RunPaths(run))
    page = write_report(view, [RunPaths(folder) for folder in chosen.scaling or []], key=own)
    if chosen.json:
        output.say_document(view.paths.report_json.read_text("utf-8").rstrip())
        return 0
    for line in (f"Report           {output.shown_path(page)}", *reason_lines(view)):
        output.say_folded(line, RESULT_INDENT)
    return 0


UNOFFICIAL = 3
"""Exit status of ``aiperf verify --official`` for a consistent run that is not official."""


@dataclass(frozen=True)
class Execution:
    """Options of the re-execution of trials."""

    execute: Annotated[int | None, value("K", min=0)] = None
    """Re-execute K sampled trials and the best one."""
    seed: Annotated[str | None, value("TEXT")] = None
    """Seed for sampling. Default: from the signature, or random."""
    dataset: Annotated[str | None, value("DIR")] = None
    """Folder of the run's dataset on this machine."""
    time_limit: Annotated[float | None, value("SECONDS", min=1.0)] = None
    """Time limit in seconds."""


@dataclass(frozen=True)
class VerifyOptions:
    """The required verdict, and the format of the output."""

    official: bool = False
    """Exit with status 3 unless the result is official."""
    json: Json = False


def verify(run: Run, execution: Execution, trust: TrustOptions, chosen: VerifyOptions) -> int:
    """Verify a run: recompute its score from the records and re-execute sampled trials.

    The last three lines state what was established independently of the submitter, whether the
    records are consistent, and whether the result is official by the benchmark's rules.

    The exit status is 0 if the records are consistent and each re-executed trial matches them, else
    1. With --official, it is 3 instead of 0 if the result is not official. With --key, one of these
    keys must have signed the run. With --witness, one of these witnesses must have observed the
    run from start to end.

    Examples:
      $ aiperf verify 20261121-101500-imagenet-3f2a
      $ aiperf verify 20261121-101500-imagenet-3f2a --official
      $ aiperf verify last --key submitter.pub --witness witness.pub
      $ aiperf verify 20261121-101500-imagenet-3f2a --execute 3
    """
    from aiperf_hpc.verification.audit import check, evidence_of
    from aiperf_hpc.verification.verdict import verdict_of

    trusted = trust.read()
    view = RunView(RunPaths(run))
    evidence = evidence_of(view, trusted)
    results = check(evidence)
    outcome = _outcome(evidence, execution)
    verdict = verdict_of(view, trusted, results, outcome)
    if chosen.json:
        again = {} if outcome is None else {"execution": outcome.model_dump(mode="json")}
        output.say_json({**verdict.document(), "rules": [_rule(each) for each in results], **again})
    else:
        for result in results:
            _say_result(result)
        if outcome is not None:
            from aiperf_hpc.verification.execution.outcome import table

            output.say_lines(["", *table(outcome), ""])
        output.say(f"evidence: {verdict.assurance}")
        output.say(f"records: {verdict.records}")
        output.say(f"result: {verdict.result}")
    if not verdict.consistent:
        return 1
    return UNOFFICIAL if chosen.official and not verdict.official else 0


def _rule(result: RuleResult) -> dict[str, object]:
    return {
        "rule": result.rule,
        "passed": None if result.skipped else result.passed,
        "skipped": result.skipped,
        "checked": result.checked,
        "failures": result.failures,
        "notes": result.notes,
        "caution": result.caution,
    }


def _say_result(result: RuleResult) -> None:
    if result.skipped:
        output.say(f"skipped {result.rule:<12} {result.requirement}: {result.skipped}")
        return
    verdict = (result.caution or "PASSED") if result.passed else "FAILED"
    output.say(f"{verdict}  {result.rule:<12} {result.requirement} ({result.checked} checked)")
    for failure in result.failures[:10]:
        output.say(f"          {failure}")
    if len(result.failures) > 10:
        output.say(f"          and {len(result.failures) - 10} more")
    for note in result.notes[:10]:
        output.say(f"          note: {note}")


def _outcome(evidence: Evidence, execution: Execution) -> Outcome | None:
    """Return the result of the re-execution, if one is requested."""
    if execution.execute is None:
        for name in ("seed", "dataset", "time_limit"):
            if getattr(execution, name) is not None:
                raise UsageError(f"--{name.replace('_', '-')} requires --execute K")
        return None
    from aiperf_hpc.verification.execution.outcome import execute_again

    return execute_again(
        evidence, execution.execute, execution.seed, execution.dataset, execution.time_limit
    )


def replay(
    run: Run,
    plot: Annotated[
        Path | None, path_option("--plot", "FILE.svg", "Write a plot to FILE.svg.")
    ] = None,
    json: Json = False,
) -> int:
    """Compare the search's predictions with the outcomes.

    Examples:
      $ aiperf search replay 20261121-101500-imagenet-3f2a
      $ aiperf search replay 20261121-101500-imagenet-3f2a --plot search.svg
    """
    from aiperf_hpc.results.report.search_replay import replay_search, table

    view = RunView.read(RunPaths(run))
    found = replay_search(view)
    if plot is not None:
        from aiperf_hpc.results.report.plots.search import write_prediction_plot

        write_prediction_plot(found.candidates, plot)
    output.say_result(found, table(found), as_json=json)
    return 0


SEARCH = {"replay": replay}
"""Inspect a run's search."""
