"""The engine interface: build one graph on one rank, train it step by step, evaluate it.

An engine depends on graphs, weights and batches, but not on datasets, the search or files. The
networks of all frameworks share warm-up, calibration, sums over steps, regularization and the
format of optimizer states.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import EngineError, NonFiniteLossError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.calibration import calibrate, transparent
from aiperf_hpc.morphism.weights.weight_file import Array, Weights, check_weights
from aiperf_hpc.objective import Objective, QualityMetric
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.trial import Hyperparameters

Buffer = Any
"""A flat float32 NumPy array, or a tensor of the engine's framework."""

OptimizerState = Mapping[str, Array]
"""The state of an optimizer without the weights, as float32 arrays.

There is an array ``SLOT:node/parameter``, of the parameter's shape, for each slot (``momentum``,
``first_moment``, ``second_moment``, ...), and ``step``, the number of steps, of shape (). Only
engines read the slots; the format is common to all engines.
"""


@dataclass(frozen=True, slots=True)
class NetworkState:
    """A network to build: what determines its next step, besides the data."""

    graph: Graph
    weights: Weights
    """Values of every parameter and statistic."""
    hyperparameters: Hyperparameters
    optimizer_state: OptimizerState | None = None
    """State to resume from, or None to start without a history."""


CHECKSUM_COLUMNS = 1024
"""Words per line: engines sum lines and columns instead of weighting each word."""

PendingChecksum = Callable[[], int]
"""Function that waits for a device's checksum and returns it as a signed 64-bit integer."""

_BLOCK = 16
"""Channels per block of oneDNN with the widest vectors."""


@dataclass(frozen=True, slots=True)
class EvaluationSums:
    """The loss and the parts of the metric over the evaluated samples."""

    loss: float = 0.0
    """The sum of the samples' losses, without label smoothing."""
    samples: int = 0
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """Parts of the objective's metric by name: sums, (), or rows, (samples,) or
    (samples, numbers). Empty without samples."""
    predictions: NDArray[np.int64] | None = None
    """The most probable class of each sample, (samples,), in the order of evaluation; None without
    samples or if the objective does not request predictions."""

    @property
    def mean_loss(self) -> float:
        return self.loss / self.samples

    def merged(self, other: EvaluationSums, metric: QualityMetric) -> EvaluationSums:
        """Return the combined sums over the samples of both operands."""
        if not (self.samples and other.samples):
            return self if self.samples else other
        pairs = {name: (self.parts[name], other.parts[name]) for name in self.parts}
        join = np.concatenate if metric.rows else np.sum
        parts = {name: join(pair, axis=0) for name, pair in pairs.items()}
        known = [p for p in (self.predictions, other.predictions) if p is not None]
        predictions = np.concatenate(known) if known else None
        loss, samples = self.loss + other.loss, self.samples + other.samples
        return EvaluationSums(loss, samples, parts, predictions)

    def sums(self, metric: QualityMetric) -> dict[str, float]:
        """Return the metric's recorded sums over all samples."""
        if metric.summarize is not None:
            rows = {name: part.tolist() for name, part in self.parts.items()}
            return metric.summarize(rows)
        return {name: float(self.parts[name]) for name in metric.sums}


def evaluated(
    metric: QualityMetric,
    loss: float,
    samples: int,
    parts: Iterable[Any],
    predictions: NDArray[np.int64] | None = None,
) -> EvaluationSums:
    """Return sums over samples from ``parts`` in the order of the metric's names."""
    if not samples:
        return EvaluationSums()
    named = zip(metric.parts, (np.asarray(part, np.float64) for part in parts), strict=True)
    return EvaluationSums(loss, samples, dict(named), predictions)


def empty_batch(graph: Graph, objective: Objective, samples: int) -> Batch:
    """Return a batch of zeros with the shapes of a graph's inputs and targets.

    An axis whose size varies between batches has one element.
    """
    places = graph.shapes[graph.output.name][:-1]
    inputs = {
        name: np.zeros((samples, *graph.shapes[name]), graph.dtype(name)) for name in graph.inputs
    }
    wanted = {
        name: np.zeros(
            (samples, *(places if objective.dense else (size or 1 for size in spec.shape))),
            spec.dtype,
        )
        for name, spec in objective.targets.items()
    }
    return Batch(inputs, wanted)


