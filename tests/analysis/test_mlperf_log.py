"""Trainings of a run as logs of MLPerf HPC: its checker accepts them, our analysis reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mlperf_logging.compliance_checker import mlp_compliance
from tests.support import run_writer
from tests.support.run_manifest import run_manifest

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
from aiperf_hpc.run.manifest import RULES
from aiperf_hpc.run.paths import Incarnation, RunPaths
from aiperf_hpc.run.records import DatasetLoaded, Evaluated, TrainingStarted
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, RoundPhase, TensorSpec, TrialState

COSMOFLOW = DatasetInfo(
    name="cosmoflow", sha256="0" * 64, inputs={"volume": TensorSpec(shape=(128, 128, 128, 4))},
    targets={"values": TensorSpec(shape=(4,))}, train_samples=524_288, validation_samples=65_536,
)  # fmt: skip
DEEPCAM = DatasetInfo(
    name="deepcam", sha256="0" * 64, inputs={"image": TensorSpec(shape=(768, 1152, 16))},
    targets={"mask": TensorSpec(shape=(768, 1152), dtype="int32")}, classes=3,
    train_samples=121_266, validation_samples=15_158,
)  # fmt: skip


def write_run(
    root: Path,
    curves: list[list[float]],
    *assignments: str,
    data: DatasetInfo = COSMOFLOW,
    preset: str = "cosmoflow",
) -> Path:
    """A run whose trainings had these qualities, an epoch of 100 s each; the last one was cut."""
    config = load_config(preset, ["training.batch_size=128", *assignments])
    manifest = run_manifest(config, hours=10.0, rules=RULES)
    used = Hyperparameters.model_validate(config.training, from_attributes=True)
    run, now = run_writer.RunWriter(root), 20.0
    manifest.save(run.paths)
    run.primary(0, run_writer.run_started(10.0))
    run.replica(1, run_writer.replica_started())
    run.replica(15, DatasetLoaded(dataset=data, staged_seconds=10.0))
    for number, curve in enumerate(curves):
        trial = f"t{number}"
        started = run_writer.trial_started(trial, phase=RoundPhase.FIXED)
        run.replica(now, started.model_copy(update={"hyperparameters": used, "seed": number + 1}))
        run.replica(now + 1, TrainingStarted(trial=trial))
        for epoch, quality in enumerate(curve, 1):
            now += 100
            run.replica(now - 10, run_writer.progress(trial, train=data.train_samples, epoch=epoch))
            validated = run_writer.progress(trial, validation=data.validation_samples, epoch=epoch)
            run.replica(now, validated, _evaluated(trial, epoch, quality, data))
        state = TrialState.STOPPED if number == len(curves) - 1 else TrialState.COMPLETED
        run.replica(now + 1, run_writer.trial_ended(trial, state))
        now += 5
    run.primary(now, run_writer.run_ended())
    return root


def _evaluated(trial: str, epoch: int, quality: float, data: DatasetInfo) -> Evaluated:
    count = data.validation_samples
    metric, sums = "intersection_over_union", {"intersection_over_union": quality * count}
    if "mask" not in data.targets:
        metric = "mean_absolute_error"
        sums = {"absolute_error": 4 * count * quality, "values": 4.0 * count}
    return run_writer.evaluated(
        trial, correct=0, epoch=epoch, metric=metric, sums=sums, samples=count
    )


CURVES = [[0.4, 0.2, 0.12], [0.4, 0.12], [0.3]]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("cosmoflow")
    return write_logs(write_run(root / "run", CURVES), root / "logs")


def events(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in log.read_text().splitlines()]


def accepted(log: Path) -> list[dict[str, Any]]:
    """Return the lines of a log that the checker accepts."""
    checker = mlp_compliance.make_checker("hpc", "3.0.0", quiet=True, werror=True)
    found, _, _, _ = mlp_compliance.main(str(log), "hpc_3.0.0/common.yaml", checker)
    assert found, checker.not_overwritable
    return events(log)


def test_each_training_that_ended_has_a_log_that_the_checker_accepts(logs: list[Path]) -> None:
    assert [log.name for log in logs] == ["result_0.txt", "result_1.txt"]
    assert all(accepted(log) for log in logs)


@pytest.mark.parametrize(
    ("preset", "assignments"),
    [
        ("deepcam", ()),
        ("deepcam_cosine", ()),
        ("deepcam", ("training.optimizer=adamw", "training.max_gradient_norm=null")),
    ],
    ids=["lamb, steps", "lamb, cosine", "adamw"],
)
def test_the_checker_accepts_a_training_of_deepcam(
    preset: str, assignments: tuple[str, ...], tmp_path: Path
) -> None:
    qualities = [0.5, 0.75, 0.825]
    run = write_run(tmp_path / "r", [qualities, []], *assignments, data=DEEPCAM, preset=preset)
    (log,) = write_logs(run, tmp_path / "logs")
    found = accepted(log)
    values = {event["key"]: event["value"] for event in found}
    assert values["submission_benchmark"] == "deepcam"
    assert values["submission_division"] == "closed"
    assert (values["train_samples"], values["eval_samples"]) == (121_266, 15_158)
    assert [e["value"] for e in found if e["key"] == "eval_accuracy"] == pytest.approx(qualities)


def test_closed_settings_on_other_data_are_of_no_closed_division(tmp_path: Path) -> None:
    fewer = DEEPCAM.model_copy(update={"train_samples": 64})
    root = write_run(tmp_path / "run", [[0.825], []], data=fewer, preset="deepcam")
    (entry,) = read_run(root).entries
    assert entry.division == "open"
    (log,) = write_logs(root, tmp_path / "logs")
    values = {event["key"]: event["value"] for event in accepted(log)}
    assert (values["submission_division"], values["train_samples"]) == ("open", 64)


def test_a_log_states_the_settings_as_the_reference_does(logs: list[Path]) -> None:
    values = {event["key"]: event["value"] for event in events(logs[1])}
    expected = {
        "submission_benchmark": "cosmoflow", "submission_division": "closed",
        "global_batch_size": 128, "seed": 2, "opt_base_learning_rate": pytest.approx(0.002),
        "opt_learning_rate_warmup_factor": 2.0, "opt_learning_rate_decay_factor": 0.25,
        "opt_learning_rate_decay_boundary_epochs": [32, 64],
        "dropout": 0.5, "opt_weight_decay": 0.0, "cache_clear": False,
    }  # fmt: skip
    assert {key: values[key] for key in expected} == expected
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
    assert errors == pytest.approx(CURVES[0])
    assert found[-1]["metadata"] == {"status": "success"}


def test_staging_of_a_later_attempt_is_in_no_ended_training_run(tmp_path: Path) -> None:
    """The replica dies 2 s before the run's end, and has its data once more a second later."""
    root = write_run(tmp_path / "run", CURVES)
    again = DatasetLoaded(dataset=COSMOFLOW, staged_seconds=5.0)
    run_writer.RunWriter(root).life(Incarnation(0, 1), 634.0, run_writer.replica_started(), again)
    (entry,) = read_run(root).entries
    assert [60.0 * staging(log) for log in entry.logs] == [10.0, 10.0]
    for log in write_logs(root, tmp_path / "logs"):
        found = [e["time_ms"] for e in events(log) if e["key"] == "staging_start"]
        assert len(found) == 1


