"""The engine's contract: build one graph on one rank, train it by steps, evaluate it.

An engine knows graphs, weights and batches; it knows no dataset, no search and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.weight_file import Array, Weights
from aiperf_hpc.objective import Measure, Objective
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.trial import Hyperparameters

Buffer = Any
"""A flat float32 array of numpy, or a tensor of the engine's framework."""

OptimizerState = Mapping[str, Array]
"""The state of an optimizer besides the weights, as float32 arrays.

``SLOT:node/parameter``, of the parameter's shape, for each of its slots, such as ``momentum``,
``first_moment`` and ``second_moment``; and ``step``, of shape (), if it counts its steps. Only
engines read them, and all engines give them the same meaning.
"""

CHECKSUM_COLUMNS = 1024
"""Words of a line: engines add up lines and columns instead of weighting each word."""

PendingChecksum = Callable[[], int]
"""Waits for a checksum that a device computes; returns it as a signed number of 64 bits."""

_BLOCK = 16
"""Channels that oneDNN takes at once, with the widest vectors."""


@dataclass(frozen=True, slots=True)
class EvaluationSums:
    """The loss and the parts of the measure, over the samples that were evaluated."""

    loss: float = 0.0
    """The sum of the samples' losses, without label smoothing."""
    samples: int = 0
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    """The parts of the objective's measure, by its names: its sums, (), or its rows, (samples,)
    or (samples, numbers). Without samples there are none."""
    predictions: NDArray[np.int64] | None = None
    """The most probable class of each sample, (samples,), in the order of evaluation; None where
    the objective does not ask for them, and without samples."""

    @property
    def mean_loss(self) -> float:
        return self.loss / self.samples

    def merged(self, other: EvaluationSums, measure: Measure) -> EvaluationSums:
        """Return the sums over the samples of both."""
        if not (self.samples and other.samples):
            return self if self.samples else other
        pairs = {name: (self.parts[name], other.parts[name]) for name in self.parts}
        join = np.concatenate if measure.rows else np.sum
        parts = {name: join(pair, axis=0) for name, pair in pairs.items()}
        known = [p for p in (self.predictions, other.predictions) if p is not None]
        predictions = np.concatenate(known) if known else None
        loss, samples = self.loss + other.loss, self.samples + other.samples
        return EvaluationSums(loss, samples, parts, predictions)

    def sums(self, measure: Measure) -> dict[str, float]:
        """Return the measure of all samples, as it is recorded."""
        if measure.summarize is not None:
            rows = {name: part.tolist() for name, part in self.parts.items()}
            return measure.summarize(rows)
        return {name: float(self.parts[name]) for name in measure.sums}


def evaluated(
    measure: Measure,
    loss: float,
    samples: int,
    parts: Iterable[Any],
    predictions: NDArray[np.int64] | None = None,
) -> EvaluationSums:
    """Return the sums over samples; ``parts`` are in the order of the measure's names."""
    if not samples:
        return EvaluationSums()
    named = zip(measure.parts, (np.asarray(part, np.float64) for part in parts), strict=True)
    return EvaluationSums(loss, samples, dict(named), predictions)


