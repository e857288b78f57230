"""Trainings of a run as logs of MLPerf HPC: its checker accepts them, our analysis reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.compliance_checker import mlp_compliance
from tests.support.run_writer import (
    RunWriter,
    progress,
    replica_started,
    run_ended,
    run_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.analysis.metric import NotMeasuredError
from aiperf_hpc.analysis.metrics.time_to_solution import compute, extra, staging, time_to_solution
from aiperf_hpc.analysis.mlperf_log import write_logs
from aiperf_hpc.analysis.options import Options
from aiperf_hpc.analysis.readers.run_directory import read_run
from aiperf_hpc.analysis.readers.sources import read_sources
from aiperf_hpc.analysis.sections.reference_convergence import reference_convergence
from aiperf_hpc.config import load_config
from aiperf_hpc.errors import UsageError
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import DatasetLoaded, Evaluated, TrainingStarted
from aiperf_hpc.trial import (
    DatasetInfo,
    Hyperparameters,
    RoundPhase,
    ScheduleSettings,
    TensorSpec,
    TrialState,
)

USAGE, RULESET = "hpc", "3.0.0"
SAMPLES = 65_536
OFFICIAL = DatasetInfo(
    name="cosmoflow",
    sha256="0" * 64,
    inputs={"volume": TensorSpec(shape=(128, 128, 128, 4))},
    targets={"values": TensorSpec(shape=(4,))},
    train_samples=524_288,
    validation_samples=SAMPLES,
)
USED = Hyperparameters(
    batch_size=128,
    learning_rate=0.001,
    schedule=ScheduleSettings(
        name="multi_step",
        interval="epoch",
        base_batch=64,
        warmup_epochs=4,
        warmup_start=0.5,
        milestones=(33, 65),
        factors=(0.25, 0.125),
    ),
)


def write_run(
    root: Path, errors: list[list[float]], *assignments: str, data: DatasetInfo = OFFICIAL
) -> Path:
    """A run whose trainings had these errors, an epoch of 100 s each; the last training was cut."""
    config = load_config("cosmoflow", ["training.batch_size=128", *assignments])
    manifest = RunManifest(
        run_id="run", nodes=1, hours=10.0, launcher="local", cores=((0,),), versions={}, commit="c",
        rules=RULES, config=config,
    )  # fmt: skip
    run, now = RunWriter(root), 20.0
    manifest.save(run.paths)
    run.primary(0, run_started(10.0))
    run.replica(1, replica_started())
    run.replica(15, DatasetLoaded(dataset=data, staged_seconds=10.0))
    for number, course in enumerate(errors):
        trial = f"t{number}"
        started = trial_started(trial, phase=RoundPhase.FIXED)
        run.replica(now, started.model_copy(update={"hyperparameters": USED, "seed": number}))
        run.replica(now + 1, TrainingStarted(trial=trial))
        for epoch, error in enumerate(course, 1):
            now += 100
            run.replica(now - 10, progress(trial, train=data.train_samples, epoch=epoch))
            run.replica(now, progress(trial, validation=SAMPLES, epoch=epoch))
            run.replica(now, _evaluated(trial, epoch, error))
        state = TrialState.STOPPED if number == len(errors) - 1 else TrialState.COMPLETED
        run.replica(now + 1, trial_ended(trial, state))
        now += 5
    run.primary(now, run_ended())
    return root


def _evaluated(trial: str, epoch: int, error: float) -> Evaluated:
    return Evaluated(
        trial=trial,
        epoch=epoch,
        learning_rate=0.001,
        train_loss=1.0,
        validation_loss=1.0,
        measure="mean_absolute_error",
        sums={"absolute_error": 4 * SAMPLES * error, "values": 4 * SAMPLES},
        samples=SAMPLES,
    )


COURSES = [[0.4, 0.2, 0.12], [0.4, 0.12], [0.3]]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("cosmoflow")
    return write_logs(write_run(root / "run", COURSES), root / "logs")


def events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]


def test_each_training_that_ended_has_a_log_that_the_checker_accepts(logs: list[Path]) -> None:
    assert [log.name for log in logs] == ["result_0.txt", "result_1.txt"]
    for log in logs:
        checker = mlp_compliance.make_checker(USAGE, RULESET, quiet=True, werror=True)
        accepted, _, _, _ = mlp_compliance.main(str(log), f"{USAGE}_{RULESET}/common.yaml", checker)
        assert accepted, checker.not_overwritable


def test_a_log_states_the_settings_as_the_reference_does(logs: list[Path]) -> None:
    values = {event["key"]: event["value"] for event in events(logs[1])}
    assert values["submission_benchmark"] == "cosmoflow"
    assert values["submission_division"] == "closed"
    assert (values["global_batch_size"], values["seed"]) == (128, 1)
    assert values["opt_base_learning_rate"] == pytest.approx(0.002)
    assert values["opt_learning_rate_warmup_factor"] == 2.0
    assert values["opt_learning_rate_decay_boundary_epochs"] == [32, 64]
    assert values["opt_learning_rate_decay_factor"] == 0.25
    assert (values["dropout"], values["opt_weight_decay"]) == (0.5, 0.0)
    assert values["cache_clear"] is False


def test_times_are_those_of_the_records(logs: list[Path]) -> None:
    found = events(logs[0])
    assert [e["time_ms"] for e in found] == sorted(e["time_ms"] for e in found)
    at = {(e["key"], e["metadata"].get("epoch_num")): e["time_ms"] for e in found}
    start = at["run_start", None]
    assert at["run_stop", None] - start == 299_000
    assert at["staging_stop", None] - at["staging_start", None] == 10_000
    assert at["eval_stop", 2] - at["eval_start", 2] == 10_000
    assert at["epoch_start", 2] == at["epoch_stop", 1]
    errors = [e["value"] for e in found if e["key"] == "eval_error"]
    assert errors == pytest.approx(COURSES[0])
    assert found[-1]["metadata"] == {"status": "success"}


def test_a_later_life_stages_within_no_training_that_was_over(tmp_path: Path) -> None:
    """The replica dies 2 s before the run's end, and has its data once more a second later."""
    root = write_run(tmp_path / "run", COURSES)
    again = DatasetLoaded(dataset=OFFICIAL, staged_seconds=5.0)
    RunWriter(root).life(Incarnation(0, 1), 634.0, replica_started(), again)
    (entry,) = read_run(root).entries
    assert [60.0 * staging(log) for log in entry.logs] == [10.0, 10.0]
    for log in write_logs(root, tmp_path / "logs"):
        found = [e["time_ms"] for e in events(log) if e["key"] == "staging_start"]
        assert len(found) == 1


