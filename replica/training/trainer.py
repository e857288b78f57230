"""Training one trial, and recording what was executed while it is executed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aiperf_hpc.clock import Clock
from aiperf_hpc.config import RunConfig
from aiperf_hpc.errors import (
    AIPerfError,
    EngineError,
    JournalError,
    NonFiniteLossError,
    OutOfMemoryError,
)
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.operators.base import Morphism
from aiperf_hpc.morphism.weights.checkpoint import Weights
from aiperf_hpc.objective import Measure
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.replica.data.base import Batch, Dataset
from aiperf_hpc.replica.engines.base import Engine, EvaluationSums, Network, OptimizerState
from aiperf_hpc.replica.runtime.stopping import StopFlag
from aiperf_hpc.replica.runtime.stopwatch import Stopwatch
from aiperf_hpc.replica.training.checkpoint import TrialProgress, save_training
from aiperf_hpc.replica.training.memory_estimate import fitting_batch, training_bytes
from aiperf_hpc.replica.training.schedule import Schedule
from aiperf_hpc.run.journal import JournalWriter
from aiperf_hpc.run.records import (
    Calibrated,
    Evaluated,
    Progress,
    TrainingStarted,
    TrialStarted,
)
from aiperf_hpc.run.storage import Retry
from aiperf_hpc.trial import Hyperparameters, RoundPhase, TimePhase, TrialState

HOLD_SECONDS = 10.0
"""Between two snapshots in memory of a trial under way."""
LEAD_SECONDS = 60.0
"""A trial is near its end when it may end within this time: enough to make the next one ready."""


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
    course: TrialProgress
    """What has happened in it so far: nothing, unless it was interrupted."""
    resumes: str | None = None
    """The interrupted trial."""
    optimizer_state: OptimizerState | None = None
    """The interrupted trial's."""
    learning_rate: float | None = None
    """The configuration's where it is None; so are those below."""
    momentum: float | None = None
    weight_decay: float | None = None
    notes: tuple[str, ...] = ()
    """What people should know of how it came about."""


@dataclass(slots=True)
class Prepared:
    """A trial that is ready for its first step, or what went wrong with it until there."""

    plan: TrialPlan
    used: Hyperparameters
    """What it will really train with."""
    notes: tuple[str, ...] = ()
    network: Network | None = None
    batches: Iterator[Batch] | None = None
    """Of its first epoch, begun."""
    calibrated: Calibrated | None = None
    failure: Exception | None = None
    """Why it cannot be trained: an AIPerfError or a MemoryError."""

    def close(self) -> None:
        """Free its network, if it has one."""
        if self.network is not None:
            self.network.close()


@dataclass(frozen=True, slots=True)
class TrialResult:
    """How a trial went. ``weights`` are there unless it failed or the run is ending."""

    state: TrialState
    reason: str
    values: tuple[float, ...]
    """The objective value after each complete evaluation, those before an interruption included."""
    used: Hyperparameters
    """What it trained with, or was to."""
    weights: Weights | None = None
    interrupted: bool = False
    """Whether another life of this replica is to go on with it."""
    out_of_memory: bool = False
    """Whether it failed because it did not fit on the accelerator."""

    @property
    def cut(self) -> bool:
        """Whether the end of the run, or an interruption, cut it."""
        return self.state is not TrialState.FAILED and self.weights is None


class _Stopped(Exception):  # noqa: N818 -- not an error: the run is ending
    """The trial must end now."""


