"""``aiperf start --repeat``: what it starts, what it records, when it ends and what it says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.run_factory import DATASET, Grown, Plan, Primary, Worker, initial_graph

from aiperf_hpc.cli import main, repeat, start
from aiperf_hpc.errors import AIPerfError, UsageError
from aiperf_hpc.run import records
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import RoundPhase

START = ("start", "--nodes", "1", "--hours", "0.02", "--launcher", "local", "--yes")
PEAKS = ("aiperf_hpc.cli", "peaks")


def _trained(manifest: RunManifest, paths: RunPaths, *_: object, **__: object) -> int:
    """Write the records of a run of 72 s and more, which is slower with each seed."""
    with Primary(paths, Plan(replicas=1, run_id=manifest.run_id, hours=0.02)) as primary:
        primary.start()
        with Worker(paths, "r0", manifest.config) as worker:
            worker.start(DATASET)
            trial = worker.begin(Grown(initial_graph(manifest.config)), RoundPhase.WARMUP, 1)
            worker.write(records.TrainingStarted(trial=trial), after=2.0)
            worker.train(trial, 1, 80.0 + manifest.config.seed)
            worker.evaluate(trial, 1, 300, 4.0)
            primary.clock.now = worker.clock.now
        primary.end("the run's time is over")
    return 0


class Runs:
    """Repeated runs, each played by a function in the place of its primary."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "runs"
        self.plays: list[Callable[..., int]] = []
        self.peaks: list[tuple[str | None, str]] = []
        self.seeds: list[int] = []
        monkeypatch.setattr(start, "describe_dataset", lambda config: DATASET)
        monkeypatch.setattr(start, "conduct_run", self._conduct)
        monkeypatch.setattr(repeat, "_output_of", self._said)

    def _conduct(self, manifest: RunManifest, *arguments: object, **options: object) -> int:
        play: Callable[..., int] = self.plays[len(self.seeds)] if self.plays else _trained
        self.seeds.append(manifest.config.seed)
        status: int = play(manifest, *arguments, **options)
        return status

    def _said(self, command: list[str]) -> tuple[str | None, str]:
        assert tuple(command[2:4]) == PEAKS
        return self.peaks.pop(0) if self.peaks else (None, "no such command")

    def start(self, *options: str) -> int:
        command = [*START, "--config", "quickstart", "--run-dir", str(self.folder)]
        return main([*command, *options])

    def outcomes(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "repeat.json").read_text())
        return found


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