def test_our_analysis_compares_them_with_the_references_convergence(tmp_path: Path) -> None:
    """Ten trainings of 6 epochs at a batch of 128, for which the reference needs more than 10.

    The round is told by the folder: these records are of 1970.
    """
    courses = [[0.4] * 5 + [0.12]] * 10 + [[0.4]]
    folder = tmp_path / "hpc-v3.0"
    write_logs(write_run(tmp_path / "run", courses), folder)
    reading = read_sources([folder], Options())
    (row,) = reference_convergence(reading.entries, Options()).rows
    assert (row.batch_size, row.mean) == (128, 6.0)
    assert row.reference > 10.0
    assert row.verdict == "faster than chance allows"
    own = read_run(tmp_path / "run").entries
    (same,) = reference_convergence(own, Options()).rows
    assert (same.mean, same.reference, same.verdict) == (row.mean, row.reference, row.verdict)


def test_the_reference_binds_neither_open_settings_nor_other_data(tmp_path: Path) -> None:
    courses = [[0.12]] * 10 + [[0.4]]
    opened = write_run(tmp_path / "open", courses, "training.momentum=0.8")
    with pytest.raises(NotMeasuredError, match="do not bind the open division"):
        reference_convergence(read_run(opened).entries, Options())
    other = write_run(tmp_path / "density", courses, "dataset={name: density}")
    with pytest.raises(NotMeasuredError, match="^cosmoflow on density has no reference"):
        reference_convergence(read_run(other).entries, Options())
    half = OFFICIAL.model_copy(update={"train_samples": OFFICIAL.train_samples // 2})
    before = write_run(tmp_path / "v0.7", courses, "model.cosmoflow.kernel=2", data=half)
    with pytest.raises(NotMeasuredError, match="^cosmoflow v0.7 has no reference"):
        reference_convergence(read_run(before).entries, Options())


def test_a_report_divides_the_time_as_the_analysis_does(tmp_path: Path) -> None:
    """But for the network's building and staging, which lie before the run of MLPerf HPC."""
    root = write_run(tmp_path / "run", COURSES)
    view = RunView(RunPaths(root))
    view.refresh()
    (entry,) = read_run(root).entries
    assert len(view.training_times(view.until)) == len(entry.logs) == 2
    for ours, log in zip(view.training_times(view.until), entry.logs, strict=True):
        assert ours.staging_seconds == 60.0 * staging(log) == 10.0
        assert ours.compute_seconds == pytest.approx(60.0 * compute(log))
        assert ours.extra_seconds == pytest.approx(60.0 * extra(log) + 1.0)
        assert ours.seconds == pytest.approx(60.0 * time_to_solution(log) + 11.0)
        assert ours.reached


def test_an_open_configuration_makes_open_logs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", COURSES, "training.momentum=0.8")
    log = write_logs(run, tmp_path / "logs")[0]
    assert {e["key"]: e["value"] for e in events(log)}["submission_division"] == "open"


def test_what_has_no_logs_is_refused_in_a_line(tmp_path: Path, logs: list[Path]) -> None:
    cut = write_run(tmp_path / "cut", [[0.3]])
    with pytest.raises(UsageError, match=f"--mlperf: no training of {cut} has ended"):
        write_logs(cut, tmp_path / "new")
    with pytest.raises(UsageError, match="is not empty; name a new folder"):
        write_logs(write_run(tmp_path / "run", COURSES), logs[0].parent)
    other = write_run(tmp_path / "other", COURSES, "workload=volumes", "dataset={name: volumes}")
    with pytest.raises(UsageError, match="workload 'volumes' is none of MLPerf HPC's"):
        write_logs(other, tmp_path / "new")
    assert not (tmp_path / "new").exists()
