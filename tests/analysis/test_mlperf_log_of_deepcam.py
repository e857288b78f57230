"""Trainings of DeepCAM as logs of MLPerf HPC, which its checker accepts by DeepCAM's rules."""

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

from aiperf_hpc.analysis.mlperf_log import write_logs
from aiperf_hpc.analysis.readers.run_directory import read_run
from aiperf_hpc.config import load_config
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.records import DatasetLoaded, Evaluated, TrainingStarted
from aiperf_hpc.trial import DatasetInfo, Hyperparameters, RoundPhase, TensorSpec

TRAINING, HELD_OUT = 121_266, 15_158
OFFICIAL = DatasetInfo(
    name="deepcam",
    sha256="0" * 64,
    inputs={"image": TensorSpec(shape=(768, 1152, 16))},
    targets={"mask": TensorSpec(shape=(768, 1152), dtype="int32")},
    classes=3,
    train_samples=TRAINING,
    validation_samples=HELD_OUT,
)
QUALITIES = (0.5, 0.75, 0.825)


def write_run(root: Path, preset: str, *assignments: str, data: DatasetInfo = OFFICIAL) -> Path:
    """A run of one training of three epochs, which reaches the target in the last."""
    config = load_config(preset, assignments)
    manifest = RunManifest(
        run_id="run", nodes=1, hours=10.0, launcher="local", cores=((0,),), versions={}, commit="c",
        rules=RULES, config=config,
    )  # fmt: skip
    run, used = (
        RunWriter(root),
        Hyperparameters.model_validate(config.training, from_attributes=True),
    )
    manifest.save(run.paths)
    run.primary(0, run_started(10.0))
    run.replica(1, replica_started())
    run.replica(15, DatasetLoaded(dataset=data))
    started = trial_started("t0", phase=RoundPhase.FIXED)
    run.replica(20, started.model_copy(update={"hyperparameters": used, "seed": 7}))
    run.replica(21, TrainingStarted(trial="t0"))
    for epoch, quality in enumerate(QUALITIES, 1):
        now = 20 + 100 * epoch
        run.replica(now - 10, progress("t0", train=TRAINING, epoch=epoch))
        run.replica(now, progress("t0", validation=HELD_OUT, epoch=epoch))
        result = Evaluated(
            trial="t0",
            epoch=epoch,
            learning_rate=0.001,
            train_loss=1.0,
            validation_loss=1.0,
            measure="intersection_over_union",
            sums={"intersection_over_union": quality * HELD_OUT},
            samples=HELD_OUT,
        )
        run.replica(now, result)
    run.replica(330, trial_ended("t0"))
    run.primary(340, run_ended())
    return root


@pytest.mark.parametrize(
    ("preset", "assignments"),
    [
        ("deepcam", ()),
        ("deepcam_cosine", ()),
        ("deepcam", ("training.optimizer=adamw", "training.max_gradient_norm=null")),
    ],
    ids=["lamb, steps", "lamb, cosine", "adamw"],
)
def test_the_checker_accepts_a_training(
    preset: str, assignments: tuple[str, ...], tmp_path: Path
) -> None:
    (log,) = write_logs(write_run(tmp_path / "run", preset, *assignments), tmp_path / "logs")
    events = accepted(log)
    values = {event["key"]: event["value"] for event in events}
    assert values["submission_benchmark"] == "deepcam"
    assert values["submission_division"] == "closed"
    assert (values["train_samples"], values["eval_samples"]) == (TRAINING, HELD_OUT)
    found = [e["value"] for e in events if e["key"] == "eval_accuracy"]
    assert found == pytest.approx(QUALITIES)


def accepted(log: Path) -> list[dict[str, Any]]:
    """Return a log's lines, which the checker accepts."""
    checker = mlp_compliance.make_checker("hpc", "3.0.0", quiet=True, werror=True)
    found, _, _, _ = mlp_compliance.main(str(log), "hpc_3.0.0/common.yaml", checker)
    assert found, checker.not_overwritable
    lines = log.read_text().splitlines()
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def test_closed_settings_on_other_data_are_of_no_closed_division(tmp_path: Path) -> None:
    fewer = OFFICIAL.model_copy(update={"train_samples": 64})
    root = write_run(tmp_path / "run", "deepcam", data=fewer)
    (entry,) = read_run(root).entries
    assert entry.division == "open"
    (log,) = write_logs(root, tmp_path / "logs")
    values = {event["key"]: event["value"] for event in accepted(log)}
    assert (values["submission_division"], values["train_samples"]) == ("open", 64)
