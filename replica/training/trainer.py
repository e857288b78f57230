"""Training of one trial."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from aiperf_hpc.clock import Clock
from aiperf_hpc.errors import AIPerfError, EngineError, JournalError, without_frames
from aiperf_hpc.morphism.weights.weight_file import Predictions, Weights
from aiperf_hpc.objective import QualityMetric
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.ops_counter.memory import MemoryLimit
from aiperf_hpc.replica.context import ReplicaContext
from aiperf_hpc.replica.data.base import Batch, Dataset
from aiperf_hpc.replica.data.baseline import Tally
from aiperf_hpc.replica.engines.base import Network
from aiperf_hpc.replica.training.checkpoint import BestEpochSoFar, EpochEnd, TrialCheckpoints
from aiperf_hpc.replica.training.credit import EvaluationCredit, TrainingCredit, TrialStopped
from aiperf_hpc.replica.training.schedule import Schedule
from aiperf_hpc.replica.training.trial import (
    BestEpoch,
    BuiltTrial,
    PlannedTrial,
    TrialProgress,
    TrialResult,
)
from aiperf_hpc.run.records import TrainingStarted, TrialStarted
from aiperf_hpc.trial import TimePhase, TrialState

LEAST_SECONDS = 60.0
"""Minimum lead in seconds, sufficient if nothing is compiled."""
MARGIN = 1.5
"""Lead as a multiple of the longest of the recent preparations."""
REMEMBERED = 5


class Lead:
    """How long before a trial's possible end the preparation of the next one starts.

    Estimated from the durations of recent preparations. Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: deque[float] = deque(maxlen=REMEMBERED)

    @property
    def seconds(self) -> float:
        """Seconds before a trial's possible end."""
        return max(LEAST_SECONDS, MARGIN * max(tuple(self._last), default=0.0))

    def begin(self) -> Callable[[object], None]:
        """Start to time a preparation; return the callback for its end.

        Time spent waiting for the end of the running trial does not count.
        """
        began = self._clock.monotonic()

        def end(_: object) -> None:
            self._last.append(self._clock.monotonic() - began)

        return end


