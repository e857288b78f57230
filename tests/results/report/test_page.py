"""The page of the report: well-formed, self-contained, and what it shows of runs of any kind."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import START, Clock
from tests.support.pages import check_page
from tests.support.reports import document_of, reported
from tests.support.run_factory import (
    Plan,
    Worker,
    write_manifest,
    write_run,
)

from aiperf_hpc.errors import JournalError
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.results.report import html
from aiperf_hpc.results.report.document import Report
from aiperf_hpc.results.report.provenance import ReportManifest
from aiperf_hpc.results.report.writer import summary_lines, write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.paths import RunPaths

SMALL = Plan(replicas=1, trials=1, hpo_trials=0, failed=0)
HOSTILE = "<script>alert('1')</script>\"><img src=x onerror=alert(2)>&amp;"


def test_the_page_is_whole_has_the_exact_numbers_and_needs_nothing_else(
    page: str, document: dict[str, Any]
) -> None:
    parsed = check_page(page)
    patterns = {attributes["id"] for attributes in parsed.named("pattern")}
    assert patterns == set(re.findall(r"fill: url\(#([^)]*)\)", page))
    assert len(parsed.named("caption")) == len(parsed.named("table"))
    words = parsed.words
    assert "INVALID" in words
    assert "digits; ImageNet is required" in words
    assert "Content-Security-Policy" in page
    assert {"h2", "h3", "svg", "details"} <= {each.tag for each in parsed.elements}
    assert f"{document['score']['operations']:,}" in page
    assert f"{document['score']['ops']:,.1f}" in page
    assert f"{document['score']['regulated']:,.1f}" in page
    for trial in document["trials"]:
        assert page.count(f">{trial['id']}<") >= 2  # in the table, and in the tree
    # Score, regulated score, error; what was expected; learning curves, hyperparameters.
    assert len(parsed.named("figure")) == 6
    uses = [a["xlink:href"] for a in parsed.named("use")]
    for name in ("ops", "regulated", "error"):
        # One mark a point and one more on the last; ticks are drawn with marks, too.
        counts = Counter(use for use in uses if use.startswith(f"#{name}-"))
        points = [p for p in document["series"] if name != "regulated" or p["error"] is not None]
        assert len(points) in counts.values()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    plan = Plan(replicas=1, failure=HOSTILE, run_id=HOSTILE)
    document, text, paths = reported(tmp_path, plan)
    parsed = check_page(text)
    assert document["trials"][-1]["reason"] == HOSTILE
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert HOSTILE in "".join(parsed.text)
    assert parsed.named("h1") == [{}]
    with Worker(paths, "r0", RunView(paths).manifest.config) as worker:
        worker.write(records.SearchFailed(reason=HOSTILE))
        worker.journal.append(records.ProposalRejected(proposal=HOSTILE, reason=HOSTILE))
    check_page(write_report(RunView(paths)).read_text("utf-8"))


def test_waits_for_storage_are_in_the_report_with_their_times(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=2, trials=5))
    why = f"cannot write {HOSTILE}: No space left on device"
    waits = [
        records.StorageWaited(started_utc=START + began, seconds=seconds, reason=why)
        for began, seconds in ((100.0, 33.0), (60.0, 7.5))
    ]
    with JournalWriter(paths.primary_journal, clock=Clock()) as journal:
        journal.append(waits[0])
    with Worker(paths, "r1", RunView(paths).manifest.config) as worker:
        for wait in waits:
            worker.write(wait)
    text = write_report(RunView(paths)).read_text("utf-8")
    primary, replica = document_of(paths)["storage"]
    assert (primary["component"], primary["seconds"], len(primary["waits"])) == ("primary", 33.0, 1)
    assert (replica["component"], replica["seconds"]) == ("r1", 40.5)
    assert [(w["started_seconds"], w["seconds"]) for w in replica["waits"]] == [
        (60.0, 7.5),
        (100.0, 33.0),
    ]
    words = check_page(text).words
    assert "primary: 33.0 s; 33.0 s from 1 min 40 s after the start, cannot write" in words
    view = RunView.read(paths)
    line = "Storage          waited for: primary 33.0 s, r1 40.5 s"
    assert line in summary_lines(view)


def test_a_run_that_has_not_started(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    write_manifest(paths, Plan())
    text = write_report(RunView(paths)).read_text("utf-8")
    parsed = check_page(text)
    document = document_of(paths)
    assert document["started"] is None
    assert document["series"] == []
    assert document["best"] is None
    assert "The run has not started." in parsed.words


def test_a_run_that_did_nothing(tmp_path: Path) -> None:
    document, text, _ = reported(tmp_path, Plan(trials=0, hpo_trials=0))
    check_page(text)
    assert document["score"]["operations"] == 0
    assert document["score"]["regulated"] is None
    assert document["trials"] == []


def test_a_run_without_an_evaluation(tmp_path: Path) -> None:
    document, text, paths = reported(tmp_path, Plan(replicas=1, evaluated=False))
    parsed = check_page(text)
    assert document["score"]["operations"] > 0
    assert document["score"]["error"] is None
    assert document["best"] is None
    assert len(parsed.named("figure")) == 1
    lines = summary_lines(RunView.read(paths))
    assert "Regulated score  none: no evaluation was completed" in lines


def test_an_error_of_zero(tmp_path: Path) -> None:
    document, text, _ = reported(tmp_path, Plan(replicas=1, ceiling=9.0))
    parsed = check_page(text)
    score = document["score"]
    assert (score["error"], score["regulated_error"]) == (0.0, 1 / 360)
    assert score["regulated"] == pytest.approx(math.log(360) * score["ops"])
    words = parsed.words
    assert "counts as one validation sample" in words


def test_a_run_that_is_still_going(tmp_path: Path) -> None:
    document, text, _ = reported(tmp_path, Plan(ended=False))
    parsed = check_page(text)
    assert document["final"] is False
    assert {"rule": "duration", "reason": "the run has not ended"} in document["violations"]
    words = parsed.words
    assert "Not final." in words
    assert "INVALID so far" in words
    assert document["trials_by_state"]["training"] == 2


def test_a_torn_journal_and_a_corrupt_line(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    journal = paths.replica_journal("r1")
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[5] = b"\x00garbage <b>\n"
    journal.write_bytes(b"".join(lines) + b'{"v":2,"seq":')
    journal.with_name("journal.jsonl.torn-123").write_bytes(b'{"v":')
    text = write_report(RunView(paths)).read_text("utf-8")
    check_page(text)
    document = document_of(paths)
    (problem,) = document["problems"]["journals"]
    assert problem.startswith("replicas/r1/0.0/journal.jsonl, line 6: not a record")
    assert document["problems"]["torn"] == ["replicas/r1/0.0/journal.jsonl"]
    assert document["problems"]["set_aside"] == ["replicas/r1/0.0/journal.jsonl.torn-123"]
    assert "records" in {b["rule"] for b in document["violations"]}
    assert "replicas/r1/0.0/journal.jsonl, line 6" in text
    manifest = ReportManifest.model_validate_json(paths.report_manifest.read_bytes())
    (file,) = [f for f in manifest.files if f.path == "replicas/r1/0.0/journal.jsonl"]
    assert file.bytes == journal.stat().st_size == len(b"".join(lines)) + 13


def test_a_run_whose_primarys_journal_is_lost_has_no_report(tmp_path: Path) -> None:
    paths = write_run(tmp_path)
    paths.primary_journal.unlink()
    with pytest.raises(JournalError, match=r"journal\.jsonl: missing; restore it"):
        write_report(RunView(paths))


def test_a_large_run_stays_small_and_quick(tmp_path: Path) -> None:
    """300 trials and 10,000 score points."""
    plan = Plan(
        replicas=20,
        trials=15,
        hpo_trials=12,
        failed=2,
        epoch_seconds=300.0,
        config={"score": {"interval_hours": 5e-4}},
    )
    paths = write_run(tmp_path, plan)
    begin = time.process_time()
    text = write_report(RunView(paths)).read_text("utf-8")
    seconds = time.process_time() - begin
    document = document_of(paths)
    assert len(document["trials"]) == 300
    assert len(document["series"]) >= 8_000
    assert len(text) < 5_000_000
    assert seconds < 20.0
    parsed = check_page(text)
    assert len(parsed.named("use")) < 1_200
    assert "report.json has all" in text


def test_a_page_of_many_trials_keeps_the_best_and_their_ancestors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "MOST_ROWS", 5)
    monkeypatch.setattr(html, "MOST_REPLICAS", 2)
    document, text, _ = reported(tmp_path, Plan(replicas=3))
    parsed = check_page(text)
    rows = sum("id" in attributes for attributes in parsed.named("tr"))
    assert 5 <= rows < len(document["trials"])
    shown = {t.id: t for t in html._kept(Report.model_validate(document).trials, ACCURACY)}
    assert len(shown) == rows
    assert all(t.parent in shown for t in shown.values() if t.parent is not None)
    assert f">{document['best']['trial']}<" in text
    assert "2 of 3 replicas" in text


def test_the_page_has_command_differences_rules_and_links_to_what_it_was_made_from(
    tmp_path: Path,
) -> None:
    paths = write_run(tmp_path, SMALL)
    command = "aiperf start --nodes 1 --set 'a=<b>'"
    manifest = RunView(paths).manifest.model_copy(update={"command": command})
    manifest.save(paths)
    text = write_report(RunView(paths)).read_text("utf-8")
    assert "aiperf start --nodes 1 --set &#39;a=&lt;b&gt;&#39;</pre>" in text
    assert f"Command  : {command}\n" in paths.result_text.read_text("utf-8")
    assert "<code>model.base_width</code></th><td>4</td><td>64</td>" in text
    assert "</td><td>&gt;= 1 h</td><td>no</td>" in text
    links = re.findall(r'<a href="\.\./([^"#]+)"', text)
    assert set(links) == {"run.yaml", *(str(p.relative_to(paths.root)) for p in paths.journals())}
    assert all((paths.report / ".." / link).exists() for link in links)