class Network(Protocol):
    """A graph built for training. Steps may run asynchronously until they are drained."""

    def warm(self, batch_size: int) -> None:
        """Warm up the framework so that the first real step is not slower than the others.

        This executes the training and the evaluation step on samples of zeros. It restores the
        exact weights, optimizer state, statistics and losses.

        With one sample, it allocates memory only for that sample and compiles nothing.
        """

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        """Make inserted normalizations transparent on ``batch``; return their names.

        Untrained normalizations, which are the identity in inference, get the moments of their
        inputs in this batch. A child then starts with the function of its parent in training mode
        too. Nothing else changes.
        """

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Forward, backward and update for one batch of any size up to the trial's."""

    def drain_training(self) -> float:
        """Wait for all training steps; return the mean loss since the last call (0 without steps).

        Raises:
            NonFiniteLossError: the loss became NaN or infinite.
            OutOfMemoryError: a step did not fit.
        """

    def evaluate_step(self, batch: Batch) -> None:
        """Execute the forward pass in inference mode and add its results to the running sums."""

    def drain_evaluation(self) -> EvaluationSums:
        """Wait for all evaluation steps; return the sums since the last call."""

    def weights(self) -> Weights:
        """Return a copy of the evaluated weights as float32 arrays."""

    def optimizer_state(self) -> OptimizerState:
        """Return a copy of the optimizer's state, sufficient to resume with the weights."""

    def close(self) -> None:
        """Free the framework's resources; the network cannot be used afterwards."""


class Engine(Protocol):
    """Builds networks."""

    name: str
    versions: dict[str, str]
    """Versions of the framework's packages."""
    objective: Objective
    """Loss and metric of the engine's networks."""
    warms_alone: bool
    """Whether the training thread must warm a network itself, with nothing else running.

    This is the case if the first execution of a step times kernels for the executing thread.
    """

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Names of the accelerators; empty if the engine trains on CPUs."""

    @property
    def memory_bytes(self) -> int | None:
        """Free bytes of accelerator memory for training; None if it uses the host's memory."""

    def compile_ahead(self, state: NetworkState) -> str:
        """Compile the code of a network's steps for its batch size, in another process.

        Otherwise, warming the network would block the thread that launches another network's
        steps. No effect if the engine compiles nothing, or with one sample.

        Returns:
            The error in one line if the compilation failed, otherwise an empty string.
        """

    def build(self, state: NetworkState) -> Network:
        """Build and compile a network, ready for its next step.

        Raises:
            EngineError: the graph cannot be built (the message names the node), or the optimizer
                cannot resume from the state.
            OutOfMemoryError: it does not fit.
        """


class RankNetwork(Network, Protocol):
    """A network that several ranks can train together, each step in two halves."""

    @property
    def buckets(self) -> tuple[int, ...]:
        """Elements of each bucket of gradients, in the order in which the buckets become final.

        The zeros that pad gradients to an engine's alignment are included.
        """

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        """Warm up as ``Network.warm``, with a whole step or a step in two halves."""

    def await_room(self) -> None:
        """Wait until the device's queue, if it has a limit, has room for one more step.

        Earlier steps may wait for other ranks. Without this call, the next step waits itself.
        """

    def gradients(self, batch: Batch, share: float, ready: Callable[[Buffer], None]) -> None:
        """Forward and backward pass for one batch; only running statistics are updated.

        Args:
            batch: part of a batch; the gradients of a part without samples are zeros.
            share: fraction of the whole batch in this part. The sum over all parts is the gradient
                of the whole batch.
            ready: receives each bucket, ``share`` times the gradients of the mean loss, as soon as
                it is final. The callee may overwrite the buffer.

        ``share`` times the mean loss is added to the sum of ``drain_training``, as one step.
        """

    def zeros(self, bucket: int) -> Buffer:
        """Return a bucket of zeros, for a rank without gradients.

        The first call allocates the memory and keeps it for ranks that run out of memory in a step.

        Raises:
            OutOfMemoryError: the first call cannot allocate the memory.
        """

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        """Forward pass in training mode; nothing is updated, not even running statistics.

        Returns:
            Mean and biased variance of the inputs of every normalization, flat, in the order of
            ``graph.statistics``.
        """

    def assign(self, weights: Weights) -> None:
        """Replace some of the weights."""

    def apply(self, buckets: Sequence[Buffer], learning_rate: float) -> None:
        """Update all parameters with the reduced buckets, in the order of ``buckets``.

        The buffers may be modified. They can be reused once the next gradients, which depend on
        them, are ready.
        """

    def checksum(self) -> PendingChecksum:
        """Start computing the checksum of the evaluated parameters.

        This is ``checksum`` over the parameters in the engine's order, after all previous steps.
        Running statistics are excluded, because they differ between ranks. Only the returned
        function waits for the device.
        """

    def statistics(self) -> NDArray[np.float32]:
        """Return a flat copy of the running statistics, in the order of ``graph.statistics``."""

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        """Replace the running statistics."""


