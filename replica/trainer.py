"""Training one trial, and recording what was executed while it is executed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from aiperf_hpc.clock import Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import AIPerfError, JournalError, NonFiniteLossError
from aiperf_hpc.graph import Graph
from aiperf_hpc.journal import JournalWriter
from aiperf_hpc.morphism.morphs import Morphism
from aiperf_hpc.morphism.weights import Weights
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.records import (
    Calibrated,
    Evaluated,
    Progress,
    StepTimes,
    TrainingStarted,
    TrialStarted,
)
from aiperf_hpc.replica.data.base import Batch, Dataset
from aiperf_hpc.replica.engines.base import Engine, Evaluation, Network
from aiperf_hpc.replica.memory import fitting_batch, training_bytes
from aiperf_hpc.replica.resume import Course, save_course
from aiperf_hpc.replica.stopping import StopFlag
from aiperf_hpc.replica.stopwatch import Stopwatch
from aiperf_hpc.storage import Persist
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TimePhase, TrialState

HOLD_SECONDS = 10.0
"""Between two snapshots in memory of a trial under way."""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """What to train, before the machine's limits are applied."""

    trial: str
    round: int
    phase: RoundPhase
    graph: Graph
    weights: Weights
    parent: str | None
    proposal: str | None
    morphisms: tuple[Morphism, ...]
    batch_size: int
    kernel_size: int | None
    epoch_limit: int
    seed: int
    course: Course
    """What has happened in it so far: nothing, unless it was interrupted."""
    resumes: str | None = None
    """The interrupted trial."""
    momenta: Weights | None = None
    """The interrupted trial's."""
    learning_rate: float | None = None
    """The configuration's where it is None; so are those below."""
    momentum: float | None = None
    weight_decay: float | None = None


@dataclass(frozen=True, slots=True)
class TrialResult:
    """How a trial went. ``weights`` are there unless it failed or the run is ending."""

    state: TrialState
    reason: str
    accuracies: tuple[float, ...] = ()
    """After each complete evaluation, in order, those before an interruption included."""
    weights: Weights | None = None
    used: Hyperparameters | None = None
    """What it really trained with; None when it was refused."""
    interrupted: bool = False
    """Whether another life of this replica is to go on with it."""


class _Stopped(Exception):  # noqa: N818 -- not an error: the run is ending
    """The trial must end now."""


@dataclass(slots=True)
class _Training:
    """A trial under way."""

    plan: TrialPlan
    used: Hyperparameters
    course: Course


