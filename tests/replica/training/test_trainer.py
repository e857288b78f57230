"""Training of a trial: its records, credit and end, also after failures."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.support.clock import Clock
from tests.support.fakes import FakeDataset, FakeEngine, Script
from tests.support.immediate import IMMEDIATE
from tests.support.trials import GRAPH, planned_trial, replica_context

from aiperf_hpc.config import validate
from aiperf_hpc.errors import (
    DatasetError,
    EngineError,
    MorphismError,
    NonFiniteLossError,
    OutOfMemoryError,
)
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.memory import MemoryLimit, training_bytes
from aiperf_hpc.replica.context import Stopwatch
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.baseline import Tally
from aiperf_hpc.replica.engines.base import OptimizerState
from aiperf_hpc.replica.runtime.background import background_thread
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.training import checkpoint
from aiperf_hpc.replica.training.checkpoint import load_training
from aiperf_hpc.replica.training.trainer import Lead, Trainer
from aiperf_hpc.replica.training.trial import TrainingState, TrialProgress, TrialResult
from aiperf_hpc.replica.trials.building import OneRankBuilder
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import TimePhase, TrialState

T = TypeVar("T")

PLENTY = 2**40


class Bench:
    """A trainer with a fake engine, and its records."""

    def __init__(
        self,
        folder: Path,
        *scripts: Script,
        memory: int = PLENTY,
        checkpoints: Executor = IMMEDIATE,
        baseline: bool = False,
        **training: object,
    ) -> None:
        self.engine = FakeEngine(*scripts)
        self.dataset = FakeDataset()
        on_out_of_memory = training.pop("on_out_of_memory", "reduce_batch")
        every = training.pop("progress_interval_seconds", 600.0)
        config = validate(
            {
                "dataset": {"name": "synthetic"},
                "training": {"precision": "fp32", "learning_rate": 0.8, **training},
                "engine": {"on_out_of_memory": on_out_of_memory},
                "journal": {"progress_interval_seconds": every},
            },
            "test",
        )
        self.stop = StopFlag(float("inf"), folder / "stop")
        self.watch = Stopwatch()
        self.path = folder / "journal.jsonl"
        self.looks: list[int] = []
        """Steps of the first network at each call of ``meanwhile``."""
        context = replica_context(folder, config, stop=self.stop, stopwatch=self.watch)
        limit = MemoryLimit(context.config, memory)
        tally = Tally(self.engine.objective, self.dataset.info) if baseline else None
        quality = self.engine.objective.quality
        self.trainer = Trainer(context, self.dataset, quality, limit, checkpoints, tally)
        self.builder = OneRankBuilder(context, self.engine, self.dataset, self.trainer, IMMEDIATE)
        self.config = config

    def run(
        self,
        epochs: int = 3,
        batch_size: int = 16,
        done: int = 0,
        optimizer_state: OptimizerState | None = None,
    ) -> TrialResult:
        trial = replace(
            planned_trial(self.config, batch_size),
            epoch_limit=epochs,
            progress=TrialProgress(trial="r0-t1", epochs=done),
            optimizer_state=optimizer_state,
        )
        with self.watch.during(TimePhase.BUILD):
            built = self.builder.finish(self.builder.begin(trial))
        try:
            return self.trainer.run(built, self.meanwhile)
        finally:
            built.close()

    def meanwhile(self) -> None:
        self.looks.append(self.engine.networks[0].steps)

    def recorded(self, kind: type[T] | tuple[type[T], ...]) -> list[T]:
        return [r.event for r in JournalReader(self.path).read() if isinstance(r.event, kind)]

    def credited(self) -> tuple[int, int]:
        progress = self.recorded(records.Progress)
        return (
            sum(p.train_samples for p in progress),
            sum(p.validation_samples for p in progress),
        )


def test_a_completed_trial_is_recorded_and_credits_every_sample(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(losses=(0.9, 0.8, 0.7), accuracies=(0.4, 0.6, 0.55)))
    result = bench.run(epochs=3)
    assert (result.state, result.reason) == (TrialState.COMPLETED, "")
    assert result.values == (0.4, 0.6, 0.55)
    assert result.weights is not None
    assert result.predictions is None
    assert bench.credited() == (3 * 50, 3 * 20)
    (network,) = bench.engine.networks
    assert network.batch_sizes == [16, 16, 16, 2] * 3
    assert network.rates == pytest.approx([0.8 * (1 - step / 12) for step in range(12)])
    assert network.closed
    (started,) = bench.recorded(records.TrialStarted)
    assert (started.graph, started.seed) == (GRAPH.hash, 7)
    assert started.train_operations == count(GRAPH).training
    assert started.validation_operations == count(GRAPH).forward
    assert started.hyperparameters == bench.engine.built[0][1]
    assert started.hyperparameters.batch_size == 16


PATIENCE = "no lower validation loss in 2 epochs"


@pytest.mark.parametrize(
    ("settings", "epochs", "state", "reason"),
    [
        ({"patience": 2}, 4, TrialState.STOPPED, PATIENCE),
        ({"target": 0.4}, 1, TrialState.COMPLETED, "the target, 0.4, is reached"),
        ({"target": 0.6}, 2, TrialState.COMPLETED, "the target, 0.6, is reached"),
        ({"target": 0.61}, 3, TrialState.COMPLETED, "the target, 0.61, is reached"),
        ({"target": 0.9}, 5, TrialState.COMPLETED, ""),
    ],
)
def test_a_trial_ends_by_patience_or_target_and_keeps_its_weights(
    tmp_path: Path, settings: dict[str, Any], epochs: int, state: TrialState, reason: str
) -> None:
    losses, accuracies = (0.5, 0.4, 0.4, 0.6, 0.1), (0.4, 0.6, 0.8, 0.7)
    bench = Bench(tmp_path, Script(losses, accuracies), **settings)
    result = bench.run(epochs=5)
    assert (len(result.values), result.state, result.reason) == (epochs, state, reason)
    assert result.weights is not None


@pytest.mark.parametrize(
    ("last", "credited", "predictions"),
    [(-1, (0, 0), None), (5, (50 + 16 + 16, 20), [0] * 20), (9, (100 + 16 * 2, 40), [1] * 20)],
)
def test_a_stop_ends_the_trial_after_the_current_step(
    tmp_path: Path, last: int, credited: tuple[int, int], predictions: list[int] | None
) -> None:
    """Its samples are credited. The predictions are those of the last complete evaluation."""

    def stop(step: int) -> None:
        if step == last:
            bench.stop.ask("enough")

    bench = Bench(tmp_path, Script(on_step=stop, predicts=True))
    stop(-1)
    result = bench.run(epochs=3)
    assert (result.state, result.reason, result.weights) == (TrialState.STOPPED, "enough", None)
    assert bench.engine.networks[0].steps == last + 1
    assert bench.credited() == credited
    epochs = len(bench.recorded(records.Evaluated))
    assert epochs == credited[1] // 20
    found = result.predictions
    if predictions is None:
        assert found is None
    else:  # The fake's class is the number of the epoch, from 0.
        assert found is not None
        assert (found.trial, found.epoch, found.classes.tolist()) == ("r0-t1", epochs, predictions)


def test_progress_and_time_are_recorded_during_an_epoch(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(step_seconds=0.06), progress_interval_seconds=0.1)
    bench.run(epochs=1)
    trained = [p.train_samples for p in bench.recorded(records.Progress) if p.train_samples]
    assert sum(trained) == 50
    assert len(trained) >= 2
    seconds = bench.watch.take()
    assert seconds[TimePhase.TRAIN] >= 4 * 0.06
    assert {TimePhase.BUILD, TimePhase.DATA, TimePhase.EVALUATE} <= seconds.keys()


@pytest.mark.parametrize(
    ("script", "reason", "credited"),
    [
        # The samples that led to a non-finite loss were executed.
        (Script(drain_errors={5: NonFiniteLossError("the loss is NaN")}), "is NaN", (100, 20)),
        # It is unknown whether those of a failed step were.
        (Script(step_errors={6: OutOfMemoryError("no memory")}), "no memory", (50, 20)),
        (Script(drain_errors={0: EngineError("the device is gone")}), "is gone", (0, 0)),
        (Script(step_errors={2: DatasetError("shard 7 is truncated")}), "truncated", (0, 0)),
        (Script(build_error=EngineError("node 'x': no such layer")), "no such layer", (0, 0)),
        (Script(calibration_error=MorphismError("'norm' is not finite")), "not finite", (0, 0)),
    ],
)
def test_an_error_fails_the_trial_and_executed_samples_are_credited(
    tmp_path: Path, script: Script, reason: str, credited: tuple[int, int]
) -> None:
    bench = Bench(tmp_path, replace(script, predicts=True))
    result = bench.run(epochs=3)
    assert (result.state, result.predictions) == (TrialState.FAILED, None)
    assert result.reason.endswith(reason)
    assert bench.credited() == credited
    assert result.values == (0.5,) * (credited[1] // 20)
    built = not (script.build_error or script.calibration_error)
    assert bool(bench.recorded(records.TrainingStarted)) is built
    assert all(network.closed for network in bench.engine.networks) or not built


def test_a_batch_is_halved_until_it_fits_which_is_noted(tmp_path: Path) -> None:
    limit = training_bytes(GRAPH, 1_000_000, "fp32")
    bench = Bench(tmp_path, memory=limit)
    bench.run(epochs=1, batch_size=3_000_000)
    (started,) = bench.recorded(records.TrialStarted)
    assert started.hyperparameters.batch_size == 750_000
    assert started.notes == ("batch size 3000000 does not fit in memory; 750000 is used",)
    assert bench.engine.built[0][1].batch_size == 750_000


@pytest.mark.parametrize(("on_out_of_memory", "limit"), [("fail", 1_000_000), ("reduce_batch", 0)])
def test_a_batch_that_may_not_or_cannot_be_halved_fails_the_trial(
    tmp_path: Path, on_out_of_memory: str, limit: int
) -> None:
    memory = training_bytes(GRAPH, limit, "fp32") - int(limit == 0)
    bench = Bench(tmp_path, memory=memory, on_out_of_memory=on_out_of_memory)
    result = bench.run(batch_size=3_000_000)
    assert result.state is TrialState.FAILED
    assert result.reason.startswith("batch size 3000000 needs an estimated")
    assert "engine.memory_limit_gib" in result.reason
    assert bench.engine.built == []


def test_inserted_layers_are_calibrated_once_on_the_first_batch(tmp_path: Path) -> None:
    """Calibration credits no samples, and the batch is then trained on."""
    bench = Bench(tmp_path, Script(calibrates=("relu_deep1_norm",)))
    bench.run(epochs=2)
    assert bench.engine.networks[0].calibrated == [(0, 16)]
    calibrated = records.Calibrated(trial="r0-t1", layers=("relu_deep1_norm",), samples=16)
    first, second, third, *_ = (record.event for record in JournalReader(bench.path).read())
    assert isinstance(first, records.TrialStarted)
    assert isinstance(second, records.TrainingStarted)
    assert third == calibrated
    assert bench.recorded(records.Calibrated) == [calibrated]
    assert bench.credited() == (2 * 50, 2 * 20)
    assert bench.engine.networks[0].batch_sizes == [16, 16, 16, 2] * 2


def test_the_next_trial_is_prepared_once_this_one_may_end_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has 4 steps and 2 evaluation steps, and is longer than the lead."""
    monkeypatch.setattr("aiperf_hpc.replica.training.trainer.LEAST_SECONDS", 0.01)
    bench = Bench(tmp_path, Script(step_seconds=0.02, losses=(0.5, 0.4, 0.6)), patience=2)
    bench.run(epochs=9)
    # The duration of the first epoch is unknown; patience allows no epoch after the fourth.
    assert bench.looks == [1, 2, 3, 4, 4, 4, 13, 14, 15, 16, 16, 16]
    assert len(bench.recorded(records.Evaluated)) == 4


