"""Our runs as entries: against the reports of earlier runs, and runs written record by record."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.clock import START, Clock
from tests.support.damage import cut, gone
from tests.support.present import present
from tests.support.run_factory import (
    DATASET,
    Grown,
    Plan,
    Primary,
    Worker,
    configuration,
    initial_graph,
    write_manifest,
    write_run,
)

from aiperf_hpc.analysis.analysis import metrics_of
from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.score import error, operations_per_second, regulated
from aiperf_hpc.analysis.overview import entry_table
from aiperf_hpc.analysis.readers.run_directory import read_run
from aiperf_hpc.analysis.training_log import Entry
from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import UsageError
from aiperf_hpc.morphism.weights.weight_file import Predictions, save_predictions
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.run import records
from aiperf_hpc.run.history import RunHistory, Trial
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.manifest import RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.peaks import Peaks
from aiperf_hpc.trial import Machine, RoundPhase, TrialState

ARCHIVES = sorted((Path(__file__).parents[1] / "data" / "runs").glob("*.tar.gz"))

SHORT = Plan(trials=2, hpo_trials=0, failed=0)


def _read(path: Path) -> Entry:
    reading = read_run(path)
    assert reading.unreadable == ()
    (entry,) = reading.entries
    return entry


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.partition(".")[0])
@pytest.mark.parametrize("with_report", [True, False])
def test_an_earlier_run_has_the_score_of_its_report(
    archive: Path, with_report: bool, tmp_path: Path
) -> None:
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path], check=True)
    (folder,) = tmp_path.iterdir()
    report: dict[str, Any] = json.loads((folder / "report" / "report.json").read_bytes())
    if not with_report:
        (folder / "report").rename(tmp_path / "report")
    entry = _read(folder)
    (log,) = entry.logs
    score = report["score"]
    assert (entry.name, log.settings["hours"]) == (report["run_id"], report["hours"])
    assert log.operations == score["operations"]
    assert operations_per_second(log) == pytest.approx(score["ops"], rel=1e-12)
    assert error(log) == pytest.approx(score["error"], abs=1e-12)
    assert regulated(log) == pytest.approx(score["regulated"], rel=1e-9)
    assert present(log.run).seconds == pytest.approx(score["elapsed_seconds"])
    assert entry.problems == ()
    resources = present(entry.system.resources)
    assert resources.replicas == report["nodes"]
    assert " on 1 host, no accelerators (CPU: Intel" in resources.summary
    assert (entry.system.nodes, entry.system.accelerators) == (1, 0)


def test_a_run_without_accelerators_is_counted_by_ranks(tmp_path: Path) -> None:
    entry = _read(write_run(tmp_path / "run").root)
    table = entry_table(entry, metrics_of(entry))
    (budget,) = [row[1] for row in table.rows if row[0] == "compute budget"]
    assert budget.endswith(" rank-hours")
    assert "training, per rank" in " ".join(table.missing)
    assert "accelerator" not in " ".join((*table.missing, *map(str, table.rows)))


def test_a_search_is_one_training_of_all_its_replicas(tmp_path: Path) -> None:
    plan = Plan(replicas=3, trials=3, hpo_trials=2, failed=0)
    entry = _read(write_run(tmp_path / "run", plan).root)
    (log,) = entry.logs
    kind = (entry.benchmark, entry.format, entry.scenario)
    assert kind == ("automl on digits", "aiperf", "strong")
    assert (log.accelerators, log.nodes, log.succeeded) == (3, 3, None)
    assert (log.train_samples, log.eval_samples) == (1437, 360)
    assert log.global_batch_size is None  # HPO chose several.
    qualities = [present(each.quality) for each in log.evaluations]
    assert qualities == sorted(qualities)
    assert sum(present(log.timeline).operations) <= present(log.operations)
    assert set(metrics_of(entry).metrics) >= {"ops", "error", "regulated"}


def test_windows_of_a_search_hold_all_its_operations_but_the_last_ones(tmp_path: Path) -> None:
    root = write_run(tmp_path / "run", Plan(replicas=1, trials=1, hpo_trials=0, failed=0)).root
    (log,) = _read(root).logs
    timeline, seconds = present(log.timeline), present(present(log.run).seconds)
    window, windows = timeline.window_seconds, len(timeline.operations)
    assert windows == int(seconds / window)
    assert 0.0 <= seconds - windows * window < window
    (throughput,) = timeline.throughputs
    assert (throughput.samples, throughput.batch_size) == (4 * DATASET.train_samples, 64)
    # The factory's epochs are 85 % training, and the writer spends no other time in them.
    assert throughput.seconds == pytest.approx(0.85 * timeline.busy_seconds)


def _fixed_run(root: Path, *, target: float | None = None, replicas: int = 1) -> RunPaths:
    """Write a run of one fixed network: a training, one that goes on after a cut, one cut."""
    config = {"search": {"method": "fixed"}, "training": {"batch_size": 64, "target": target}}
    plan, paths = Plan(replicas=replicas, config=config), RunPaths(root)
    manifest = write_manifest(paths, plan)
    with Primary(paths, plan) as primary:
        primary.start()
        with Worker(paths, "r0", manifest.config) as worker:
            worker.start()
            _training(worker, [200, 300])
            worker.end("r0-t000", TrialState.COMPLETED, "the epoch limit")
            _training(worker, [100])
            worker.end("r0-t001", TrialState.FAILED, "the loss is nan")
            _training(worker, [150])
            worker.end("r0-t002", TrialState.STOPPED, "the run's time is over")
            primary.clock.now = worker.clock.now + 1.0
        primary.end()
    return paths


def _training(worker: Worker, correct: list[int]) -> None:
    grown = Grown(initial_graph(worker.config))
    trial = worker.begin(grown, RoundPhase.FIXED, worker.trials + 1)
    worker.write(records.TrainingStarted(trial=trial), after=2.0)
    for epoch, right in enumerate(correct, 1):
        worker.train(trial, epoch, 20.0)
        worker.evaluate(trial, epoch, right, 4.0)
    worker.clock.advance(3.0)  # Weights are stored.


def test_each_trial_of_a_fixed_network_is_a_training(tmp_path: Path) -> None:
    assert _read(_fixed_run(tmp_path / "two", replicas=2).root).scenario == "weak"
    entry = _read(_fixed_run(tmp_path / "run").root)
    assert (entry.benchmark, entry.scenario) == ("automl on digits, without search", "strong")
    assert "1 training run did not finish: left out" in entry.problems
    first, second = entry.logs
    # Two epochs of 20 s and 4 s; neither building before them nor storing behind them.
    assert present(first.run).seconds == pytest.approx(48.0)
    assert [epoch.number for epoch in first.epochs] == [1, 2]
    spans = [(epoch.ended or 0.0) - epoch.started for epoch in first.epochs]
    assert spans == pytest.approx([24.0, 24.0])
    evaluations = first.evaluations
    assert [e.ended - (e.started or 0.0) for e in evaluations] == pytest.approx([4.0, 4.0])
    assert [e.quality for e in evaluations] == [200 / 360, 300 / 360]
    assert (first.global_batch_size, first.accelerators, first.succeeded) == (64, 1, True)
    counted = count(initial_graph(configuration()))
    assert first.operations == 2 * (1437 * counted.training + 360 * counted.forward)
    assert (second.succeeded, second.problems) == (False, ("r0-t001 failed: the loss is nan",))


def test_the_target_decides_whether_a_training_run_succeeded(tmp_path: Path) -> None:
    entry = _read(_fixed_run(tmp_path / "run", target=0.8).root)
    assert [log.succeeded for log in entry.logs] == [True, False]
    quality = present(entry.logs[0].quality)
    assert (quality.name, quality.higher_is_better, quality.target) == ("accuracy", True, 0.8)


@pytest.mark.parametrize(("dataset", "weighted_by"), [("imagenet", 0.763), ("digits", None)])
def test_trainings_of_hpc_ai500_are_weighted_by_its_target_on_its_data(
    dataset: str, weighted_by: float | None, tmp_path: Path
) -> None:
    paths = _fixed_run(tmp_path / "run", target=0.8)
    manifest = RunManifest.load(paths)
    sections = manifest.config.model_dump(mode="json") | {"workload": "resnet50-v1.5"}
    sections["dataset"] |= {"name": dataset, "path": "/data" if dataset == "imagenet" else None}
    config = RunConfig.model_validate(sections)
    manifest.model_copy(update={"config": config}).save(paths)
    quality = present(_read(paths.root).logs[0].quality)
    assert (quality.target, quality.weighted_by) == (0.8, weighted_by)


def test_an_interrupted_and_resumed_training_run_is_one(tmp_path: Path) -> None:
    plan = Plan(replicas=1, config={"search": {"method": "fixed"}})
    paths = RunPaths(tmp_path / "run")
    manifest = write_manifest(paths, plan)
    with Primary(paths, plan) as primary, Worker(paths, "r0", manifest.config) as worker:
        primary.start()
        worker.start()
        _training(worker, [10, 20, 30])  # The last checkpoint is behind the second epoch.
        _training(worker, [31, 40])
        worker.end("r0-t001", TrialState.COMPLETED, "")
        primary.clock.now = worker.clock.now + 1.0
        primary.end()
    journal = paths.replica_journal("r0")
    lines = journal.read_text().splitlines()
    for number, line in enumerate(lines):
        record = json.loads(line)
        event = record["event"]
        if event.get("trial") == "r0-t001" and event["type"] == "trial_started":
            event |= {"resumes": "r0-t000", "first_epoch": 3}
        elif event.get("trial") == "r0-t001" and "epoch" in event:
            event["epoch"] += 2
        lines[number] = json.dumps(record)
    journal.write_text("\n".join(lines) + "\n")
    (log,) = _read(paths.root).logs
    assert [(e.epoch, e.quality) for e in log.evaluations] == [
        (n, right / 360) for n, right in ((1, 10), (2, 20), (3, 31), (4, 40))
    ]
    assert log.problems[0].startswith("r0-t000 was interrupted")
    # 3 epochs of 24 s, 3 s, 2 s to build again, 2 epochs.
    assert present(log.run).seconds == pytest.approx(5 * 24.0 + 3.0 + 2.0)


def test_a_running_run_has_no_score(tmp_path: Path) -> None:
    entry = _read(write_run(tmp_path / "run", replace(SHORT, ended=False)).root)
    assert entry.problems == ("the run has no end: it is still running, or was cut off",)
    with pytest.raises(NotMeasuredError, match="no end"):
        operations_per_second(entry.logs[0])
    assert error(entry.logs[0]) > 0.0
    nothing = _read(write_run(tmp_path / "nothing", replace(SHORT, evaluated=False)).root)
    assert metrics_of(nothing).missing["error"] == "no evaluation was completed"


def test_damage_is_a_problem_of_the_entry(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", SHORT)
    journal = paths.replica_journal("r1")
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[5] = b'{"v":1,"broken\n'
    journal.write_bytes(b"".join(lines) + b'{"v":1,"torn')
    paths.peaks.write_text('{"utc": 1.0, "rates": {"matrix": 0}}')
    problems = "\n".join(_read(paths.root).problems)
    assert "replicas/r1/0.0/journal.jsonl, line 6" in problems
    assert "replicas/r1/0.0/journal.jsonl ends in an unfinished line" in problems
    assert "peaks.json" in problems
    assert "greater than 0" in problems


@pytest.mark.parametrize("content", ["", "[]x", "hours: [", "nodes: 0\n"])
def test_a_damaged_manifest_is_reported_in_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(content)
    (unreadable,) = read_run(tmp_path).unreadable
    assert "run.yaml" in unreadable.reason
    assert "\n" not in unreadable.reason


def test_a_folder_without_a_started_run_has_a_reason(tmp_path: Path) -> None:
    (nothing,) = read_run(tmp_path).unreadable
    assert "not a run directory" in nothing.reason
    write_manifest(RunPaths(tmp_path), Plan())
    (not_started,) = read_run(tmp_path).unreadable
    assert "has not started" in not_started.reason


def _keep(paths: RunPaths, trial: Trial, classes: list[int]) -> None:
    """Keep predictions of a trial, behind all its records."""
    last = trial.evaluations[-1]
    path = paths.predictions(trial.replica, trial.id)
    digest = save_predictions(path, Predictions(trial.id, last.epoch, np.array(classes)))
    event = records.PredictionsSaved(
        trial=trial.id, epoch=last.epoch, samples=len(classes), sha256=digest
    )
    with JournalWriter(paths.replica_journal(trial.replica), clock=Clock(START + 1e5)) as journal:
        journal.append(event)


def _trials(paths: RunPaths) -> list[Trial]:
    history = RunHistory.read(paths)
    return [trial for trial in history.trials.values() if trial.evaluations]


def test_the_best_networks_predictions_are_read(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", replace(SHORT, replicas=1))
    for number, trial in enumerate(_trials(paths)):
        _keep(paths, trial, [number] * 360)
    best = max(_trials(paths), key=lambda t: t.best.quality if t.best else 0.0)
    number = [trial.id for trial in _trials(paths)].index(best.id)
    (log,) = _read(paths.root).logs
    predictions = present(log.predictions)
    assert (predictions.trial, predictions.samples) == (best.id, 360)
    assert predictions.classes == number.to_bytes(4, "little") * 360
    assert "classes" not in log.model_dump()["predictions"]  # Not in JSON: too many.


def test_each_training_of_a_fixed_network_has_its_own_predictions(tmp_path: Path) -> None:
    paths = _fixed_run(tmp_path / "run")
    _keep(paths, _trials(paths)[0], [1] * 360)
    first, second = _read(paths.root).logs
    assert (present(first.predictions).trial, second.predictions) == ("r0-t000", None)


@pytest.mark.parametrize(
    ("damage", "said"), [(gone, "No such file"), (cut, "is not the file that was recorded")]
)
def test_lost_predictions_are_a_problem(
    damage: Callable[[Path], None], said: str, tmp_path: Path
) -> None:
    paths = write_run(tmp_path / "run", replace(SHORT, replicas=1))
    trial = _trials(paths)[-1]
    _keep(paths, trial, [1] * 360)
    damage(paths.predictions(trial.replica, trial.id))
    entry = _read(paths.root)
    assert entry.logs[0].predictions is None
    assert any(said in problem for problem in entry.problems)


def test_a_fifo_in_place_of_the_peaks_is_not_waited_for(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", SHORT)
    os.mkfifo(paths.peaks)
    problems = "\n".join(_read(paths.root).problems)
    assert "peaks.json: not a regular file" in problems
    with pytest.raises(UsageError, match="not a regular file"):
        Peaks.read(paths.peaks)


def test_peaks_beside_a_run_are_read(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", SHORT)
    for path, n in ((paths.peaks, 1.0), (paths.peaks_after, 2.0)):
        rates = {"matrix fp32": 1e11 + n, "matrix bf16": 1e12}  # The run is of fp32.
        path.write_text(json.dumps({"utc": n, "rates": rates, "host": "a"}))
    (log,) = _read(paths.root).logs
    found = {each.utc: each.rates for each in present(log.timeline).peaks}
    assert found == {n: {"matrix fp32": 1e11 + n} for n in (1.0, 2.0)}


@pytest.mark.parametrize("accelerators", [(), ("Example GPU",)])
def test_the_timeline_records_whether_a_run_used_accelerators(
    accelerators: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def machine(**values: object) -> Machine:
        return Machine.model_validate({**values, "accelerators": accelerators})

    monkeypatch.setattr("tests.support.run_factory.Machine", machine)
    (log,) = _read(write_run(tmp_path / "run", SHORT).root).logs
    assert present(log.timeline).on_accelerators == bool(accelerators)