@dataclass(slots=True)
class _Training:
    """A trial under way."""

    plan: TrialPlan
    used: Hyperparameters
    course: TrialProgress
    batches: Iterator[Batch] | None
    """Of the first epoch, as long as it is to come."""
    meanwhile: Callable[[], None]


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
        retry: Retry,
        clock: Clock,
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
            retry: how to write it.
            clock: what the times between records and checkpoints are taken by.
        """
        self._engine = engine
        self._dataset = dataset
        self._config = config
        self._journal = journal
        self._watch = stopwatch
        self._stop = stop
        self._memory_limit = memory_limit
        self._under_way = under_way
        self._retry = retry
        self._clock = clock
        self._every = config.journal.progress_seconds
        self._measure = engine.objective.quality

        self._epoch_seconds = 0.0
        """What the last epoch took."""

    def prepare(self, plan: TrialPlan) -> Prepared:
        """Make a trial ready for its first step. What goes wrong with it is kept, not raised.

        Nothing is recorded, and no other trial is disturbed: another thread may be in ``run``.
        """
        prepared = self.fit_batch(plan)

        def build() -> Network:
            network = self._engine.build(
                plan.graph, plan.weights, prepared.used, plan.optimizer_state
            )
            network.warm(self.warmup_batch_size(prepared))
            return network

        return self.with_network(prepared, build)

    def with_network(self, prepared: Prepared, build: Callable[[], Network]) -> Prepared:
        """Give a trial that fits its network and the data of its first epoch.

        Args:
            prepared: the trial; one with a failure stays as it is.
            build: returns the network, or raises AIPerfError or MemoryError.
        """
        if prepared.failure is None:
            try:
                prepared.network = build()
                self._begin_data(prepared, prepared.network)
            except (AIPerfError, MemoryError) as error:
                prepared.failure = error
        return prepared

    def run(self, prepared: Prepared, meanwhile: Callable[[], None] = lambda: None) -> TrialResult:
        """Train a trial to its end. What goes wrong with it is in the result, not raised.

        Args:
            prepared: the trial; its network is left to the caller to close.
            meanwhile: called after each step once the trial may end within ``LEAD_SECONDS``.
        """
        plan, network = prepared.plan, prepared.network
        started = self._started(prepared)
        if prepared.failure is not None or network is None:
            self._journal.append(started)
            return _failed(prepared.failure, plan.course, prepared.used)
        beginning = [started, TrainingStarted(trial=plan.trial), prepared.calibrated]
        self._journal.append_all([event for event in beginning if event is not None])
        training = _Training(plan, prepared.used, plan.course, prepared.batches, meanwhile)
        try:
            return self._train(network, training)
        except JournalError:
            raise  # What cannot be recorded must not go on.
        except (AIPerfError, MemoryError) as error:
            return _failed(error, training.course, prepared.used)

    @property
    def perfect(self) -> float:
        """The highest objective value that there is."""
        return self._measure.objective_value(self._measure.perfect)

    def fits(self, graph: Graph, batch_size: int) -> bool:
        """Return whether training ``graph`` in such batches is estimated to fit in memory."""
        training, ranks = self._config.training, self._config.replica.ranks
        limit = self._memory_limit
        fitting = fitting_batch(
            graph, batch_size, training.precision, limit, ranks, training.optimizer
        )
        return fitting == batch_size

    def _begin_data(self, prepared: Prepared, network: Network) -> None:
        """Begin the first epoch's data, and fit to it what morphisms inserted."""
        plan, used = prepared.plan, prepared.used
        batches = self._dataset.train(plan.course.epochs + 1, used.batch_size, plan.seed)
        if plan.course.epochs == 0:
            first = next(batches)
            layers = network.calibrate(first)
            if layers:
                prepared.calibrated = Calibrated(
                    trial=plan.trial, layers=layers, samples=first.whole
                )
            batches = itertools.chain((first,), batches)
        prepared.batches = batches

    def warmup_batch_size(self, prepared: Prepared) -> int:
        """Return the batch size, of one rank, to warm a network with.

        That of its trial if such a step fits beside one of another network of the same size.
        """
        used, share = prepared.used, -(-prepared.used.batch_size // self._config.replica.ranks)
        needed = 2 * training_bytes(prepared.plan.graph, share, used.precision, used.optimizer)
        return share if needed <= self._memory_limit else 1

    def fit_batch(self, plan: TrialPlan) -> Prepared:
        """Apply the limits of the machine's memory."""
        training, limit = self._config.training, self._memory_limit
        ranks = self._config.replica.ranks
        batch = fitting_batch(
            plan.graph, plan.batch_size, training.precision, limit, ranks, training.optimizer
        )
        refused = batch == 0 or (
            batch < plan.batch_size and self._config.engine.on_memory == "refuse"
        )
        used = Hyperparameters(
            batch_size=plan.batch_size if refused else batch,
            kernel_size=plan.kernel_size,
            optimizer=training.optimizer,
            learning_rate=_given(plan.learning_rate, training.learning_rate),
            momentum=_given(plan.momentum, training.momentum),
            weight_decay=_given(plan.weight_decay, training.weight_decay),
            label_smoothing=training.label_smoothing,
            precision=training.precision,
            beta1=training.beta1,
            beta2=training.beta2,
            epsilon=training.epsilon,
            max_gradient_norm=training.max_gradient_norm,
            averaging_start=training.averaging_start,
            schedule=training.schedule,
        )
        if refused:
            failure = EngineError(self._too_large(plan))
            return Prepared(plan, used, plan.notes, failure=failure)
        note = f"batch size {plan.batch_size} does not fit in memory; {batch} is used"
        return Prepared(plan, used, (*plan.notes, note) if batch < plan.batch_size else plan.notes)

    def _started(self, prepared: Prepared) -> TrialStarted:
        """Return the record of a trial's start, with what it will really use."""
        plan, used, graph = prepared.plan, prepared.used, prepared.plan.graph
        operations, share = count(graph), -(-used.batch_size // self._config.replica.ranks)
        return TrialStarted(
            trial=plan.trial,
            round=plan.round,
            phase=plan.phase,
            graph=graph.hash,
            parent=plan.parent,
            proposal=plan.proposal,
            morphisms=tuple(m.to_data() for m in plan.morphisms),
            hyperparameters=used,
            seed=plan.seed,
            planned_batch_size=plan.batch_size if used.batch_size < plan.batch_size else None,
            epoch_limit=plan.epoch_limit,
            resumes=plan.resumes,
            first_epoch=plan.course.epochs + 1,
            parameters=graph.parameter_count,
            depth=graph.depth,
            train_operations=operations.training,
            validation_operations=operations.forward,
            memory_estimate_bytes=training_bytes(graph, share, used.precision, used.optimizer),
            notes=prepared.notes,
        )

    def _too_large(self, plan: TrialPlan) -> str:
        training, ranks = self._config.training, self._config.replica.ranks
        share = -(-plan.batch_size // ranks)
        needed = training_bytes(plan.graph, share, training.precision, training.optimizer)
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
        if plan.optimizer_state is not None:
            held = self._snapshot(training, plan.weights, plan.optimizer_state)
        try:
            for epoch in range(plan.course.epochs + 1, plan.epoch_limit + 1):
                self._epoch(network, training, epoch)
                if epoch == plan.epoch_limit:
                    break
                if self._reaches_target(training.course):
                    reason = f"the target, {self._config.training.target:g}, is reached"
                    return self._ended(TrialState.COMPLETED, reason, network, training)
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
                training.course.values,
                used=training.used,
                interrupted=interrupted,
            )
        return self._ended(TrialState.COMPLETED, "", network, training)

    def _epoch(self, network: Network, training: _Training, epoch: int) -> None:
        """Train and evaluate once over all samples."""
        self._stop_if_asked()
        began = self._clock.monotonic()
        after_step = training.meanwhile if self._near_its_end(training, epoch) else _nothing
        loss, rate = self._train_epoch(network, training, epoch, after_step)
        evaluation = self._evaluate(network, training, epoch, after_step)
        sums, samples = evaluation.sums(self._measure), evaluation.samples
        quality = self._measure.quality(sums, samples)
        training.course = training.course.after(
            self._measure.objective_value(quality), evaluation.mean_loss
        )
        self._epoch_seconds = self._clock.monotonic() - began
        self._journal.append(
            Evaluated(
                trial=training.plan.trial,
                epoch=epoch,
                learning_rate=rate,
                train_loss=loss,
                validation_loss=evaluation.mean_loss,
                measure=self._measure.name,
                sums=sums,
                samples=samples,
            )
        )

    def _reaches_target(self, course: TrialProgress) -> bool:
        """Return whether the last epoch ended with the quality that is asked for."""
        target = self._config.training.target
        return target is not None and course.values[-1] >= self._measure.objective_value(target)

    def _near_its_end(self, training: _Training, epoch: int) -> bool:
        """Return whether a trial that begins this epoch may end before long.

        An epoch is taken to last as long as the one before it, of whichever trial: the first one
        of all is taken to last no time, so that it is better too early than too late.
        """
        patience = self._config.training.patience - training.course.since_lowest
        epochs = min(training.plan.epoch_limit - epoch + 1, patience)
        return epochs <= 1 or epochs * self._epoch_seconds <= LEAD_SECONDS

    def _hold(self, network: Network, training: _Training) -> Callable[[], None]:
        """Take a snapshot of the trial as it is now; return what stores it."""
        with self._watch.during(TimePhase.STORE):
            return self._snapshot(training, network.weights(), network.optimizer_state())

    def _snapshot(
        self, training: _Training, weights: Weights, state: OptimizerState
    ) -> Callable[[], None]:
        """Return what stores all that a new life of this replica needs to go on with the trial."""
        path, course, graph = self._under_way, training.course, training.plan.graph

        def store() -> None:
            with self._watch.during(TimePhase.STORE):
                self._retry(lambda: save_training(path, course, graph, weights, state), str(path))

        return store

    def _ended(
        self, state: TrialState, reason: str, network: Network, training: _Training
    ) -> TrialResult:
        with self._watch.during(TimePhase.STORE):
            weights = network.weights()
        return TrialResult(state, reason, training.course.values, training.used, weights)

    def _train_epoch(
        self, network: Network, training: _Training, epoch: int, after_step: Callable[[], None]
    ) -> tuple[float, float]:
        """Train on every sample once; return the mean loss and the last learning rate."""
        plan, used = training.plan, training.used
        steps = math.ceil(self._dataset.info.train_samples / used.batch_size)
        schedule, losses = Schedule(used, steps, plan.epoch_limit), training.course.losses
        meter = _TrainMeter(self._journal, self._clock, self._every, network, plan.trial, epoch)
        batches = training.batches
        training.batches = None
        if batches is None:
            batches = self._dataset.train(epoch, used.batch_size, plan.seed)
        rate = used.learning_rate
        with self._watch.during(TimePhase.TRAIN), meter:
            for step, batch in enumerate(self._timed(batches), (epoch - 1) * steps):
                rate = schedule.rate(step, losses)
                network.train_step(batch, rate)
                meter.executed(batch.whole)
                self._stop_if_asked()
                after_step()
        return meter.mean_loss, rate

    def _evaluate(
        self, network: Network, training: _Training, epoch: int, after_step: Callable[[], None]
    ) -> EvaluationSums:
        """Evaluate every validation sample once."""
        trial, batch_size = training.plan.trial, training.used.batch_size
        meter = _EvaluationMeter(
            self._journal, self._clock, self._every, network, trial, epoch, self._measure
        )
        with self._watch.during(TimePhase.EVALUATE), meter:
            for batch in self._timed(self._dataset.validation(batch_size)):
                network.evaluate_step(batch)
                meter.executed(batch.whole)
                self._stop_if_asked()
                after_step()
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


def _nothing() -> None:
    """Do nothing."""


def _failed(error: Exception | None, course: TrialProgress, used: Hyperparameters) -> TrialResult:
    reason = str(error) or "the host has no memory left"
    lacked = isinstance(error, MemoryError | OutOfMemoryError)
    return TrialResult(TrialState.FAILED, reason, course.values, used=used, out_of_memory=lacked)


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
        self._journal = journal
        self._clock = clock
        self._every = every
        self._network = network
        self._trial = trial
        self._epoch = epoch
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

    def __init__(
        self,
        journal: JournalWriter,
        clock: Clock,
        every: float,
        network: Network,
        trial: str,
        epoch: int,
        measure: Measure,
    ) -> None:
        super().__init__(journal, clock, every, network, trial, epoch)
        self._measure = measure
        self.total = EvaluationSums()

    def _drain(self) -> None:
        self.total = self.total.merged(self._network.drain_evaluation(), self._measure)

    def _progress(self, samples: int) -> Progress:
        return Progress(
            trial=self._trial, epoch=self._epoch, train_samples=0, validation_samples=samples
        )
