"""What happens to honest runs contradicts no rule: suspended machines, clocks that are set."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks import synthetic_run
from tests.support.host_clocks import clocks

from aiperf_hpc.results.report.writer import write_report
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.rules.registry import CONSISTENCY
from aiperf_hpc.rules.rule import RuleResult
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import NodeChecked
from aiperf_hpc.verification.audit import verify

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| `(tests/[^|`]+\.py)::(test_\w+)` \|$", re.MULTILINE)
Line = dict[str, Any]


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return synthetic_run.write_run(tmp_path / "run", 3, distinct=2).paths


def read(path: Path) -> list[Line]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write(path: Path, lines: list[Line]) -> None:
    numbered = [line | {"seq": number} for number, line in enumerate(lines)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in numbered), "utf-8")


def step(paths: RunPaths, replica: str, seconds: float) -> None:
    """Set the clock of a replica's host, in the middle of the run."""
    half = read(paths.replica_journal(replica))
    at = half[len(half) // 2]["utc"]
    for path in (paths.replica_journal(replica), paths.search_journal(replica, 0)):
        lines = read(path)
        for line in lines:
            line["utc"] += seconds if line["utc"] > at else 0.0
        write(path, lines)


def read_clocks(paths: RunPaths) -> None:
    """Let all processes that read their clocks have done so, at their start and end."""
    for path in (paths.primary_journal, *(paths.replica_journal(f"r{n}") for n in range(3))):
        first, *others, last = read(path)
        readings = [
            line | {"event": clocks(line["utc"], line["mono"]).model_dump(mode="json")}
            for line in (first, last)
        ]
        write(path, [first, readings[0], *others, readings[1], last])


def found(paths: RunPaths) -> dict[str, RuleResult]:
    """Return what verify finds of the run, whose report is made once more."""
    shutil.rmtree(paths.report, ignore_errors=True)
    write_report(RunView(paths))
    return {finding.rule: finding for finding in verify(RunView(paths))}


def failed(paths: RunPaths) -> set[str]:
    return {rule for rule, finding in found(paths).items() if not finding.passed}


@pytest.mark.parametrize("seconds", [300.0, 40.0])
def test_a_machine_that_was_suspended_or_whose_clock_was_set_forward_is_noted(
    run: RunPaths, seconds: float
) -> None:
    step(run, "r0", seconds)
    assert failed(run) == set()
    (trainer, *_) = found(run)["clocks"].notes
    assert trainer.endswith("the clock was set, or its machine suspended")
    assert f"{seconds:.3f} s off" in trainer


def test_a_clock_that_was_set_back_is_noted_if_its_readings_show_it(run: RunPaths) -> None:
    step(run, "r0", -40.0)
    assert "clocks" in failed(run)
    read_clocks(run)
    assert failed(run) == set()
    (said,) = found(run)["timekeeping"].notes
    assert re.search(r"UTC ran \S+ s while the kernel grew \S+ s older", said)


@pytest.mark.parametrize("seconds", [30.0, -30.0])
def test_hosts_whose_clocks_are_apart_by_what_the_primary_saw_break_no_rule(
    run: RunPaths, seconds: float
) -> None:
    for path in (run.replica_journal("r0"), run.search_journal("r0", 0)):
        write(path, [line | {"utc": line["utc"] + seconds} for line in read(path)])
    started = read(run.replica_journal("r0"))[0]
    host = started["event"]["machine"]["host"]
    checked = NodeChecked(replica="r0", host=host, clock_ahead_seconds=seconds)
    lines = read(run.primary_journal)
    at = next(n for n, line in enumerate(lines) if line["utc"] > started["utc"] + 30.0)
    lines.insert(at, lines[at] | {"event": checked.model_dump(mode="json")})
    write(run.primary_journal, lines)
    assert failed(run) == set()


def test_each_rule_has_a_row_whose_test_exists() -> None:
    rows = ROW.findall((ROOT / "docs" / "trust.md").read_text("utf-8"))
    assert [rule for rule, *_ in rows] == [rule.name for rule in CONSISTENCY]
    for _, _, file, name in rows:
        assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8")