class Trainer:
    """Trains trials on this replica, one after the other."""

    def __init__(
        self,
        engine: Engine,
        dataset: Dataset,
        config: RunConfig,
        journal: JournalWriter,
        stopwatch: Stopwatch,
        stop: StopFlag,
        memory_limit: int,
        under_way: Path,
        persist: Persist,
        clock: Clock,
        step_times: Callable[[str], StepTimes | None] = lambda _: None,
    ) -> None:
        """Make a trainer.

        Args:
            engine: what trains.
            dataset: what on.
            config: the run's.
            journal: the replica's.
            stopwatch: told what the time is spent on.
            stop: asked after every step.
            memory_limit: bytes that a training may take.
            under_way: where the checkpoint of a trial under way is kept.
            persist: how to write it.
            clock: what the times between records and checkpoints are taken by.
            step_times: asked after a trial where the time of its steps went on several ranks.
        """
        self._engine, self._dataset, self._config = engine, dataset, config
        self._journal, self._watch, self._stop = journal, stopwatch, stop
        self._memory_limit, self._under_way = memory_limit, under_way
        self._persist, self._clock, self._step_times = persist, clock, step_times
        self._every = config.journal.progress_seconds

    def run(self, plan: TrialPlan) -> TrialResult:
        """Train a trial to its end. What goes wrong with it is in the result, not raised."""
        hyperparameters = self._start(plan)
        if hyperparameters is None:
            return TrialResult(TrialState.FAILED, self._too_large(plan))
        training, used = _Training(plan, hyperparameters, plan.course), hyperparameters
        try:
            with self._watch.during(TimePhase.BUILD):
                network = self._engine.build(
                    plan.graph, plan.weights, hyperparameters, plan.momenta
                )
            try:
                self._journal.append(TrainingStarted(trial=plan.trial))
                return self._train(network, training)
            finally:
                with self._watch.during(TimePhase.BUILD):
                    network.close()
                if (times := self._step_times(plan.trial)) is not None:
                    self._journal.append(times)
        except JournalError:
            raise  # What cannot be recorded must not go on.
        except (AIPerfError, MemoryError) as error:
            reason = str(error) or "the host has no memory left"
            return TrialResult(TrialState.FAILED, reason, training.course.accuracies, used=used)

    def fits(self, graph: Graph, batch_size: int) -> bool:
        """Return whether training ``graph`` in such batches is estimated to fit in memory."""
        precision, ranks = self._config.training.precision, self._config.replica.ranks
        return fitting_batch(graph, batch_size, precision, self._memory_limit, ranks) == batch_size

    def _start(self, plan: TrialPlan) -> Hyperparameters | None:
        """Record the trial with what it will really use; None when it cannot fit."""
        training, limit = self._config.training, self._memory_limit
        ranks = self._config.replica.ranks
        batch = fitting_batch(plan.graph, plan.batch_size, training.precision, limit, ranks)
        refused = batch == 0 or (
            batch < plan.batch_size and self._config.engine.on_memory == "refuse"
        )
        used = plan.batch_size if refused else batch
        note = f"batch size {plan.batch_size} does not fit in memory; {batch} is used"
        hyperparameters = Hyperparameters(
            batch_size=used,
            kernel_size=plan.kernel_size,
            optimizer=training.optimizer,
            learning_rate=_given(plan.learning_rate, training.learning_rate),
            momentum=_given(plan.momentum, training.momentum),
            weight_decay=_given(plan.weight_decay, training.weight_decay),
            label_smoothing=training.label_smoothing,
            precision=training.precision,
        )
        operations = count(plan.graph)
        memory = training_bytes(plan.graph, -(-used // ranks), training.precision)
        self._journal.append(
            TrialStarted(
                trial=plan.trial,
                round=plan.round,
                phase=plan.phase,
                graph=plan.graph.hash,
                parent=plan.parent,
                proposal=plan.proposal,
                morphisms=tuple(m.to_data() for m in plan.morphisms),
                hyperparameters=hyperparameters,
                seed=plan.seed,
                epoch_limit=plan.epoch_limit,
                resumes=plan.resumes,
                first_epoch=plan.course.epochs + 1,
                parameters=plan.graph.parameter_count,
                depth=plan.graph.depth,
                train_operations=operations.training,
                validation_operations=operations.forward,
                memory_estimate_bytes=memory,
                notes=(note,) if used < plan.batch_size else (),
            )
        )
        return None if refused else hyperparameters

    def _too_large(self, plan: TrialPlan) -> str:
        precision, ranks = self._config.training.precision, self._config.replica.ranks
        needed = training_bytes(plan.graph, -(-plan.batch_size // ranks), precision)
        return (
            f"batch size {plan.batch_size} needs an estimated {needed / 2**30:.1f} GiB, "
            f"{self._memory_limit / 2**30:.1f} GiB are there; lower the batch size or raise "
            "engine.memory_gib"
        )

    def _train(self, network: Network, training: _Training) -> TrialResult:
        """Train by epochs until the limit, patience, or the end of the run."""
        plan, patience = training.plan, self._config.training.patience
        saved = held_at = self._clock.monotonic()
        # What is stored when a scheduler takes the node away, if it is newer than the checkpoint.
        held = None
        if plan.momenta is not None:
            held = self._snapshot(training, plan.weights, plan.momenta)
        try:
            for epoch in range(plan.course.epochs + 1, plan.epoch_limit + 1):
                self._epoch(network, training, epoch)
                if epoch == plan.epoch_limit:
                    break
                if training.course.since_lowest >= patience:
                    reason = f"no lower validation loss in {patience} epochs"
                    return self._ended(TrialState.STOPPED, reason, network, training)
                now = self._clock.monotonic()
                if now - saved >= self._config.training.checkpoint_seconds:
                    self._hold(network, training)()
                    held, saved = None, self._clock.monotonic()
                elif now - max(saved, held_at) >= HOLD_SECONDS:
                    held, held_at = self._hold(network, training), now
        except _Stopped:
            interrupted = self._stop.interrupted
            if interrupted and held:
                held()
            return TrialResult(
                TrialState.STOPPED,
                self._stop.reason or "",
                training.course.accuracies,
                used=training.used,
                interrupted=interrupted,
            )
        return self._ended(TrialState.COMPLETED, "", network, training)

    def _epoch(self, network: Network, training: _Training, epoch: int) -> None:
        """Train and evaluate once over all samples."""
        self._stop_if_asked()
        trial, used = training.plan.trial, training.used
        loss, rate = self._train_epoch(network, training.plan, used, epoch)
        first = epoch == training.plan.course.epochs + 1
        evaluation = self._evaluate(network, trial, used.batch_size, epoch, first=first)
        accuracy = evaluation.correct / evaluation.samples
        training.course = training.course.after(accuracy, evaluation.mean_loss)
        self._journal.append(
            Evaluated(
                trial=trial,
                epoch=epoch,
                learning_rate=rate,
                train_loss=loss,
                validation_loss=evaluation.mean_loss,
                correct=evaluation.correct,
                samples=evaluation.samples,
            )
        )

    def _hold(self, network: Network, training: _Training) -> Callable[[], None]:
        """Take a snapshot of the trial as it is now; return what stores it."""
        with self._watch.during(TimePhase.STORE):
            return self._snapshot(training, network.weights(), network.momenta())

    def _snapshot(
        self, training: _Training, weights: Weights, momenta: Weights
    ) -> Callable[[], None]:
        """Return what stores all that a new life of this replica needs to go on with the trial."""
        path, course, graph = self._under_way, training.course, training.plan.graph

        def store() -> None:
            with self._watch.during(TimePhase.STORE):
                self._persist(lambda: save_course(path, course, graph, weights, momenta), str(path))

        return store

    def _ended(
        self, state: TrialState, reason: str, network: Network, training: _Training
    ) -> TrialResult:
        with self._watch.during(TimePhase.STORE):
            weights = network.weights()
        return TrialResult(state, reason, training.course.accuracies, weights, training.used)

    def _train_epoch(
        self, network: Network, plan: TrialPlan, used: Hyperparameters, epoch: int
    ) -> tuple[float, float]:
        """Train on every sample once; return the mean loss and the last learning rate."""
        steps = math.ceil(self._dataset.info.train_samples / used.batch_size)
        total = steps * plan.epoch_limit
        meter = _TrainMeter(self._journal, self._clock, self._every, network, plan.trial, epoch)
        batches = self._dataset.train(epoch, used.batch_size, plan.seed)
        rate = used.learning_rate
        with self._watch.during(TimePhase.TRAIN), meter:
            for step, batch in enumerate(self._timed(batches), (epoch - 1) * steps):
                if step == 0:
                    self._calibrate(network, plan.trial, batch)
                rate = used.learning_rate * (1.0 - step / total)
                with self._compiling(step == plan.course.epochs * steps):
                    network.train_step(batch, rate)
                meter.executed(batch.whole)
                self._stop_if_asked()
        return meter.mean_loss, rate

    def _calibrate(self, network: Network, trial: str, batch: Batch) -> None:
        """Fit what morphisms inserted to the first batch: part of building the network."""
        with self._watch.during(TimePhase.BUILD):
            layers = network.calibrate(batch)
        if layers:
            self._journal.append(Calibrated(trial=trial, layers=layers, samples=batch.whole))

    def _compiling(self, first: bool) -> AbstractContextManager[None]:
        """Book a network's first step as building it: frameworks optimise graphs in it."""
        return self._watch.during(TimePhase.BUILD) if first else nullcontext()

    def _evaluate(
        self, network: Network, trial: str, batch_size: int, epoch: int, *, first: bool
    ) -> Evaluation:
        """Evaluate every validation sample once."""
        meter = _EvaluationMeter(self._journal, self._clock, self._every, network, trial, epoch)
        with self._watch.during(TimePhase.EVALUATE), meter:
            for number, batch in enumerate(self._timed(self._dataset.validation(batch_size))):
                with self._compiling(first and number == 0):
                    network.evaluate_step(batch)
                meter.executed(batch.whole)
                self._stop_if_asked()
        return meter.total

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches; the time spent waiting for them is data time."""
        while True:
            with self._watch.during(TimePhase.DATA):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _stop_if_asked(self) -> None:
        if self._stop.reason is not None:
            raise _Stopped


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


class _Meter:
    """Credits samples once the network has executed them: every few seconds and at the end.

    Samples whose steps ended in an error of the engine are not credited: nobody knows whether
    they were executed. Those that led to a loss that is not finite were.
    """

    def __init__(
        self,
        journal: JournalWriter,
        clock: Clock,
        every: float,
        network: Network,
        trial: str,
        epoch: int,
    ) -> None:
        self._journal, self._clock, self._every = journal, clock, every
        self._network, self._trial, self._epoch = network, trial, epoch
        self._pending = 0
        self._recorded = self._clock.monotonic()

    def executed(self, samples: int) -> None:
        """Note samples given to the network."""
        self._pending += samples
        if self._clock.monotonic() - self._recorded >= self._every:
            self.flush()

    def flush(self) -> None:
        """Wait for the network and credit what it executed."""
        try:
            self._drain()
        except NonFiniteLossError:
            self._credit()
            raise
        self._credit()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or kind is _Stopped:
            self.flush()

    def _credit(self) -> None:
        self._recorded = self._clock.monotonic()
        if self._pending:
            self._journal.append(self._progress(self._pending))
            self._pending = 0

    def _drain(self) -> None:
        raise NotImplementedError

    def _progress(self, samples: int) -> Progress:
        raise NotImplementedError


class _TrainMeter(_Meter):
    """Credits training samples; keeps the mean loss of the epoch."""

    _loss_sum, _samples = 0.0, 0

    @property
    def mean_loss(self) -> float:
        return self._loss_sum / self._samples if self._samples else 0.0

    def _drain(self) -> None:
        self._loss_sum += self._network.drain_training() * self._pending
        self._samples += self._pending

    def _progress(self, samples: int) -> Progress:
        return Progress(
            trial=self._trial, epoch=self._epoch, train_samples=samples, validation_samples=0
        )


class _EvaluationMeter(_Meter):
    """Credits validation samples; keeps the sums of the evaluation."""

    total = Evaluation(0.0, 0, 0)

    def _drain(self) -> None:
        part = self._network.drain_evaluation()
        total = self.total
        self.total = Evaluation(
            total.loss + part.loss, total.correct + part.correct, total.samples + part.samples
        )

    def _progress(self, samples: int) -> Progress:
        return Progress(
            trial=self._trial, epoch=self._epoch, train_samples=0, validation_samples=samples
        )