def test_runs_differ_in_their_seeds_and_are_compared(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # In fewer, long figures leave names less room.
    assert runs.start("--repeat", "3", "--set", "seed=7") == 0
    assert runs.seeds == [7, 8, 9]
    said = capsys.readouterr().out
    unfolded = " ".join(said.split())
    assert "run 1 of 3, seed 7" in said
    assert "3 runs of automl on digits" in unfolded
    assert "operations per second" in unfolded
    assert any(line.split()[:2] == ["ops", "PASS"] for line in said.splitlines())
    assert runs.outcomes() == {
        "requested": 3,
        "same_seed": False,
        "runs": [
            {"run": str(n), "seed": 6 + n, "exit_status": 0, "stopped_by": "", "error": ""}
            for n in (1, 2, 3)
        ],
    }
    assert RunManifest.load(RunPaths(runs.folder / "2")).config.seed == 8


def test_one_seed_for_all_shows_the_machine(runs: Runs) -> None:
    assert runs.start("--repeat", "2", "--same-seed") == 0
    assert runs.seeds == [0, 0]


def test_json_is_one_document(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.start("--repeat", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["repetitions"][0]["runs"]) == 2
    assert found["repetitions"][0]["verdicts"][0]["verdict"] in ("FAIL", "too few runs")


def test_a_run_that_fails_is_recorded_and_the_next_one_starts(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> int:
        raise AIPerfError("the scheduler refused the job")

    runs.plays = [_trained, fails, _trained]
    assert runs.start("--repeat", "3") == 1
    outcomes = runs.outcomes()["runs"]
    assert [each["exit_status"] for each in outcomes] == [0, 1, 0]
    assert outcomes[1]["error"] == "the scheduler refused the job"
    captured = capsys.readouterr()
    assert "the scheduler refused the job" in captured.err
    assert "the run has not started" in captured.err
    assert "2 runs of automl" in " ".join(captured.out.split())


def test_two_failures_in_a_row_end_it(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    runs.plays = [lambda *_, **__: 1] * 4
    assert runs.start("--repeat", "4") == 1
    assert "2 runs in a row failed; no other is started" in capsys.readouterr().err
    assert len(runs.seeds) == 2


def test_what_cannot_be_started_leaves_nothing(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(*_: object, **__: object) -> int:
        raise UsageError("no such partition")

    runs.plays = [refuses]
    assert runs.start("--repeat", "2") == 2
    assert capsys.readouterr().err.endswith("aiperf: no such partition\n")
    assert not runs.folder.exists()


def test_a_run_that_is_stopped_is_the_last_one(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(manifest: RunManifest, paths: RunPaths, *_: object, **__: object) -> int:
        with Primary(paths, Plan(replicas=1, run_id=manifest.run_id)) as primary:
            primary.start()
            primary.clock.advance(10.0)
            primary.end("interrupted by the user")
        return 0

    runs.plays = [_trained, stopped]
    assert runs.start("--repeat", "3") == 1
    captured = capsys.readouterr()
    assert "run 2 of 3 was stopped (interrupted by the user); no other is started" in captured.err
    assert "left out" in captured.out
    assert runs.outcomes()["runs"][1]["stopped_by"] == "interrupted by the user"


def test_a_signal_between_runs_ends_it_in_order(
    runs: Runs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(command: list[str]) -> tuple[str | None, str]:
        if runs.seeds:
            os.kill(os.getpid(), signal.SIGTERM)
        return "{}", ""

    monkeypatch.setattr(repeat, "_output_of", interrupted)
    assert runs.start("--repeat", "3") == 128 + signal.SIGTERM
    captured = capsys.readouterr()
    assert f"interrupted after 1 of 3 runs; `aiperf analyze {runs.folder}`" in captured.err
    assert "1 run of automl on digits" in captured.out
    assert sorted(path.name for path in runs.folder.iterdir()) == ["1", "repeat.json"]


def test_peaks_lie_around_each_run(runs: Runs) -> None:
    measured = [json.dumps({"utc": float(n), "rates": {"matrix": 1.0 + n}}) for n in range(3)]
    runs.peaks = [(text, "") for text in measured]
    assert runs.start("--repeat", "2", "--json") == 0
    first, second = (RunPaths(runs.folder / name) for name in "12")
    found = [p.read_text() for p in (first.peaks, first.peaks_after, second.peaks)]
    assert found == [measured[0], measured[1], measured[1]]
    assert second.peaks_after.read_text() == measured[2]


def test_without_peaks_the_runs_are_made_all_the_same(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs.start("--repeat", "2") == 0
    said = "the machine's peaks are not measured: no such command"
    assert capsys.readouterr().err.count(said) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--repeat", "1"), "nothing to compare below 2 runs"),
        (("--repeat", "2", "--detach"), "leave --detach out"),
        (("--same-seed",), "give --repeat N too"),
        (("--repeat", "2", "--set", "seed=4294967295"), "seed: should be less than"),
    ],
)
def test_what_makes_no_repetition(
    options: tuple[str, ...], said: str, runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert runs.start(*options) == 2
    assert said in capsys.readouterr().err
    assert not runs.folder.exists()


def test_a_folder_with_something_in_it_is_left_alone(
    runs: Runs, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.folder.mkdir()
    (runs.folder / "thesis.tex").touch()
    assert runs.start("--repeat", "2") == 2
    assert "is not empty; name a new one" in capsys.readouterr().err
    assert [path.name for path in runs.folder.iterdir()] == ["thesis.tex"]


def test_a_dry_run_says_what_the_others_are(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.start("--repeat", "3", "--dry-run") == 0
    assert "3 such runs one after another, seeds 0 to 2" in capsys.readouterr().out
    assert not runs.folder.exists()
