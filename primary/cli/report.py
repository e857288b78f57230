"""What came of a run: ``aiperf report``, ``aiperf verify`` and ``aiperf search replay``."""

from __future__ import annotations

import argparse
from pathlib import Path

from aiperf_hpc.primary.cli.output import say, say_document, say_json
from aiperf_hpc.primary.cli.parser import Commands, Parser, add_for_run
from aiperf_hpc.primary.monitor.run_view import RunView
from aiperf_hpc.run.paths import RunPaths


def add(commands: Commands) -> None:
    """Add ``report`` and ``verify``."""
    report = add_for_run(commands, "report", _report, "write a run's report, also while it lasts")
    report.add_argument(
        "--scaling", nargs="+", type=Path, default=[], metavar="RUN",
        help="runs of other sizes, for a section on weak scaling",
    )  # fmt: skip
    add_for_run(commands, "verify", _verify, "recount a run from its own records")


def add_search(commands: Commands) -> None:
    """Add ``search``."""
    search = commands.add_parser("search", help="look at how a run searched")
    actions = search.add_subparsers(metavar="ACTION", required=True, parser_class=Parser)
    replay = actions.add_parser("replay", help="what the search expected, and what came of it")
    replay.add_argument("run", type=Path, metavar="RUN", help="the run directory")
    replay.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw it into a file")
    replay.add_argument("--json", action="store_true", help="print JSON")
    replay.set_defaults(command=_search_replay)


def _report(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.report.writer import write_report

    view = RunView(RunPaths(options.run))
    page = write_report(view, [RunPaths(folder) for folder in options.scaling])
    if options.json:
        say_document(view.paths.report_json.read_text("utf-8").rstrip())
    else:
        say(str(page))
    return 0


def _verify(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.verify.audit import verify

    view = RunView(RunPaths(options.run))
    findings = verify(view)
    ended = view.history.end_utc is not None
    passed = all(finding.passed for finding in findings)
    if options.json:
        rules = [
            {"rule": f.rule, "passed": f.passed, "checked": f.checked, "failures": f.failures}
            for f in findings
        ]
        say_json({"passed": passed, "ended": ended, "rules": rules})
        return 0 if passed else 1
    for finding in findings:
        verdict = "PASSED" if finding.passed else "FAILED"
        say(f"{verdict}  {finding.rule:<12} {finding.checks} ({finding.checked} checked)")
        for failure in finding.failures[:10]:
            say(f"          {failure}")
        if len(finding.failures) > 10:
            say(f"          and {len(finding.failures) - 10} more")
    failed = [finding.rule for finding in findings if not finding.passed]
    view_end = "" if ended else "; the run has not ended, so that its score is not final"
    say(
        f"PASSED: the score equals the recount{view_end}"
        if passed
        else f"FAILED: {', '.join(failed)}{view_end}"
    )
    return 0 if passed else 1


def _search_replay(options: argparse.Namespace) -> int:
    from aiperf_hpc.primary.report.search_replay import replay_search, table

    view = RunView(RunPaths(options.run))
    view.refresh()
    replay = replay_search(view)
    if options.plot is not None:
        from aiperf_hpc.primary.report.plots.search import write_prediction_plot

        write_prediction_plot(replay.candidates, options.plot)
    if options.json:
        say_document(replay.model_dump_json(indent=1))
    else:
        say("\n".join(table(replay)))
    return 0
