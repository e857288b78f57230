"""Trainings and models of one network: their times, and weak and strong scaling."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.run_factory import DATASET
from tests.support.run_manifest import run_manifest
from tests.support.run_writer import (
    FIRST,
    SECOND,
    START,
    RunWriter,
    evaluated,
    progress,
    replica_started,
    run_ended,
    run_started,
    trial_ended,
    trial_started,
)

from aiperf_hpc.config import load_config
from aiperf_hpc.objective import ACCURACY
from aiperf_hpc.ops_counter.score import Weight
from aiperf_hpc.results.report.writer import summary_lines
from aiperf_hpc.results.views.run_view import RunView
from aiperf_hpc.results.views.trials import (
    ModelsStatus,
    TrainingTime,
    model_lines,
    models_status,
    training_times,
)
from aiperf_hpc.run.manifest import RULES, RunManifest
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.run.records import DatasetLoaded, RanksLost, TrainingStarted
from aiperf_hpc.trial import RoundPhase, TrialState

EVER = START + 1e6


def loaded(seconds: float) -> DatasetLoaded:
    return DatasetLoaded(dataset=DATASET, staged_seconds=seconds)


@pytest.fixture
def staged(tmp_path: Path) -> RunWriter:
    """Staged for 20 s; a training of two epochs, built in 5 s, begins 30 s after the start."""
    writer = RunWriter(tmp_path)
    writer.primary(0, run_started(10.0))
    writer.life(FIRST, 1, replica_started())
    writer.life(FIRST, 25, loaded(20.0))
    writer.life(FIRST, 30, trial_started("t1", phase=RoundPhase.FIXED))
    writer.life(FIRST, 35, TrainingStarted(trial="t1"))
    writer.life(FIRST, 135, evaluated("t1", correct=50, epoch=1))
    return writer


def times_of(
    staged: RunWriter, target: float | None = 0.6, until: float = EVER
) -> tuple[TrainingTime, ...]:
    return training_times(staged.history(), until, target)


def test_a_training_is_staging_compute_and_the_rest(staged: RunWriter) -> None:
    staged.life(FIRST, 235, evaluated("t1", correct=70, epoch=2))
    staged.life(FIRST, 240, trial_ended("t1"))
    (found,) = times_of(staged)
    assert (found.trial, found.replica, found.seed, found.epochs) == ("t1", "r0", 0, 2)
    assert (found.staging_seconds, found.compute_seconds, found.extra_seconds) == (20, 200, 5)
    assert found.seconds == 225
    assert found.reached is True
    assert times_of(staged, target=0.8)[0].reached is False
    assert times_of(staged, target=None)[0].reached is None
    assert times_of(staged, until=START + 200) == ()


def test_what_an_interruption_took_is_in_the_rest(staged: RunWriter) -> None:
    """Half an epoch was lost, the dataset brought again in 10 s, and the network built in 2 s."""
    staged.life(SECOND, 200, replica_started())
    staged.life(SECOND, 215, loaded(10.0))
    again = trial_started("t2", phase=RoundPhase.FIXED)
    staged.life(SECOND, 220, again.model_copy(update={"resumes": "t1", "first_epoch": 2}))
    staged.life(SECOND, 222, TrainingStarted(trial="t2"))
    staged.life(SECOND, 322, evaluated("t2", correct=70, epoch=2))
    staged.life(SECOND, 323, trial_ended("t2"))
    (found,) = times_of(staged)
    assert (found.trial, found.epochs) == ("t2", 2)
    assert (found.staging_seconds, found.compute_seconds) == (30, 200)
    assert found.seconds == 20 + 322 - 30
    assert found.extra_seconds == found.seconds - 230


def test_what_was_cut_or_never_evaluated_is_no_training(staged: RunWriter) -> None:
    staged.life(FIRST, 140, trial_ended("t1", TrialState.STOPPED))
    staged.life(FIRST, 141, trial_started("t2", phase=RoundPhase.FIXED))
    staged.life(FIRST, 142, trial_ended("t2", TrialState.FAILED))
    staged.life(FIRST, 143, trial_started("t3", phase=RoundPhase.FIXED))
    assert times_of(staged) == ()


SAMPLES = 1000
EPOCH = 60.0
"""Seconds."""


class Training(NamedTuple):
    """What one training records."""

    replica: str
    begins: float
    accuracies: Sequence[float]
    state: TrialState | None = TrialState.COMPLETED
    reason: str = ""
    resumes: str | None = None
    first_epoch: int = 1
    seed: int = 0
    lost: bool = False
    """Whether one of its ranks is lost at its end."""


def write(root: Path, trainings: Sequence[Training], *, end: float = 1000.0) -> RunWriter:
    """Write a run of these trainings; each has a step a second after its start."""
    run = RunWriter(root)
    run.primary(0, run_started())
    for replica in dict.fromkeys(each.replica for each in trainings):
        run.replica(1, replica_started(replica), name=replica)
    for number, each in enumerate(trainings, 1):
        trial, now = f"t{number}", each.begins
        started = trial_started(trial, phase=RoundPhase.FIXED)
        update = {"resumes": each.resumes, "first_epoch": each.first_epoch, "seed": each.seed}
        run.replica(now, started.model_copy(update=update), name=each.replica)
        run.replica(now + 1, TrainingStarted(trial=trial), name=each.replica)
        for epoch, accuracy in enumerate(each.accuracies, each.first_epoch):
            now += EPOCH
            run.replica(now, progress(trial, train=SAMPLES, epoch=epoch), name=each.replica)
            result = evaluated(
                trial, correct=round(SAMPLES * accuracy), samples=SAMPLES, epoch=epoch
            )
            run.replica(now + 1, result, name=each.replica)
        if each.lost:
            run.replica(now + 2, RanksLost(ranks=(1,), reason="rank 1 is gone"), name=each.replica)
        if each.state is not None:
            ended = trial_ended(trial, each.state).model_copy(update={"reason": each.reason})
            run.replica(now + 2, ended, name=each.replica)
    run.primary(end, run_ended())
    return run


def manifest_of(nodes: int, *assignments: str) -> RunManifest:
    config = load_config("volumes", ["training.target=0.7", *assignments])
    return run_manifest(config, nodes=nodes, rules=RULES)


def status(
    root: Path,
    trainings: Sequence[Training],
    *assignments: str,
    nodes: int = 1,
    weight: Weight | None = None,
) -> ModelsStatus:
    run = write(root, trainings)
    manifest = manifest_of(nodes, *assignments)
    found = models_status(run.history(), manifest, ACCURACY, weight, START + 1000.0)
    assert found is not None
    return found


def test_models_that_are_trained_at_once_are_counted_by_the_minute(tmp_path: Path) -> None:
    """Three reach the target: the first starts at 11 s, the last one ends at 251 s; one is cut."""
    found = status(
        tmp_path,
        [
            Training("r0", 10, [0.5, 0.8], seed=1),
            Training("r1", 20, [0.5, 0.6, 0.7], seed=2),
            Training("r0", 130, [0.6, 0.9], seed=3),
            Training("r1", 202, [0.4], TrialState.STOPPED, "the run's time is over", seed=4),
        ],
        nodes=2,
    )
    assert (found.scaling, found.concurrent, found.completed, found.reached) == ("weak", 2, 3, 3)
    assert found.started == 4
    assert found.median_seconds == 121
    assert found.models_per_minute == pytest.approx(3 / 4)
    how, what = model_lines(found, "accuracy")
    assert how == "weak scaling: 2 concurrent models, each on 1 node, 1 rank"
    assert what == (
        "3 of 3 reached 70.00%, in 2 min 01 s each (median); 0.75 models per minute; "
        "1 more did not finish"
    )


def test_the_median_of_two_trainings_is_the_mean_of_both(tmp_path: Path) -> None:
    """One takes 61 s and the other 121 s: the status and the summary state 91 s."""
    trainings = [Training("r0", 10, [0.8]), Training("r1", 20, [0.5, 0.8], seed=1)]
    found = status(tmp_path, trainings, nodes=2)
    assert found.median_seconds == 91
    manifest_of(2).save(RunPaths(tmp_path))
    view = RunView.read(RunPaths(tmp_path))
    assert (
        "Time to target   1 min 31 s (staging 0.0 s, compute 1 min 30 s, extra 1.0 s), "
        "medians of 2 training runs"
    ) in summary_lines(view)


def test_one_model_on_all_nodes_is_strong_scaling(tmp_path: Path) -> None:
    found = status(
        tmp_path,
        [Training("r0", 10, [0.8])],
        "replica.nodes=4",
        "replica.ranks_per_node=2",
        nodes=4,
    )
    assert (found.scaling, found.concurrent, found.nodes_per_model, found.ranks_per_model) == (
        "strong",
        1,
        4,
        8,
    )
    assert model_lines(found, "accuracy")[0] == (
        "strong scaling: one model at a time, each on 4 nodes, 8 ranks"
    )


def test_a_training_that_was_interrupted_and_gone_on_with_is_one(tmp_path: Path) -> None:
    """Its time is that from its first step on; the epoch that was done again counts once."""
    found = status(
        tmp_path,
        [
            Training("r0", 10, [0.5, 0.6], state=None, seed=7),
            Training("r0", 300, [0.55, 0.75], resumes="t1", first_epoch=2, seed=7),
        ],
    )
    assert (found.started, found.completed, found.reached) == (1, 1, 1)
    assert found.median_seconds == 300 + 2 * EPOCH + 1 - 10
    assert found.models_per_minute == pytest.approx(60 / (300 + 2 * EPOCH + 1 - 11))


def test_a_training_whose_rank_was_lost_has_no_end(tmp_path: Path) -> None:
    """Nothing was kept of it, so that its replica began anew."""
    lost = Training("r0", 10, [0.5, 0.6], state=None, lost=True)
    found = status(tmp_path, [lost, Training("r0", 300, [0.8])])
    assert (found.started, found.completed, found.reached) == (2, 1, 1)
    assert model_lines(found, "accuracy")[1].startswith("1 of 1 reached 70.00%")


def test_what_has_not_reached_the_target_counts_for_no_rate(tmp_path: Path) -> None:
    found = status(
        tmp_path,
        [
            Training("r0", 10, [0.5], TrialState.STOPPED, "no lower validation loss for 1 epoch"),
            Training("r0", 100, [], TrialState.FAILED, "EngineError"),
        ],
    )
    assert (found.started, found.completed, found.reached) == (2, 1, 0)
    assert found.models_per_minute is None
    assert found.median_seconds is None
    assert model_lines(found, "accuracy")[1] == "0 of 1 reached 70.00%; 1 more did not finish"


def test_without_a_target_a_model_is_trained_when_it_has_ended(tmp_path: Path) -> None:
    found = status(tmp_path, [Training("r0", 10, [0.5])], "training.target=null")
    assert (found.target, found.reached, found.completed) == (None, 0, 1)
    assert found.models_per_minute == pytest.approx(1.0)
    assert model_lines(found, "accuracy")[1] == "1 trained; 1 models per minute"


def test_valid_flops_weight_each_models_operations_by_what_it_reached(tmp_path: Path) -> None:
    """Two models, of qualities 0.4 and 0.8 for a target of 0.8 and n = 2: a quarter and all.

    Trained at once, they share the time from the first one's first step to the last one's end.
    """
    trainings = [Training("r0", 10, [0.4]), Training("r1", 40, [0.8])]
    found = status(tmp_path, trainings, "training.target=null", nodes=2, weight=Weight(0.8, 2))
    assert found.valid_flops is not None
    assert found.valid_flops.quality == pytest.approx(0.6)
    assert found.valid_flops.vflops == pytest.approx(found.valid_flops.flops * (0.25 + 1) / 2)
    assert found.valid_flops.flops == pytest.approx(2 * SAMPLES / (EPOCH + 30))
    assert model_lines(found, "accuracy")[2] == (
        "valid FLOPS 13.9 VFLOPS, of 22.2 FLOPS: each model's × (its accuracy / 80.00%)^2, "
        "60.00% in the mean"
    )


def test_valid_flops_of_models_one_after_another_are_their_mean(tmp_path: Path) -> None:
    trainings = [Training("r0", 10, [0.4]), Training("r0", 500, [0.8])]
    found = status(tmp_path, trainings, "training.target=null", weight=Weight(0.8, 2))
    assert found.valid_flops is not None
    # A training and a validation sample are an operation each; validation is not recorded here.
    assert found.valid_flops.flops == pytest.approx(SAMPLES / EPOCH)
    assert found.valid_flops.vflops == pytest.approx(SAMPLES / EPOCH * (0.25 + 1) / 2)


def test_a_run_that_searches_has_none(tmp_path: Path) -> None:
    run = write(tmp_path, [Training("r0", 10, [0.8])])
    manifest = run_manifest(load_config("quickstart"), rules=RULES)
    assert models_status(run.history(), manifest, ACCURACY, None, START + 1000.0) is None
    assert model_lines(None, "accuracy") == []
