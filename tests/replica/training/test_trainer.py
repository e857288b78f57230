"""A trial is trained, credited and ended as its records say, whatever happens in it."""

from __future__ import annotations

import errno
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.fakes import FakeDataset, FakeEngine, Script
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
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.data.baseline import Tally
from aiperf_hpc.replica.engines.base import OptimizerState
from aiperf_hpc.replica.runtime.background import IMMEDIATE, background_thread
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.replica.training import checkpoint
from aiperf_hpc.replica.training.checkpoint import load_training
from aiperf_hpc.replica.training.trainer import Trainer
from aiperf_hpc.replica.training.trial import (
    TrainingState,
    TrialProgress,
    TrialResult,
)
from aiperf_hpc.replica.trials.building import OneRankBuilder
from aiperf_hpc.run import records
from aiperf_hpc.run.journal import JournalReader
from aiperf_hpc.run.paths import RunPaths
from aiperf_hpc.trial import TimePhase, TrialState

T = TypeVar("T")

PLENTY = 2**40


class Bench:
    """A trainer with a fake engine, and what it recorded."""

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
        """After which steps of the first network, or of its evaluations, the trial seemed near."""
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

    def recorded(self, kind: type[T]) -> list[T]:
        return [r.event for r in JournalReader(self.path).read() if isinstance(r.event, kind)]

    def credited(self) -> tuple[int, int]:
        progress = self.recorded(records.Progress)
        return (
            sum(p.train_samples for p in progress),
            sum(p.validation_samples for p in progress),
        )


def test_a_completed_trial_credits_every_sample_of_every_epoch(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(losses=(0.9, 0.8, 0.7), accuracies=(0.4, 0.6, 0.55)))
    result = bench.run(epochs=3)
    assert (result.state, result.reason) == (TrialState.COMPLETED, "")
    assert result.values == (0.4, 0.6, 0.55)
    assert result.weights is not None
    assert bench.credited() == (3 * 50, 3 * 20)
    assert bench.engine.networks[0].batch_sizes == [16, 16, 16, 2] * 3
    assert bench.engine.networks[0].closed


