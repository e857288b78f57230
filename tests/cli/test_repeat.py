"""``aiperf start --repeat``: what it starts, what it records, when it ends and what it says."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.command import Done, aiperf
from tests.support.run_factory import DATASET, Grown, Plan, Primary, Worker, initial_graph

from aiperf_hpc.cli import repeat, start
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
        self.peaks: list[str] = []
        self.seeds: list[int] = []
        monkeypatch.setattr(start, "describe_dataset", lambda config: DATASET)
        monkeypatch.setattr(start, "conduct_run", self._conduct)
        monkeypatch.setattr(repeat, "run_in_session", self._said)

    def _conduct(self, manifest: RunManifest, *arguments: object, **options: object) -> int:
        play: Callable[..., int] = self.plays[len(self.seeds)] if self.plays else _trained
        self.seeds.append(manifest.config.seed)
        status: int = play(manifest, *arguments, **options)
        return status

    def _said(self, command: list[str], seconds: float, *, late: str) -> str:
        assert tuple(command[2:4]) == PEAKS
        if not self.peaks:
            raise UsageError("no such command")
        return self.peaks.pop(0)

    def start(self, *options: str) -> Done:
        return aiperf(*START, "--config", "quickstart", "--run-dir", self.folder, *options)

    def outcomes(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "repeat.json").read_text())
        return found


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


def test_runs_differ_in_their_seeds_and_are_compared(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # In fewer, long figures leave names less room.
    done = runs.start("--repeat", "3", "--set", "seed=7")
    assert (done.returncode, runs.seeds) == (0, [7, 8, 9])
    said = done.stdout
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
    assert runs.start("--repeat", "2", "--same-seed").returncode == 0
    assert runs.seeds == [0, 0]


def test_json_is_one_document(runs: Runs) -> None:
    done = runs.start("--repeat", "2", "--json")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert len(found["repetitions"][0]["runs"]) == 2
    assert found["repetitions"][0]["verdicts"][0]["verdict"] in ("FAIL", "too few runs")


def test_a_run_that_fails_is_recorded_and_the_next_one_starts(runs: Runs) -> None:
    def fails(*_: object, **__: object) -> int:
        raise AIPerfError("the scheduler refused the job")

    runs.plays = [_trained, fails, _trained]
    done = runs.start("--repeat", "3")
    assert done.returncode == 1
    outcomes = runs.outcomes()["runs"]
    assert [each["exit_status"] for each in outcomes] == [0, 1, 0]
    assert outcomes[1]["error"] == "the scheduler refused the job"
    assert "the scheduler refused the job" in done.stderr
    assert "the run has not started" in done.stderr
    assert "2 runs of automl" in " ".join(done.stdout.split())


def test_two_failures_in_a_row_end_it(runs: Runs) -> None:
    runs.plays = [lambda *_, **__: 1] * 4
    done = runs.start("--repeat", "4")
    assert (done.returncode, len(runs.seeds)) == (1, 2)
    assert "2 runs in a row failed; no further run is started" in done.stderr


def test_what_cannot_be_started_leaves_nothing(runs: Runs) -> None:
    def refuses(*_: object, **__: object) -> int:
        raise UsageError("no such partition")

    runs.plays = [refuses]
    done = runs.start("--repeat", "2")
    assert done.returncode == 2
    assert done.stderr.endswith("aiperf: no such partition\n")
    assert not runs.folder.exists()


def test_a_run_that_is_stopped_is_the_last_one(runs: Runs) -> None:
    def stopped(manifest: RunManifest, paths: RunPaths, *_: object, **__: object) -> int:
        with Primary(paths, Plan(replicas=1, run_id=manifest.run_id)) as primary:
            primary.start()
            primary.clock.advance(10.0)
            primary.end("interrupted by the user")
        return 0

    runs.plays = [_trained, stopped]
    done = runs.start("--repeat", "3")
    assert done.returncode == 1
    assert (
        "run 2 of 3 was stopped (interrupted by the user); no further run is started" in done.stderr
    )
    assert "left out" in done.stdout
    assert runs.outcomes()["runs"][1]["stopped_by"] == "interrupted by the user"


def test_a_signal_between_runs_ends_it_in_order(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(command: list[str], seconds: float, *, late: str) -> str:
        if runs.seeds:
            os.kill(os.getpid(), signal.SIGTERM)
        return "{}"

    monkeypatch.setattr(repeat, "run_in_session", interrupted)
    done = runs.start("--repeat", "3")
    assert done.returncode == 128 + signal.SIGTERM
    assert f"interrupted after 1 of 3 runs; `aiperf analyze {runs.folder}`" in done.stderr
    assert "1 run of automl on digits" in done.stdout
    assert sorted(path.name for path in runs.folder.iterdir()) == ["1", "repeat.json"]


def test_peaks_lie_around_each_run(runs: Runs) -> None:
    measured = [json.dumps({"utc": float(n), "rates": {"matrix": 1.0 + n}}) for n in range(3)]
    runs.peaks = list(measured)
    assert runs.start("--repeat", "2", "--json").returncode == 0
    first, second = (RunPaths(runs.folder / name) for name in "12")
    found = [p.read_text() for p in (first.peaks, first.peaks_after, second.peaks)]
    assert found == [measured[0], measured[1], measured[1]]
    assert second.peaks_after.read_text() == measured[2]


def test_without_peaks_the_runs_are_made_all_the_same(runs: Runs) -> None:
    done = runs.start("--repeat", "2")
    assert done.returncode == 0
    assert done.stderr.count("the machine's peaks are not measured: no such command") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--repeat", "1"), "nothing to compare with fewer than 2 runs"),
        (("--repeat", "2", "--detach"), "mutually exclusive"),
        (("--same-seed",), "requires --repeat N"),
        (("--repeat", "2", "--set", "seed=4294967295"), "seed: should be less than"),
    ],
)
def test_what_makes_no_repetition(options: tuple[str, ...], said: str, runs: Runs) -> None:
    done = runs.start(*options)
    assert done.returncode == 2
    assert said in done.stderr
    assert not runs.folder.exists()


def test_a_folder_with_something_in_it_is_left_alone(runs: Runs) -> None:
    runs.folder.mkdir()
    (runs.folder / "thesis.tex").touch()
    done = runs.start("--repeat", "2")
    assert done.returncode == 2
    assert "is not empty; name a new one" in done.stderr
    assert [path.name for path in runs.folder.iterdir()] == ["thesis.tex"]


def test_a_dry_run_says_what_the_others_are(runs: Runs) -> None:
    done = runs.start("--repeat", "3", "--dry-run")
    assert done.returncode == 0
    assert "3 such runs one after another, seeds 0 to 2" in done.stdout
    assert not runs.folder.exists()