def step_in_halves(network: RankNetwork, batch: Batch, learning_rate: float) -> None:
    """Train on a batch as a single rank."""
    given: list[Buffer] = []
    network.gradients(batch, 1.0, given.append)
    network.apply(given, learning_rate)


def checksum(arrays: Iterable[Array]) -> int:
    """Return the checksum with which ranks compare their weights, as a signed 64-bit integer.

    The float32 values are read in memory order as words of 64 bits, two values per word; the last
    word of an array is padded with zeros. For the words w_0, w_1, ... of all arrays in sequence,
    the checksum is the sum of (2 i + 1) w_i modulo 2**64. The odd factors are invertible, so any
    change of one word changes the checksum. They also differ, so swapped values change it for all
    but a small fraction of pairs of positions. An integer sum does not depend on the order of
    summation. Engines compute it on their device, over parameters in their own order.
    """
    total, before = np.zeros(1, np.uint64), 0
    for array in arrays:
        flat = np.ascontiguousarray(array, np.float32).ravel()
        words = np.append(flat, np.zeros(flat.size % 2, np.float32)).view(np.uint64)
        places = np.arange(before, before + len(words), dtype=np.uint64)
        total += ((2 * places + 1) * words).sum(dtype=np.uint64)
        before += len(words)
    return int(total.view(np.int64)[0])


def first_line(error: Exception) -> str:
    """Return the first nonempty line of an error's message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))


def overruns_onednn(kernel: int, stride: int, channels: int) -> bool:
    """Return whether oneDNN (even 3.14) overruns its workspace in a convolution's backward pass.

    This affects strided 1 x 1 convolutions of channels-last images whose channels do not fill the
    widest vector (oneDNN issue 6035). An equal convolution without stride on a strided view is not
    affected.
    """
    return kernel == 1 and stride > 1 and channels % _BLOCK != 0


class RankEngine(Engine, Protocol):
    """Builds networks that several ranks can train together."""

    def build(self, state: NetworkState) -> RankNetwork:
        """Build and compile a network; raises the errors of ``Engine.build``."""

    def probe(self) -> Buffer:
        """Return a buffer with the single value 1, in the memory of the networks' gradients."""


