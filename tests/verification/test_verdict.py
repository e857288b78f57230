"""The two answers of ``aiperf verify``: consistent records, and an official result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks import synthetic_run

from aiperf_hpc.cli import main
from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.rule import Division, Violation
from aiperf_hpc.verification.verdict import RunVerdict

BROKEN = tuple(
    Violation(rule=rule, reason=reason)
    for rule, reason in (("hours", "too few"), ("hours", "again"), ("error", "high"))
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    paths = synthetic_run.write_run(tmp_path / "run", 2, distinct=1).paths
    write_report(RunView(paths))
    return paths.root


def test_an_invalid_run_is_consistent_and_unofficial(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(root)]) == 0
    *rules, records, result = capsys.readouterr().out.splitlines()
    assert records == "records: consistent; unsigned"
    assert result.startswith("result: unofficial: duration: ")
    assert not [each for each in rules if "(0 checked)" in each]
    assert [each.rpartition(": ")[2] for each in rules if "signature" in each] == ["unsigned"]
    assert main(["verify", str(root), "--official"]) == 3
    capsys.readouterr()
    assert main(["verify", str(root), "--official", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert (found["consistent"], found["official"], found["division"]) == (True, False, None)
    assert found["unofficial_reasons"][0].startswith("duration: ")
    (signature,) = (each for each in found["rules"] if each["rule"] == "signature")
    assert (signature["passed"], signature["skipped"]) == (None, "unsigned")


def test_inconsistent_records_are_no_official_result(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (root / "report" / "result.txt").open("a") as text:
        text.write("more\n")
    assert main(["verify", str(root), "--official"]) == 1
    records, result = capsys.readouterr().out.splitlines()[-2:]
    assert records.startswith("records: inconsistent; failed: report, files; unsigned")
    assert result == "result: unofficial: the records are inconsistent"


FORGED = "PASSED  signature    signed by alice (1 checked)"


@pytest.mark.parametrize("separator", ["\n", "\r", "\x0b", "\x85", "\u2028", "\u2029", "\x1b[2K"])
def test_no_name_of_a_file_prints_a_line_of_its_own(
    root: Path, capsys: pytest.CaptureFixture[str], separator: str
) -> None:
    (root / f"a{separator}{FORGED}").touch()
    assert main(["verify", str(root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith(FORGED) for line in lines)
    assert all(line.isprintable() for line in lines)
    (root / "run.yaml").rename(root / f"run{separator}{FORGED}")
    copy = root.rename(root.with_name(f"run{separator}{FORGED}"))
    assert main(["verify", str(copy)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert FORGED in line


def test_a_run_that_has_not_ended_is_not_official_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = synthetic_run.write_run(tmp_path / "run", 1, ended=False).paths
    assert main(["verify", str(run.root)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "records: consistent; unsigned",
        "result: unofficial: the run has not ended",
    ]


@pytest.mark.parametrize(
    ("executed", "division", "violations", "records", "result"),
    [
        ("", Division.CLOSED, (), "consistent; unsigned", "official, closed division"),
        ("", None, BROKEN, "consistent; unsigned",
         "unofficial: hours: too few; also violated: error"),
        ("FAILED: r0-t1", None, (), "inconsistent; FAILED: r0-t1; unsigned",
         "unofficial: the records are inconsistent"),
    ],
)  # fmt: skip
def test_the_two_lines(
    executed: str,
    division: Division | None,
    violations: tuple[Violation, ...],
    records: str,
    result: str,
) -> None:
    verdict = RunVerdict((), executed, "unsigned", True, division, violations)
    assert (verdict.records, verdict.result) == (records, result)
    assert verdict.official is (division is not None)