@dataclass(eq=False)
class Trainer:
    """Trains built trials one after the other."""

    context: ReplicaContext
    """The replica's context."""
    dataset: Dataset
    """Training and validation samples."""
    quality: QualityMetric
    """Metric of trained networks."""
    memory: MemoryLimit
    """Memory of a rank that a trial may use."""
    checkpoints: Executor
    """Writes checkpoints during training."""
    baseline: Tally | None = None
    """Recorded with the first complete evaluation, if given."""

    def __post_init__(self) -> None:
        self._journal = self.context.journal
        self._watch = self.context.stopwatch
        self.lead = Lead(self.context.clock)
        """How early the next trial's preparation starts."""
        self._epoch_seconds = 0.0
        """Duration of the last epoch of any trial."""
        self._progress = TrialProgress(trial="")
        """Progress of the running trial."""
        self._predictions: Predictions | None = None
        """Predictions of its last complete evaluation."""
        self._best_epoch: BestEpochSoFar | None = None
        """The epoch of its best evaluation, if it is to be stored."""
        self.running_bytes = 0
        """Estimated memory in bytes of the running trial on a rank; 0 if none runs."""

    @property
    def perfect(self) -> float:
        """The highest possible objective value."""
        return self.quality.objective_value(self.quality.perfect)

    def run(self, built: BuiltTrial, meanwhile: Callable[[], None] = lambda: None) -> TrialResult:
        """Train a trial to its end. Errors are returned in the result, not raised.

        Args:
            built: the trial; the caller closes its network.
            meanwhile: called after each step once the trial may end within the lead.
        """
        trial, network = built.trial, built.network
        self._progress, self._predictions = trial.progress, None
        keeps = self.context.config.keeps_best_epochs
        self._best_epoch = BestEpochSoFar(trial.beginning) if keeps else None
        started = self._started(built)
        if network is None or built.failure is not None:
            self._journal.append(started)
            failure = built.failure or EngineError("its network was not built")
            return TrialResult.failed(failure, trial.progress, built.used)
        beginning = [started, TrainingStarted(trial=trial.name), built.calibrated]
        self._journal.append_all([event for event in beginning if event is not None])
        self.running_bytes = self.memory.needed(trial.candidate.graph, built.used.batch_size)
        try:
            return self._run(built, network, meanwhile)
        except JournalError:
            raise  # Training that cannot be recorded must stop.
        except (AIPerfError, MemoryError) as error:
            without_frames(error)
            return TrialResult.failed(error, self._progress, built.used, self._best)
        finally:
            self.running_bytes = 0

    @property
    def _best(self) -> BestEpoch | None:
        return None if self._best_epoch is None else self._best_epoch.best

    def _run(
        self, built: BuiltTrial, network: Network, meanwhile: Callable[[], None]
    ) -> TrialResult:
        """Train a trial and return its weights unless the end of the run interrupts it."""
        checkpoints = TrialCheckpoints(self.context, built.trial, self.checkpoints)
        interrupted, weights = False, None
        try:
            state, reason, weights = self._train(built, network, checkpoints, meanwhile)
        except TrialStopped:
            state, reason = TrialState.STOPPED, self.context.stop.reason or ""
            # The next attempt resumes a preempted trial, but not one that the run's end stopped.
            interrupted = self.context.stop.interrupted
            if interrupted:
                checkpoints.store_held()
        finally:
            checkpoints.finish()
        return TrialResult(
            state,
            reason,
            self._progress.values,
            built.used,
            weights,
            interrupted=interrupted,
            predictions=self._predictions,
            best_epoch=self._best,
        )

    def _train(
        self,
        built: BuiltTrial,
        network: Network,
        checkpoints: TrialCheckpoints,
        meanwhile: Callable[[], None],
    ) -> tuple[TrialState, str, Weights]:
        """Train by epochs until the limit, the target or patience.

        Returns:
            How it ended, why, and the weights at its end.

        Raises:
            TrialStopped: the run ends.
        """
        trial, used, training = built.trial, built.used, self.context.config.training
        steps = math.ceil(self.dataset.info.train_samples / used.batch_size)
        schedule, rate = Schedule(used, steps, trial.epoch_limit), used.learning_rate
        batches = built.batches
        end = self._epoch_end(built, network)
        for epoch in range(trial.progress.epochs + 1, trial.epoch_limit + 1):
            self._stop_if_requested()
            began = self.context.clock.monotonic()
            after_step = meanwhile if self._near_its_end(trial, epoch) else lambda: None
            if epoch > trial.progress.epochs + 1:  # The first came with the trial.
                batches = self.dataset.train(epoch, used.batch_size, trial.seed)

            credit = TrainingCredit(self.context, network, trial.name, epoch)
            with self._watch.during(TimePhase.TRAIN), credit:
                for step, batch in enumerate(self._timed(batches), (epoch - 1) * steps):
                    rate = schedule.rate(step, self._progress.losses)
                    network.train_step(batch, rate)
                    credit.executed(batch.whole)
                    self._stop_if_requested()
                    after_step()

            evaluation = EvaluationCredit(self.context, network, trial.name, epoch, self.quality)
            with self._watch.during(TimePhase.EVALUATE), evaluation:
                for batch in self._timed(self._validation(used.batch_size)):
                    network.evaluate_step(batch)
                    evaluation.executed(batch.whole)
                    self._stop_if_requested()
                    after_step()

            evaluated = evaluation.evaluated(rate, credit.losses.mean)
            value = self.quality.objective_value(evaluated.quality)
            self._progress = self._progress.after(
                value, evaluated.validation_loss, credit.losses.means, evaluation.losses.means
            )
            self._epoch_seconds = self.context.clock.monotonic() - began
            self._journal.append(evaluated)
            self._record_baseline()
            self._predictions = evaluation.predictions
            end = self._epoch_end(built, network)
            if self._best_epoch is not None:
                self._best_epoch.after(end.state)

            if epoch == trial.epoch_limit:
                break  # The trial has ended: no checkpoint is needed.
            target = training.target
            if target is not None and self.quality.reaches(evaluated.quality, target):
                return TrialState.COMPLETED, f"the target, {target:g}, is reached", end.weights
            if self._progress.since_lowest >= training.patience:
                reason = f"no lower validation loss in {training.patience} epochs"
                return TrialState.STOPPED, reason, end.weights
            checkpoints.after_epoch(end)
        return TrialState.COMPLETED, "", end.weights

    def _epoch_end(self, built: BuiltTrial, network: Network) -> EpochEnd:
        return EpochEnd(network, self._watch, built.trial.candidate.graph, self._progress)

    def _validation(self, batch_size: int) -> Iterator[Batch]:
        """Return the batches of an evaluation, observed by the baseline if there is one."""
        batches = self.dataset.validation(batch_size)
        return batches if self.baseline is None else self.baseline.watched(batches)

    def _record_baseline(self) -> None:
        if self.baseline is not None:
            self._journal.append(self.baseline.measured())
            self.baseline = None

    def _near_its_end(self, trial: PlannedTrial, epoch: int) -> bool:
        """Return whether a trial that starts this epoch may end within the lead.

        An epoch is assumed to last as long as the previous one of any trial. The first epoch of
        all is assumed to last no time, because preparing too early is better than too late.
        """
        patience = self.context.config.training.patience - self._progress.since_lowest
        epochs = min(trial.epoch_limit - epoch + 1, patience)
        return epochs <= 1 or epochs * self._epoch_seconds <= self.lead.seconds

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches; the time spent waiting for them is data time."""
        while True:
            with self._watch.during(TimePhase.DATA):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def _stop_if_requested(self) -> None:
        if self.context.stop.reason is not None:
            raise TrialStopped

    def _started(self, built: BuiltTrial) -> TrialStarted:
        """Return the record of a trial's start, with the hyperparameters that it uses."""
        trial, candidate, used = built.trial, built.trial.candidate, built.used
        operations = count(candidate.graph)
        planned, notes = trial.hyperparameters.batch_size, trial.notes
        shrunk = used.batch_size < planned
        if shrunk:
            notes += (f"batch size {planned} does not fit in memory; {used.batch_size} is used",)
        return TrialStarted(
            **TrialStarted.fields_from(replace(trial, hyperparameters=used, notes=notes)),
            trial=trial.name,
            graph=candidate.graph.hash,
            parent=candidate.parent,
            proposal=candidate.proposal,
            morphisms=tuple(m.to_data() for m in candidate.morphisms),
            planned_batch_size=planned if shrunk else None,
            first_epoch=trial.progress.epochs + 1,
            parameters=candidate.graph.parameter_count,
            depth=candidate.graph.depth,
            train_operations=operations.training,
            validation_operations=operations.forward,
            memory_estimate_bytes=self.memory.needed(candidate.graph, used.batch_size),
        )
