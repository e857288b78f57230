"""Forgeries of the report and its texts, with their SHA-256 in the manifest made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.forgery.forger import ForgedRun, forgery
from tests.support.manifests import restate


def _restate(run: ForgedRun, change: Callable[[dict[str, Any]], object]) -> None:
    """Change ``report.json``."""
    report = json.loads(run.paths.report_json.read_text("utf-8"))
    change(report)
    content = f"{json.dumps(report, indent=1)}\n".encode()
    restate(run.paths, run.paths.report_json, content)


@forgery("report", "report", base="reported")
def another_score_in_the_report(run: ForgedRun) -> None:
    _restate(run, lambda report: report["score"].update(ops=1.49e15))


@forgery("report", "report", base="reported")
def another_verdict_in_the_report(run: ForgedRun) -> None:
    _restate(run, lambda report: report.update(valid=True, invalid=[]))


@forgery("report", "report", base="reported")
def more_operations_of_a_trial_in_the_report(run: ForgedRun) -> None:
    _restate(run, lambda report: report["trials"][0].update(operations=10**18))


@forgery("report", "report", base="reported")
def a_trial_less_in_the_report(run: ForgedRun) -> None:
    _restate(run, lambda report: report["trials"].pop())


@forgery("report", "report", base="reported")
def more_nodes_in_the_report(run: ForgedRun) -> None:
    _restate(run, lambda report: report.update(nodes=300))


@forgery("report", "report", base="reported")
def a_page_that_says_valid(run: ForgedRun) -> None:
    page = run.paths.report_html.read_bytes()
    restate(run.paths, run.paths.report_html, page.replace(b"INVALID", b"VALID"))


@forgery("report", "result", base="reported")
def a_text_that_says_valid(run: ForgedRun) -> None:
    text = run.paths.result_text.read_bytes()
    restate(run.paths, run.paths.result_text, text.replace(b"RESULT: INVALID", b"RESULT: VALID"))


@forgery("report", "result", base="reported")
def another_score_in_the_log(run: ForgedRun) -> None:
    text = run.paths.result_log.read_text("utf-8")
    head, mark, rest = text.partition('"key": "aiperf_ops", "value": ')
    restate(run.paths, run.paths.result_log, f"{head}{mark}9{rest}".encode())


@forgery("report", "report", base="reported")
def another_line_in_the_list_of_runs(run: ForgedRun) -> None:
    text = run.paths.report_summary.read_bytes()
    restate(run.paths, run.paths.report_summary, text.replace(b"simulated-3n", b"the-best-run"))