def empty_batch(graph: Graph, objective: Objective, samples: int) -> Batch:
    """Return a batch of zeros of the shapes that a graph and its targets have.

    An axis whose size differs from batch to batch has one element.
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
        """Do what a framework does at its first steps, so that the first real one is not slower.

        The training and the evaluation step are executed on samples of zeros. Weights,
        optimizer state, statistics and losses are afterwards exactly what they were.

        With one sample this uses no memory for more, and compiles nothing.
        """

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        """Make inserted normalisations transparent on ``batch``; return their names.

        Those that are the identity in inference, because they are not trained yet, get the moments
        of their inputs in this batch, so that a child starts as its parent in training mode too.
        Everything else stays as it is.
        """

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Forward, backward and update for one batch of any size up to the trial's."""

    def drain_training(self) -> float:
        """Wait for all training steps; return the mean loss since the last call (0 for none).

        Raises:
            NonFiniteLossError: the loss became NaN or infinite.
            OutOfMemoryError: a step did not fit.
        """

    def evaluate_step(self, batch: Batch) -> None:
        """Forward pass in inference mode, added to the running sums."""

    def drain_evaluation(self) -> EvaluationSums:
        """Wait for all evaluation steps; return the sums since the last call."""

    def outputs(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the network's output in inference mode, (samples, \\*shape) in float32.

        Of one that ends in a softmax, these are the softmax's inputs.
        """

    def weights(self) -> Weights:
        """Return a copy of the weights, as they are evaluated, as float32 arrays."""

    def optimizer_state(self) -> OptimizerState:
        """Return a copy of the optimizer's state, by which it can resume with the weights."""

    def close(self) -> None:
        """Free what the framework holds; the network cannot be used after it."""


class Engine(Protocol):
    """Builds networks."""

    @property
    def name(self) -> str: ...

    @property
    def versions(self) -> dict[str, str]:
        """The framework's packages and their versions."""

    @property
    def objective(self) -> Objective:
        """The loss and the measure of its networks."""

    @property
    def accelerators(self) -> tuple[str, ...]:
        """The devices besides CPUs; empty when it trains on CPUs."""

    @property
    def memory_bytes(self) -> int | None:
        """Free bytes of its accelerator's memory for a training; None: it uses the host's."""

    @property
    def warms_alone(self) -> bool:
        """Whether the thread that trains a network has to warm it, with nothing else running.

        This is so if the first execution of a step times kernels, for the thread that executes it.
        """

    def compile_ahead(self, graph: Graph, precision: str, samples: int) -> str:
        """Compile the code of a network's steps for one batch size, in another process.

        Otherwise warming the network would keep the thread that trains another one from launching
        its steps. Engines that compile nothing do nothing, and neither does one sample.

        Returns:
            The reason in one line if it could not be compiled; empty otherwise.
        """

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> Network:
        """Build and compile a graph, ready for its first step.

        Args:
            graph: the network.
            weights: those of every parameter and statistic.
            hyperparameters: the trial's.
            optimizer_state: the state to resume from; None begins without a history.

        Raises:
            EngineError: the graph cannot be built, and the message names the node; or the
                optimizer cannot resume from such a state.
            OutOfMemoryError: it does not fit.
        """


class RankNetwork(Network, Protocol):
    """A network that one rank of several can train, each step in two halves."""

    @property
    def buckets(self) -> tuple[int, ...]:
        """Elements of each bucket of gradients, in the order in which they become final.

        Zeros that pad gradients to an engine's alignment are included.
        """

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        """As ``Network.warm``, of a step in one piece or of one in two halves."""

    def await_room(self) -> None:
        """Wait until the device's queue, if it has a limit, has room for one more step.

        The steps before it may wait for other ranks. Without this call the next one waits itself.
        """

    def gradients(self, batch: Batch, share: float, ready: Callable[[Buffer], None]) -> None:
        """Forward and backward for one batch; nothing is updated but running statistics.

        Args:
            batch: a part of a batch; without samples its gradients are zeros.
            share: the part's fraction of the whole batch, so that the sum over all parts is the
                gradient of the whole.
            ready: receives each bucket, ``share`` times the gradients of the mean loss, as soon as
                it is final. The buffer may be overwritten from then on.

        ``share`` times the mean loss goes to the sum behind ``drain_training``, as of one step.
        """

    def zeros(self, bucket: int) -> Buffer:
        """Return a bucket of zeros, for a rank without gradients.

        The first call allocates memory that is kept, so that a rank without memory for its step
        has it.

        Raises:
            OutOfMemoryError: at the first call.
        """

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        """Forward in training mode; nothing is updated, running statistics included.

        Returns:
            Mean and biased variance of the inputs of every normalisation, flat, in the order of
            ``graph.statistics``.
        """

    def assign(self, weights: Weights) -> None:
        """Replace some of the weights."""

    def apply(self, buckets: Sequence[Buffer], learning_rate: float) -> None:
        """Update all parameters with the reduced buckets, in the order of ``buckets``.

        Their memory may be changed by it, and used again once the next gradients, which depend
        on them, are ready.
        """

    def checksum(self) -> PendingChecksum:
        """Begin to compute the checksum of the parameters that are evaluated.

        It is that of ``checksum`` over the parameters in the engine's order, after all steps so
        far, without running statistics, which each rank has of its own. Only the function that is
        returned waits for the device.
        """

    def statistics(self) -> NDArray[np.float32]:
        """Return a flat copy of the running statistics, in the order of ``graph.statistics``."""

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        """Replace the running statistics."""


def step_in_halves(network: RankNetwork, batch: Batch, learning_rate: float) -> None:
    """Train on a batch as the only rank of one would."""
    given: list[Buffer] = []
    network.gradients(batch, 1.0, given.append)
    network.apply(given, learning_rate)


def checksum(arrays: Iterable[Array]) -> int:
    """Return the checksum by which ranks compare their weights, as a signed number of 64 bits.

    The float32 values are taken as they lie in memory, two a word of 64 bits, the last word of an
    array filled up with zeros. Of the words w_0, w_1, ... of all arrays, one array after the other,
    it is the sum of (2 i + 1) w_i modulo 2**64. The factors are odd, and so have inverses: any
    change of one word changes it. They differ, so that values which changed places do too, but for
    one pair of places in many. Whole numbers have one sum in any order, so that a device may add as
    it likes. Engines compute it on their device, of parameters in their own order.
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
    """Return the first line of an error's message that has text."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))


def overruns_onednn(kernel: int, stride: int, channels: int) -> bool:
    """Return whether oneDNN (3.14 too) writes past its workspace in a convolution's backward pass.

    It does so in a strided 1 x 1 convolution of channels-last images whose channels do not fill the
    widest vector: its issue 6035. It does not without the stride, on a strided view.
    """
    return kernel == 1 and stride > 1 and channels % _BLOCK != 0


class RankEngine(Engine, Protocol):
    """Builds networks that one rank of several can train."""

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> RankNetwork:
        """Build and compile a graph; raises as ``Engine.build``."""

    def probe(self) -> Buffer:
        """Return a buffer of a single one, where the gradients of its networks are."""
