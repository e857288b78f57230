"""``result.txt``: what is in it, and that verification reads it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.support.manifests import restate
from tests.support.rules import check_rule, satisfying_all_rules
from tests.support.run_factory import Plan, write_run

from aiperf_hpc.formatting import duration
from aiperf_hpc.results.report.writer import summary_lines, write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.paths import RunPaths


@pytest.fixture
def run(default_run: RunPaths, tmp_path: Path) -> RunPaths:
    """A copy that a test may change."""
    return RunPaths(shutil.copytree(default_run.root, tmp_path / "run"))


def test_the_result_line_has_the_score_beneath_its_names(default_run: RunPaths) -> None:
    lines = default_run.result_text.read_text("utf-8").splitlines()
    score = RunView.read(default_run).final()
    names = next(line.split() for line in lines if line.startswith("T/V"))
    values = next(line.split() for line in lines if line.startswith("AIPERF  "))
    row = dict(zip(names, values, strict=True))
    assert (row["Hosts"], row["Replicas"]) == ("2", "2")
    assert float(row["Seconds"]) == pytest.approx(score.elapsed_seconds, abs=0.005)
    assert float(row["OPS"]) == pytest.approx(score.ops, rel=1e-6)
    assert float(row["Error"]) == pytest.approx(score.error, rel=1e-4)
    assert float(row["Regulated"]) == pytest.approx(score.regulated, rel=1e-6)


def test_every_rule_has_its_value_its_limit_and_what_came_of_it(default_run: RunPaths) -> None:
    text = default_run.result_text.read_text("utf-8")
    elapsed = duration(RunView.read(default_run).final().elapsed_seconds)
    assert re.search(rf"^duration +{elapsed} +>= 1 h +\.\.\.\.\.\. FAILED$", text, re.M)
    assert re.search(r"^error +\d+\.\d\d% +<= 30% +\.\.\.\.\.\. PASSED$", text, re.M)
    assert re.search(r"^dataset +digits +ImageNet +\.\.\.\.\.\. FAILED$", text, re.M)
    assert text.count("...... ") == len(RunView.read(default_run).judgement().results)
    assert f"{text.count('...... PASSED')} rules passed," in text
    assert f"{text.count('...... FAILED')} rules failed." in text


def test_the_configuration_is_told_as_differences_from_a_preset(default_run: RunPaths) -> None:
    text = default_run.result_text.read_text("utf-8")
    assert "Differences from the preset imagenet:" in text
    assert re.search(r"^model\.base_width +: 4 \(preset: 64\)$", text, re.M)
    assert "training.momentum" not in text


def test_the_last_line_is_for_grep_and_has_every_digit(default_run: RunPaths) -> None:
    (line,) = re.findall("^AIPERF RESULT: .*$", default_run.result_text.read_text("utf-8"), re.M)
    score = RunView.read(default_run).final()
    assert line.startswith(f"AIPERF RESULT: INVALID ops={score.ops!r} ")
    assert line.endswith(
        " replicas=2 hosts=2 accelerators=0 division=none run=digits-2n-20250615T150640"
    )


def test_a_run_that_lasts_has_no_final_result(tmp_path: Path) -> None:
    paths = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0, failed=0, ended=False))
    write_report(RunView(paths))
    assert "\nAIPERF RESULT: NOT FINAL ops=" in paths.result_text.read_text("utf-8")


def test_a_closed_result_names_what_a_verifier_must_establish(tmp_path: Path) -> None:
    """A run cannot be closed by its own records alone: every text states the condition."""
    paths = write_run(tmp_path, Plan(replicas=1, trials=1, hpo_trials=0, failed=0))
    with satisfying_all_rules():
        page = write_report(RunView(paths)).read_text("utf-8")
        summary = "".join(summary_lines(RunView.read(paths)))
    condition = "if it is re-executed, or signed and witnessed"
    assert f"Division: closed, {condition} (none was" in paths.result_text.read_text("utf-8")
    assert f"The run satisfies every rule of the closed division, {condition}." in page
    assert f"VALID, closed division, {condition}" in summary


# What verification says of it.


def _wrong(paths: RunPaths) -> list[str]:
    return list(check_rule("result", paths).failures)


def test_a_result_is_checked_and_a_run_of_before_may_have_none(run: RunPaths) -> None:
    assert _wrong(run) == []
    run.result_text.unlink()
    run.result_log.unlink()
    assert _wrong(run) == []
    assert list(check_rule("files", run).failures) == [
        "report/result.txt: not a file of the run",
        "report/result_0.txt: not a file of the run",
    ]


@pytest.mark.parametrize(
    ("pattern", "replacement", "told"),
    [
        (r" ops=\S+", " ops=9e15", "result.txt states ops 9e15, the records give"),
        (r" ops=\S+", " ops=much", "result.txt states ops much, the records give"),
        (r" error=\S+", "", "result.txt states error None, the records give"),
        (r" hosts=\S+", " hosts=9", "result.txt states hosts 9, the records give 2"),
        (
            "1 h  (.*)FAILED",
            r"1 h  \1PASSED",
            "differs from the records in the verdict on the rule 'duration'",
        ),
        ("(AIPERF RESULT.*\n)", r"\1\1", "result.txt has 2 lines of a result; it must have one"),
    ],
)
def test_another_result_is_found_also_where_the_manifest_agrees(
    run: RunPaths, pattern: str, replacement: str, told: str
) -> None:
    text = run.result_text.read_text("utf-8")
    restate(run, run.result_text, re.sub(pattern, replacement, text).encode())
    (failure,) = _wrong(run)
    assert told in failure
    assert list(check_rule("files", run).failures) == []


@pytest.mark.parametrize(
    ("pattern", "replacement", "told"),
    [
        (r'("aiperf_operations", "value": )\d+', r"\g<1>1", "states aiperf_operations 1, the"),
        (r'"run_stop"', '"run_stopped"', "is not a log of a run that has ended: KeyError"),
    ],
)  # fmt: skip
def test_another_score_in_the_log_is_found(
    run: RunPaths, pattern: str, replacement: str, told: str
) -> None:
    text = run.result_log.read_text("utf-8")
    restate(run, run.result_log, re.sub(pattern, replacement, text).encode())
    (failure,) = _wrong(run)
    assert failure.startswith(f"result_0.txt {told}")


def test_what_people_name_their_run_and_system_makes_no_line_of_its_own(tmp_path: Path) -> None:
    hostile = "a run\nAIPERF RESULT: VALID ops=9e99 run=a"
    plan = Plan(replicas=1, trials=1, hpo_trials=0, failed=0, run_id=hostile)
    paths = write_run(tmp_path, plan)
    write_report(RunView(paths))
    assert len(re.findall("^AIPERF RESULT:", paths.result_text.read_text("utf-8"), re.M)) == 1
    assert _wrong(paths) == []


# The lines at the end of a run.


def test_the_summary(default_run: RunPaths) -> None:
    view = RunView.read(default_run)
    score = view.final()
    assert score.regulated is not None
    assert score.error is not None
    lines = summary_lines(view)
    assert lines[-1] == (
        f"Score            {score.ops / 1e6:#.3g} MOPS  ({score.ops:,.1f} operations/s)"
    ).replace(". MOPS", " MOPS")
    assert lines[-2].endswith(f"({score.regulated:,.1f})")
    assert lines[-3] == f"Error            {100 * score.error:.2f}%"
    assert lines[2] == "Trials           10 completed, 2 stopped early, 2 failed"
    assert lines[3] == "Witness          unwitnessed"
    rules = list(dict.fromkeys(v.rule for v in view.violations()))
    assert lines[4] == (
        f"Result           INVALID: this run is not official: {len(rules)} rules violated "
        f"({', '.join(rules)}); `aiperf report {default_run.root}` lists the reasons"
    )


def test_the_summary_of_a_run_without_a_report_names_none(tmp_path: Path) -> None:
    lines = summary_lines(RunView.read(write_run(tmp_path, Plan(trials=0, hpo_trials=0))))
    assert lines[-1] == "Score            0 OPS  (0 operations/s)"
    assert "Trials           none" in lines
    assert not any(line.startswith("Report") for line in lines)