def test_a_resumed_trial_is_not_calibrated_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(calibrates=("relu_deep1_norm",)))
    bench.run(epochs=3, done=1, optimizer_state={})
    assert bench.engine.networks[0].steps == 2 * 4
    assert bench.engine.networks[0].calibrated == []
    assert bench.recorded(records.Calibrated) == []


def test_a_checkpoint_is_written_after_each_epoch_but_the_last(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(losses=(0.9, 0.8, 0.85)), checkpoint_interval_seconds=0.0)
    bench.run(epochs=4)
    saved = load_training(RunPaths(tmp_path).under_way("r0"))
    assert saved.progress == TrialProgress(
        trial="r0-t1",
        epochs=3,
        values=(0.5, 0.5, 0.5),
        lowest_loss=0.8,
        since_lowest=1,
        losses=(0.9, 0.8, 0.85),
        train_losses=(1.0, 1.0, 1.0),
        validation_losses=(0.85, 0.85),
    )
    assert saved.graph.hash == GRAPH.hash
    assert saved.weights.keys() == {**GRAPH.parameters, **GRAPH.statistics}.keys()
    assert saved.optimizer_state["momentum:left_conv/kernel"].tolist() == [12, 12, 12]


def test_training_continues_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first write lasts until the last epoch is trained, so no other one starts."""
    trained, written, evaluated = threading.Event(), list[int](), itertools.count(1)
    validation = FakeDataset.validation

    def held(path: Path, state: TrainingState) -> None:
        assert trained.wait(60.0)
        written.append(state.progress.epochs)

    def noticed(dataset: FakeDataset, batch_size: int) -> Iterator[Batch]:
        if next(evaluated) == 4:
            trained.set()
        return validation(dataset, batch_size)

    monkeypatch.setattr(checkpoint, "save_training", held)
    monkeypatch.setattr(FakeDataset, "validation", noticed)
    with background_thread() as checkpoints:
        bench = Bench(tmp_path, checkpoints=checkpoints, checkpoint_interval_seconds=0.0)
        assert bench.run(epochs=4).state is TrialState.COMPLETED
        assert written == [1]


def test_a_checkpoint_that_cannot_be_written_fails_the_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(checkpoint, "save_training", full)
    with background_thread() as checkpoints:
        bench = Bench(tmp_path, checkpoints=checkpoints, checkpoint_interval_seconds=0.0)
        result = bench.run(epochs=2)
    assert result.state is TrialState.FAILED
    assert "cannot write" in result.reason


def test_a_baseline_is_recorded_once_after_the_first_evaluation(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(), baseline=True)
    bench.run(epochs=2)
    bench.run(epochs=1)
    kinds = (records.Evaluated, records.BaselineMeasured)
    first, baseline, *others = bench.recorded(kinds)
    assert isinstance(baseline, records.BaselineMeasured)
    assert baseline.sums == {"correct": 5}
    assert all(isinstance(event, records.Evaluated) for event in (first, *others))
    assert len(others) == 2


def test_the_lead_is_one_and_a_half_times_the_longest_of_the_last_five_preparations() -> None:
    clock = Clock()
    lead = Lead(clock)
    found = [lead.seconds]
    for seconds in (100.0, 80.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0):
        end = lead.begin()
        clock.advance(seconds)
        end(None)
        found.append(lead.seconds)
    assert found == [60.0, *[150.0] * 5, 120.0, *[60.0] * 4]