def test_our_analysis_compares_them_with_the_references_convergence(tmp_path: Path) -> None:
    """Ten trainings of 6 epochs at a batch of 128, for which the reference needs more than 10.

    The round is told by the folder: these records are of 1970.
    """
    curves = [[0.4] * 5 + [0.12]] * 10 + [[0.4]]
    folder = tmp_path / "hpc-v3.0"
    write_logs(write_run(tmp_path / "run", curves), folder)
    reading = read_sources([folder], Options())
    (row,) = reference_convergence(reading.entries, Options()).rows
    assert (row.batch_size, row.mean) == (128, 6.0)
    assert row.reference > 10.0
    assert row.verdict == "faster than chance allows"
    own = read_run(tmp_path / "run").entries
    (same,) = reference_convergence(own, Options()).rows
    assert (same.mean, same.reference, same.verdict) == (row.mean, row.reference, row.verdict)


def test_the_reference_binds_neither_open_settings_nor_other_data(tmp_path: Path) -> None:
    curves = [[0.12]] * 10 + [[0.4]]
    opened = write_run(tmp_path / "open", curves, "training.momentum=0.8")
    with pytest.raises(NotMeasuredError, match="do not bind the open division"):
        reference_convergence(read_run(opened).entries, Options())
    other = write_run(tmp_path / "density", curves, "dataset={name: density}")
    with pytest.raises(NotMeasuredError, match="^cosmoflow on density has no reference"):
        reference_convergence(read_run(other).entries, Options())
    half = COSMOFLOW.model_copy(update={"train_samples": COSMOFLOW.train_samples // 2})
    before = write_run(tmp_path / "v0.7", curves, "model.cosmoflow.kernel_size=2", data=half)
    with pytest.raises(NotMeasuredError, match="^cosmoflow v0.7 has no reference"):
        reference_convergence(read_run(before).entries, Options())


def test_a_report_divides_the_time_as_the_analysis_does(tmp_path: Path) -> None:
    """But for the network's building and staging, which lie before the run of MLPerf HPC."""
    root = write_run(tmp_path / "run", CURVES)
    view = RunView.read(RunPaths(root))
    (entry,) = read_run(root).entries
    assert len(view.training_times(view.until)) == len(entry.logs) == 2
    for ours, log in zip(view.training_times(view.until), entry.logs, strict=True):
        assert ours.staging_seconds == 60.0 * staging(log) == 10.0
        assert ours.compute_seconds == pytest.approx(60.0 * compute(log))
        assert ours.extra_seconds == pytest.approx(60.0 * extra(log) + 1.0)
        assert ours.seconds == pytest.approx(60.0 * time_to_solution(log) + 11.0)
        assert ours.reached


def test_a_run_without_logs_is_rejected_in_one_line(tmp_path: Path, logs: list[Path]) -> None:
    cut = write_run(tmp_path / "cut", [[0.3]])
    with pytest.raises(UsageError, match=f"--mlperf: no training of {cut} has ended"):
        write_logs(cut, tmp_path / "new")
    with pytest.raises(UsageError, match="is not empty; name a new folder"):
        write_logs(write_run(tmp_path / "run", CURVES), logs[0].parent)
    other = write_run(tmp_path / "other", CURVES, "workload=volumes", "dataset={name: volumes}")
    with pytest.raises(UsageError, match="workload 'volumes' is not in MLPerf HPC"):
        write_logs(other, tmp_path / "new")
    assert not (tmp_path / "new").exists()
