"""All runs in a folder: which there are, what is said of each, and what is read for that."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import START, Clock
from tests.support.command import aiperf, printed
from tests.support.damage import empty, without_start
from tests.support.run_factory import Plan, Primary, write_manifest, write_run

from aiperf_hpc.cli.parameters import run_named
from aiperf_hpc.errors import RunDirectoryError
from aiperf_hpc.primary.control.controller import INTERRUPTED
from aiperf_hpc.results.views.run_catalog import (
    ListedRun,
    RunList,
    RunSummary,
    latest_run,
    read_runs,
)
from aiperf_hpc.results.views.run_view import RunState, RunView
from aiperf_hpc.run import records
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.streams import width

PLAN = Plan(replicas=1, trials=2, hpo_trials=0, failed=0, epochs=1)
HEARTBEAT = records.PrimaryHeartbeat()


def begin(paths: RunPaths, hours_later: float) -> None:
    """Write a run that began and has no end."""
    write_manifest(paths, PLAN)
    with Primary(paths, PLAN, Clock(START + 3600.0 * hours_later)) as primary:
        primary.start()


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder with runs in several states, and with what is none."""
    ended = write_run(tmp_path / "ended", PLAN)
    ended.report.mkdir()
    ended.report_summary.write_text(RunSummary.of(RunView.read(ended)).model_dump_json())
    begin(RunPaths(tmp_path / "series" / "1"), 1.0)
    write_manifest(RunPaths(tmp_path / "unstarted"), PLAN)
    for name in ("photographs", ".hidden", "damaged"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("no folder at all")
    (tmp_path / "damaged" / "run.yaml").write_text("nodes: none\n")
    return tmp_path


def test_every_run_is_listed_the_latest_first_and_nothing_else(runs: Path) -> None:
    found = read_runs(runs)
    states = [(row.name, row.state) for row in found.runs]
    assert states == [
        ("unstarted", RunState.STARTING),
        ("series/1", RunState.SILENT),
        ("ended", RunState.ENDED),
    ]
    assert [row.started_utc for row in found.runs] == [None, START + 3600.0, START]
    assert found.foreign == ("photographs",)
    (damaged,) = found.unreadable
    assert (damaged.name, "run.yaml" in damaged.reason) == ("damaged", True)


def test_an_ended_run_is_its_reports_summary_and_no_journal_is_read(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = RunSummary.of(RunView.read(RunPaths(runs / "ended")))
    assert expected.score.ops == pytest.approx(RunView.read(RunPaths(runs / "ended")).final().ops)
    assert not expected.valid
    assert "dataset" in expected.violated_rules
    monkeypatch.setattr(RunView, "refresh", lambda self: pytest.fail(f"{self.paths.root} is read"))
    assert read_runs(runs / "ended").runs == (ListedRun(**dict(expected)),)


def test_without_its_summary_an_ended_run_is_read(runs: Path) -> None:
    paths = RunPaths(runs / "ended")
    summarized = read_runs(paths.root)
    paths.report_summary.write_text("{")
    assert read_runs(paths.root) == summarized


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"cannot list the runs in .*/none: No such file"):
        read_runs(tmp_path / "none")


def test_last_is_the_run_that_was_started_last(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(runs / "unstarted" / "run.yaml", (START - 1.0, START - 1.0))
    os.utime(runs / "damaged" / "run.yaml", (START - 1.0, START - 1.0))
    assert latest_run(runs) == run_named(str(runs / "last")) == runs / "series" / "1"
    (runs / "runs").symlink_to(runs / "series")
    monkeypatch.chdir(runs)
    assert run_named("last") == Path("runs/1")
    (runs / "last").mkdir()  # A folder of that name is itself.
    assert run_named("last") == Path("last")
    with pytest.raises(RunDirectoryError, match="no run in .*photographs; name a run"):
        run_named(str(runs / "photographs" / "last"))


@pytest.mark.parametrize("columns", [40, 80])
def test_the_list_fits_the_window(
    columns: int, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(runs)
    done = aiperf("list", ".")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert max(map(width, lines)) <= columns
    assert "1 folder is not a run: photographs" in done.stderr
    assert "damaged cannot be read: " in done.stderr
    if columns == 80:
        assert lines[0].split()[:2] == ["run", "state"]
        assert lines[3].split()[:2] == ["ended", "ended"]


def test_the_list_is_a_line_for_each_run_where_no_terminal_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    names = [f"20250615-150640-{'long' * 30}-{number}" for number in range(3)]
    for name in names:
        write_run(tmp_path / "runs" / name, PLAN)
    lines = printed("list").splitlines()
    assert lines[0].split() == [
        "run", "state", "started", "hours", "replicas", "hosts", "score", "error", "valid",
    ]  # fmt: skip
    assert sorted(line.split()[0] for line in lines[1:]) == names
    assert lines[1].split()[1:4] == ["ended", "2025-06-15", "15:06"]


def test_every_name_in_the_list_is_a_name_for_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_run(tmp_path / "runs" / "20250615-150640-resnet50_v15_laptop-f67e", PLAN)
    write_run(tmp_path / "runs" / "series" / "1", PLAN)
    write_run(tmp_path / "elsewhere" / "mine", PLAN)
    for folder in ("runs", "elsewhere"):
        for line in printed("list", folder).splitlines()[1:]:
            name = line.split()[0]
            assert run_named(name).joinpath("run.yaml").exists()
            # Below another folder than runs it is listed with its path; its name is its folder's.
            own = name.removeprefix("elsewhere/")
            assert printed("status", name).startswith(f"{own}: ended (")
    assert run_named("series/last") == Path("runs/series/1")


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (INTERRUPTED, "stopped"),
        ("stopped by the service", "stopped"),
        ("all replicas failed: exit status 1", "failed"),
        (records.TRAININGS_DONE, "ended"),
    ],
)
def test_a_run_that_ended_before_its_time_is_listed_as_that(
    reason: str, state: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "mine", replace(PLAN, end_reason=reason)).root
    assert printed("list", tmp_path).splitlines()[1].split()[1] == state
    assert f": {state} ({reason})" in printed("status", run).splitlines()[0]


@pytest.mark.parametrize("damage", [without_start, empty])
def test_a_run_without_the_record_of_its_start_is_unreadable(
    runs: Path, damage: Callable[[Path], None]
) -> None:
    write_run(runs / "lost", PLAN)
    damage(RunPaths(runs / "lost").primary_journal)
    reason = "lost/primary/journal.jsonl: damaged: it has no record of the run's start"
    listed = aiperf("list", runs)
    states = [line.split()[1] for line in listed.stdout.splitlines() if "lost" in line]
    assert states == ["unreadable"]
    assert listed.stderr.count("cannot be read") == 2
    assert reason in listed.stderr
    assert f"{runs}/lost,unreadable,,,,,,,,,\n" in printed("list", runs, "--csv")
    for command in ("status", "report", "stop"):
        done = aiperf(command, runs / "lost")
        assert (done.returncode, done.stdout) == (1, "")
        assert reason in done.stderr


def test_the_list_as_json(runs: Path) -> None:
    said = RunList.model_validate_json(printed("list", runs, "--json"))
    assert [row.name for row in said.runs] == ["unstarted", "series/1", "ended"]
    assert said.runs[2].score.ops > 0.0