def test_the_record_of_the_start_says_what_is_really_used(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run()
    (started,) = bench.recorded(records.TrialStarted)
    assert started.graph == GRAPH.hash
    assert started.train_operations == count(GRAPH).training
    assert started.validation_operations == count(GRAPH).forward
    assert started.hyperparameters == bench.engine.built[0][1]
    assert started.hyperparameters.batch_size == 16
    assert started.seed == 7


def test_the_learning_rate_falls_linearly_over_the_epoch_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(epochs=2)
    steps = 2 * 4
    assert bench.engine.networks[0].rates == [
        pytest.approx(0.8 * (1 - step / steps)) for step in range(steps)
    ]


def test_patience_stops_early_and_keeps_the_weights(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(losses=(0.5, 0.4, 0.4, 0.6, 0.1)), patience=2)
    result = bench.run(epochs=9)
    assert result.state is TrialState.STOPPED
    assert result.reason == "no lower validation loss in 2 epochs"
    assert len(result.values) == 4
    assert result.weights is not None


def test_predictions_are_those_of_the_last_complete_evaluation(tmp_path: Path) -> None:
    def stop_in_the_third_epoch(step: int) -> None:
        if step == 9:
            bench.stop.ask("enough")

    bench = Bench(tmp_path, Script(on_step=stop_in_the_third_epoch, predicts=True))
    found = bench.run(epochs=9).predictions
    assert found is not None
    assert (found.trial, found.epoch) == ("r0-t1", 2)
    assert found.classes.tolist() == [1] * 20  # The fake's class is the epoch's number from 0.


def test_a_trial_that_failed_or_predicts_nothing_has_no_predictions(tmp_path: Path) -> None:
    assert Bench(tmp_path / "a").run().predictions is None
    failing = Script(step_errors={5: EngineError("broken")}, predicts=True)
    bench = Bench(tmp_path / "b", failing, Script(predicts=True))
    assert bench.run().predictions is None
    unevaluated = Script(on_step=lambda _: last.stop.ask("enough"), predicts=True)
    last = Bench(tmp_path / "c", unevaluated)
    assert last.run().predictions is None


@pytest.mark.parametrize(
    ("last", "credited", "evaluated"), [(-1, (0, 0), 0), (5, (50 + 16 + 16, 20), 1)]
)
def test_a_stop_ends_after_the_current_step_and_credits_exactly_it(
    tmp_path: Path, last: int, credited: tuple[int, int], evaluated: int
) -> None:
    def stop(step: int) -> None:
        if step == last:
            bench.stop.ask("enough")

    bench = Bench(tmp_path, Script(on_step=stop))
    stop(-1)
    result = bench.run(epochs=3)
    assert (result.state, result.reason, result.weights) == (TrialState.STOPPED, "enough", None)
    assert bench.engine.networks[0].steps == last + 1
    assert bench.credited() == credited
    assert len(bench.recorded(records.Evaluated)) == evaluated


def test_progress_is_recorded_while_an_epoch_lasts(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(step_seconds=0.06), progress_interval_seconds=0.1)
    bench.run(epochs=1)
    trained = [p.train_samples for p in bench.recorded(records.Progress) if p.train_samples]
    assert sum(trained) == 50
    assert len(trained) >= 2


@pytest.mark.parametrize(
    ("script", "reason", "credited"),
    [
        # The samples that led to it were executed.
        (Script(drain_errors={1: NonFiniteLossError("the loss is NaN")}), "is NaN", (100, 20)),
        # Nobody knows whether those of a step that broke were.
        (Script(step_errors={6: OutOfMemoryError("no memory")}), "no memory", (50, 20)),
        (Script(drain_errors={0: EngineError("the device is gone")}), "is gone", (0, 0)),
        (Script(step_errors={2: DatasetError("shard 7 is truncated")}), "truncated", (0, 0)),
        (Script(build_error=EngineError("node 'x': no such layer")), "no such layer", (0, 0)),
        (Script(calibration_error=MorphismError("'norm' is not finite")), "not finite", (0, 0)),
    ],
)
def test_whatever_goes_wrong_fails_the_trial_with_the_reason_and_credits_what_was_executed(
    tmp_path: Path, script: Script, reason: str, credited: tuple[int, int]
) -> None:
    bench = Bench(tmp_path, script)
    result = bench.run(epochs=3)
    assert result.state is TrialState.FAILED
    assert result.reason.endswith(reason)
    assert bench.credited() == credited
    assert result.values == (0.5,) * (credited[1] // 20)
    built = not (script.build_error or script.calibration_error)
    assert bool(bench.recorded(records.TrainingStarted)) is built
    assert all(network.closed for network in bench.engine.networks) or not built


def test_a_batch_that_does_not_fit_is_halved_until_it_does_and_that_is_said(
    tmp_path: Path,
) -> None:
    limit = training_bytes(GRAPH, 1_000_000, "fp32")
    bench = Bench(tmp_path, memory=limit)
    bench.run(epochs=1, batch_size=3_000_000)
    (started,) = bench.recorded(records.TrialStarted)
    assert started.hyperparameters.batch_size == 750_000
    assert started.notes == ("batch size 3000000 does not fit in memory; 750000 is used",)
    assert bench.engine.built[0][1].batch_size == 750_000


@pytest.mark.parametrize(("on_out_of_memory", "limit"), [("fail", 1_000_000), ("reduce_batch", 0)])
def test_a_trial_that_may_not_shrink_or_cannot_is_refused(
    tmp_path: Path, on_out_of_memory: str, limit: int
) -> None:
    memory = training_bytes(GRAPH, limit, "fp32") - int(limit == 0)
    bench = Bench(tmp_path, memory=memory, on_out_of_memory=on_out_of_memory)
    result = bench.run(batch_size=3_000_000)
    assert result.state is TrialState.FAILED
    assert result.reason.startswith("batch size 3000000 needs an estimated")
    assert "engine.memory_limit_gib" in result.reason
    assert bench.engine.built == []


def test_time_goes_to_the_phase_it_was_spent_in(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(step_seconds=0.02))
    bench.run(epochs=2)
    seconds = bench.watch.take()
    # Every step, the first one too: what it would have compiled was compiled before.
    assert seconds[TimePhase.TRAIN] >= 8 * 0.02
    assert {TimePhase.BUILD, TimePhase.DATA, TimePhase.EVALUATE} <= seconds.keys()


def test_what_was_inserted_is_calibrated_on_the_first_batch_before_it_starts(
    tmp_path: Path,
) -> None:
    """Once, before the first step; no sample is credited for it."""
    bench = Bench(tmp_path, Script(calibrates=("relu_deep1_norm",), step_seconds=0.02))
    bench.run(epochs=2)
    assert bench.engine.networks[0].calibrated == [(0, 16)]
    assert bench.recorded(records.Calibrated) == [
        records.Calibrated(trial="r0-t1", layers=("relu_deep1_norm",), samples=16)
    ]
    assert bench.credited() == (2 * 50, 2 * 20)
    # The batch that it was calibrated on is trained on too, and first.
    assert bench.engine.networks[0].batch_sizes == [16, 16, 16, 2] * 2


@pytest.mark.parametrize(("fitting", "batch_size"), [(2**20, 16), (10_000, 8_000)])
def test_the_network_is_warmed_with_its_batch_before_its_first_step(
    tmp_path: Path, fitting: int, batch_size: int
) -> None:
    bench = Bench(tmp_path, memory=training_bytes(GRAPH, fitting, "fp32"))
    bench.run(batch_size=batch_size)
    assert bench.engine.networks[0].warmed == [batch_size]
    assert bench.recorded(records.Calibrated) == []  # Nothing was inserted.


def test_preparing_records_nothing_and_training_begins_with_all_of_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(calibrates=("norm",)))
    bench.run(epochs=1)
    kinds = [type(r.event) for r in JournalReader(bench.path).read()]
    assert kinds[:3] == [records.TrialStarted, records.TrainingStarted, records.Calibrated]


def test_the_next_trial_is_looked_for_once_this_one_may_end_before_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch has 4 steps and 2 evaluation steps, and takes longer than the lead."""
    monkeypatch.setattr("aiperf_hpc.replica.training.trainer.LEAST_SECONDS", 0.01)
    bench = Bench(tmp_path, Script(step_seconds=0.02, losses=(0.5, 0.4, 0.6)), patience=2)
    bench.run(epochs=9)
    # How long the first epoch takes is unknown; the fourth is the last that patience allows.
    assert bench.looks == [1, 2, 3, 4, 4, 4, 13, 14, 15, 16, 16, 16]
    assert len(bench.recorded(records.Evaluated)) == 4


def test_a_trial_that_goes_on_is_not_calibrated_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(calibrates=("relu_deep1_norm",)))
    bench.run(epochs=3, done=1, optimizer_state={})
    assert bench.engine.networks[0].steps == 2 * 4
    assert bench.engine.networks[0].calibrated == []
    assert bench.recorded(records.Calibrated) == []


def test_a_trial_under_way_is_checkpointed_after_an_epoch(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(losses=(0.9, 0.8, 0.85)), checkpoint_interval_seconds=0.0)
    bench.run(epochs=4)
    saved = load_training(RunPaths(tmp_path).under_way("r0"))
    # After the last epoch there is nothing to go on with.
    assert saved.progress == TrialProgress(
        trial="r0-t1",
        epochs=3,
        accuracies=(0.5, 0.5, 0.5),
        lowest_loss=0.8,
        since_lowest=1,
        losses=(0.9, 0.8, 0.85),
    )
    assert saved.graph.hash == GRAPH.hash
    assert saved.weights.keys() == {**GRAPH.parameters, **GRAPH.statistics}.keys()
    assert saved.optimizer_state["momentum:left_conv/kernel"].tolist() == [12, 12, 12]


def test_a_trial_goes_on_while_its_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is held until the last epoch is trained: no other is begun until then."""
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


def test_a_checkpoint_that_cannot_be_written_beside_it_fails_the_trial(
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


def test_a_baseline_is_recorded_behind_the_first_evaluation_and_never_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Script(), baseline=True)
    bench.run(epochs=2)
    bench.run(epochs=1)
    kinds = (records.Evaluated, records.BaselineMeasured)
    events = [r.event for r in JournalReader(bench.path).read() if isinstance(r.event, kinds)]
    assert [type(event) for event in events] == [kinds[0], kinds[1], kinds[0], kinds[0]]
    assert isinstance(events[1], records.BaselineMeasured)
    assert events[1].sums == {"correct": 20}