class FrameworkNetwork(RankNetwork, ABC):
    """Base class of the networks of all frameworks."""

    def __init_subclass__(cls, errors: Callable[[], ContextDecorator]) -> None:
        """Convert the framework's errors in all methods of the interface by ``errors``."""
        for name in (*vars(Network), *vars(RankNetwork)):
            if not name.startswith("_") and callable(method := getattr(cls, name)):
                setattr(cls, name, errors()(method))

    def __init__(self, state: NetworkState, objective: Objective) -> None:
        check_weights(state.graph, state.weights)
        self._graph = state.graph
        self._objective = objective
        self._metric = objective.quality
        self._transparent = transparent(state.graph, state.weights)
        self._steps = 0
        """Number of training steps since losses were last drained."""
        self._samples = 0
        """Number of samples evaluated since evaluations were last drained."""
        self._rows: list[Sequence[Any]] = []
        """The metric's rows, one entry per batch."""
        self._predicted: list[Any] = []
        """The most probable classes, one entry per batch."""

    @property
    def _sum_count(self) -> int:
        """Running sums of an evaluation: the loss and the sums of the metric."""
        return 1 + (0 if self._metric.rows else len(self._metric.sums))

    @abstractmethod
    def _restored(self, batch_size: int) -> AbstractContextManager[None]:
        """Return a context to execute steps of a batch size; on exit, all tensors are restored."""

    @abstractmethod
    def _take_loss(self) -> float:
        """Wait for all training steps; return and reset the sum of their losses."""

    @abstractmethod
    def _take_evaluation(self) -> list[float]:
        """Wait for all evaluation steps; return and reset their running sums."""

    @abstractmethod
    def _joined(self, parts: Sequence[Any]) -> NDArray[Any]:
        """Concatenate tensors of several batches to one array."""

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        batch = empty_batch(self._graph, self._objective, batch_size)
        counts = self._steps, self._samples, self._rows[:], self._predicted[:]
        try:
            with self._restored(batch_size):
                if halves:
                    step_in_halves(self, batch, 0.0)
                else:
                    self.train_step(batch, 0.0)
                self.evaluate_step(batch)
        finally:
            self._steps, self._samples, self._rows, self._predicted = counts

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        return calibrate(self._graph, self._transparent, lambda: self.moments(batch), self.assign)

    def drain_training(self) -> float:
        loss, steps, self._steps = self._take_loss(), self._steps, 0
        return _finite(loss, "training") / max(steps, 1)

    def drain_evaluation(self) -> EvaluationSums:
        loss, *sums = self._take_evaluation()
        rows = [self._joined(part) for part in zip(*self._rows, strict=True)]
        predicted = self._joined(self._predicted) if self._predicted else None
        samples, self._samples, self._rows, self._predicted = self._samples, 0, [], []
        return evaluated(
            self._metric, _finite(loss, "validation"), samples, rows or sums, predicted
        )


def _finite(loss: float, phase: str) -> float:
    if not math.isfinite(loss):
        raise NonFiniteLossError(
            f"the {phase} loss is not finite; a lower training.learning_rate may help"
        )
    return loss


ITERATE = "iterate"
"""Slot of the trained parameters of an optimizer that evaluates an average of them."""
STEP = "step"
"""Entry of a state with the number of steps."""


class Regularization(NamedTuple):
    """Regularization of a trial: weight decay and penalties."""

    used: Hyperparameters
    """Hyperparameters of the trial, with the weight decay applied by the update."""
    decayed: Collection[str]
    """Parameters subject to the update's weight decay; empty without weight decay."""
    penalties: Mapping[str, float]
    """Factors of the squared parameters in the loss, by parameter."""


def regularization(graph: Graph, used: Hyperparameters) -> Regularization:
    """Return the weight decay and the penalties of a graph's parameters in a trial."""
    if not used.weight_decay:
        return Regularization(used, (), graph.penalties)
    decayed = sorted(graph.parameters if used.weight_decay_of == "all" else graph.decayed)
    if used.weight_decay_in == "update":
        return Regularization(used, decayed, graph.penalties)
    penalties = dict(graph.penalties)
    for name in decayed:
        penalties[name] = penalties.get(name, 0.0) + used.weight_decay / 2.0
    return Regularization(used.model_copy(update={"weight_decay": 0.0}), (), penalties)


def slots(state: OptimizerState, slot: str, parameters: Collection[str]) -> dict[str, Array]:
    """Return one slot of every parameter. Raises EngineError if the state lacks one."""
    keys = {name: f"{slot}:{name}" for name in parameters}
    if not state.keys() >= set(keys.values()):
        raise _missing(state, slot)
    return {name: state[key] for name, key in keys.items()}


def step_state(steps: int) -> dict[str, Array]:
    """Return the entry of a state for the number of steps."""
    return {STEP: np.array(steps, np.float32)}


def step_count(state: OptimizerState) -> int:
    """Return the number of steps in a state. Raises EngineError if it has none."""
    if STEP not in state:
        raise _missing(state, STEP)
    return round(float(state[STEP].item()))


def _missing(state: OptimizerState, missing: str) -> EngineError:
    kinds = sorted({key.split(":")[0] for key in state})
    return EngineError(
        f"the optimizer cannot resume from the state of another one: it has {kinds}, not "
        f"'{missing}' of every parameter"
    )
