"""The engine's contract: build one graph on one rank, train it by steps, evaluate it.

An engine knows graphs, weights and batches; it knows no dataset, no search and no file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph
from aiperf_hpc.morphism.weights.checkpoint import Array, Weights
from aiperf_hpc.objective import Measure, Objective
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines.checksum import PendingChecksum
from aiperf_hpc.trial import Hyperparameters

Buffer = Any
"""A flat float32 array: of numpy, or a tensor of the engine's framework where that keeps it."""

OptimizerState = Mapping[str, Array]
"""What an optimizer knows besides the weights, as float32 arrays.

``SLOT:node/parameter``, of the parameter's shape, for each of its slots, such as ``momentum``,
``first_moment`` and ``second_moment``; and ``step``, of shape (), where it counts its steps.
Nobody but engines reads them, and all engines mean the same by them.
"""
ITERATE = "iterate"
"""The slot of the parameters that are trained, where the weights are an average of them."""
_STEP = "step"

_BLOCK = 16
"""Channels that oneDNN takes at once, with the widest vectors."""


@dataclass(frozen=True, slots=True)
class EvaluationSums:
    """What was found about the samples that were evaluated."""

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
        """Return what was found about the samples of both, by the measure's rule."""
        return EvaluationSums(
            self.loss + other.loss,
            self.samples + other.samples,
            self._together(other, measure),
            self._predictions_with(other),
        )

    def _predictions_with(self, other: EvaluationSums) -> NDArray[np.int64] | None:
        known = [p for p in (self.predictions, other.predictions) if p is not None]
        return np.concatenate(known) if known else None

    def _together(self, other: EvaluationSums, measure: Measure) -> Mapping[str, Any]:
        if not (self.parts and other.parts):
            return self.parts or other.parts
        pairs = {name: (self.parts[name], other.parts[name]) for name in self.parts}
        if measure.rows:
            return {name: np.concatenate(pair) for name, pair in pairs.items()}
        return {name: np.add(*pair) for name, pair in pairs.items()}

    def sums(self, measure: Measure) -> dict[str, float]:
        """Return what is recorded of the parts of all samples."""
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
    """Return what was found about samples; ``parts`` in the order of the measure's names."""
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

        The training and the evaluation step are executed on samples that are made up. Weights,
        optimizer state, statistics and losses are afterwards exactly what they were.

        With one sample it is done what needs no memory for more, and nothing is compiled.
        """
        ...

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        """Make inserted normalisations transparent on ``batch``; return their names.

        Those that are the identity in inference, because nothing was trained in them yet, are
        given the moments of what they read of this batch, so that a child starts as its parent
        in training mode too. Everything else stays as it is, and nothing is learnt.
        """
        ...

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Forward, backward and update for one batch of any size up to the trial's."""
        ...

    def drain_training(self) -> float:
        """Wait for all training steps; return the mean loss since the last call (0 for none).

        Raises:
            NonFiniteLossError: the loss became NaN or infinite.
            OutOfMemoryError: a step did not fit.
        """
        ...

    def evaluate_step(self, batch: Batch) -> None:
        """Forward pass in inference mode, added to the running sums."""
        ...

    def drain_evaluation(self) -> EvaluationSums:
        """Wait for all evaluation steps; return the sums since the last call."""
        ...

    def outputs(self, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
        """Return the network's output in inference mode, (samples, \\*shape) in float32.

        Of one that ends in a softmax, what that reads: losses work on it, which is the stable way.
        """
        ...

    def weights(self) -> Weights:
        """Return a copy of the weights, those that are evaluated, as float32 arrays."""
        ...

    def optimizer_state(self) -> OptimizerState:
        """Return a copy of what the optimizer needs besides the weights to go on."""
        ...

    def close(self) -> None:
        """Free what the framework holds; the network cannot be used after it."""
        ...


class Engine(Protocol):
    """Makes networks."""

    @property
    def name(self) -> str: ...

    @property
    def versions(self) -> dict[str, str]:
        """The framework's packages and their versions."""
        ...

    @property
    def objective(self) -> Objective:
        """What its networks are trained for."""
        ...

    @property
    def accelerators(self) -> tuple[str, ...]:
        """The devices besides CPUs; empty when it trains on CPUs."""
        ...

    @property
    def memory_bytes(self) -> int | None:
        """What of its accelerator's memory a training may take now; None: it takes the host's."""
        ...

    @property
    def warms_alone(self) -> bool:
        """Whether a network has to be warmed by the thread that trains it, with nothing beside it.

        Where the first execution of a step times kernels, for the thread that executes it.
        """
        ...

    def compile_ahead(self, graph: Graph, precision: str, samples: int) -> str:
        """Have compiled, by another process, what steps of batches of one size execute.

        So that what warms such a network does not keep the thread that trains another one from
        launching its steps. Of engines that compile nothing, and with one sample, nothing is.

        Returns:
            Why it is not compiled, in one line; empty if it is, or if nothing is to be.
        """
        ...

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> Network:
        """Build and compile a graph, ready for its first step.

        Args:
            graph: what to build.
            weights: of every parameter and statistic.
            hyperparameters: the trial's.
            optimizer_state: what to go on from; the optimizer begins when it is not given.

        Raises:
            EngineError: the graph cannot be built, and the message names the node; or the
                optimizer cannot go on from such a state.
            OutOfMemoryError: it does not fit.
        """
        ...


class RankNetwork(Network, Protocol):
    """A network that one rank of several can train: what a step does, in two halves."""

    @property
    def buckets(self) -> tuple[int, ...]:
        """Elements of each bucket of gradients, in the order in which they become final.

        Zeros between gradients, by which an engine has them begin where it reads them best, too.
        """
        ...

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        """As ``Network.warm``, of a step in one piece or of one in two halves."""
        ...

    def await_room(self) -> None:
        """Wait until the device's queue, if it has a limit, has room for one more step.

        The steps before it may wait for other ranks. Without this call the next one waits itself.
        """
        ...

    def gradients(self, batch: Batch, share: float, ready: Callable[[Buffer], None]) -> None:
        """Forward and backward for one batch; nothing is updated but running statistics.

        Args:
            batch: a part of a batch; without samples its gradients are zeros.
            share: what the part is of the whole: the sum over all parts is the whole's.
            ready: given each bucket, ``share`` times the gradients of the mean loss, as soon as
                it is final. The buffer may be overwritten from then on.

        ``share`` times the mean loss goes to the sum behind ``drain_training``, as of one step.
        """
        ...

    def zeros(self, bucket: int) -> Buffer:
        """Return a bucket full of zeros, from a rank that has nothing to give.

        Memory is taken at the first call and kept: a rank without memory for its step has it.

        Raises:
            OutOfMemoryError: at the first call.
        """
        ...

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        """Forward in training mode; nothing is updated, running statistics included.

        Returns:
            Mean and biased variance of what every normalisation reads of this batch, flat, in
            the order of ``graph.statistics``.
        """
        ...

    def assign(self, weights: Weights) -> None:
        """Replace some of the weights."""
        ...

    def apply(self, buckets: Sequence[Buffer], learning_rate: float) -> None:
        """Update all parameters with the reduced buckets, in the order of ``buckets``.

        Their memory may be changed by it, and used again once the next gradients, which depend
        on them, are ready.
        """
        ...

    def checksum(self) -> PendingChecksum:
        """Begin to compute the checksum of the parameters that are evaluated.

        Of those in the order in which the engine has them, after all steps so far; running
        statistics, which each rank has of its own, are not among them. ``engines.checksum`` says
        what it is. Nothing waits for the device before what is returned is called.
        """
        ...

    def statistics(self) -> NDArray[np.float32]:
        """Return a flat copy of the running statistics, in the order of ``graph.statistics``."""
        ...

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        """Replace the running statistics."""
        ...


def step_in_halves(network: RankNetwork, batch: Batch, learning_rate: float) -> None:
    """Train on a batch as the only rank of one would."""
    given: list[Buffer] = []
    network.gradients(batch, 1.0, given.append)
    network.apply(given, learning_rate)


class Shrinking(NamedTuple):
    """What keeps parameters small."""

    used: Hyperparameters
    """The trial's, with the weight decay that is the optimizer's to apply."""
    decayed: list[str]
    """The parameters that it applies to."""
    penalties: Mapping[str, float]
    """By what the squares of parameters are multiplied and minimized too, by their names."""


def shrinking(graph: Graph, used: Hyperparameters) -> Shrinking:
    """Return what keeps a graph's parameters small in a trial: weight decay, and penalties."""
    decayed = sorted(graph.parameters if used.weight_decay_of == "all" else graph.decayed)
    if used.weight_decay_in == "update" or not used.weight_decay:
        return Shrinking(used, decayed, graph.penalties)
    penalties = dict(graph.penalties)
    for name in decayed:
        penalties[name] = penalties.get(name, 0.0) + used.weight_decay / 2.0
    return Shrinking(used.model_copy(update={"weight_decay": 0.0}), decayed, penalties)


def slots(state: OptimizerState, slot: str, parameters: Collection[str]) -> dict[str, Array]:
    """Return a slot of every parameter. Raises EngineError when the state has it not of all."""
    named = {name: f"{slot}:{name}" for name in parameters}
    if not state.keys() >= set(named.values()):
        raise _strange(state, slot)
    return {name: state[key] for name, key in named.items()}


def step_state(steps: int) -> dict[str, Array]:
    """Return the part of a state that says how many steps were done."""
    return {_STEP: np.array(steps, np.float32)}


def step_count(state: OptimizerState) -> int:
    """Return how many steps were done before a state. Raises EngineError when it does not say."""
    if _STEP not in state:
        raise _strange(state, _STEP)
    return round(float(state[_STEP].item()))


def _strange(state: OptimizerState, missing: str) -> EngineError:
    kinds = sorted({key.split(":")[0] for key in state})
    return EngineError(
        f"the optimizer cannot go on from a state of another one: it has {kinds}, not '{missing}' "
        "of every parameter"
    )


def overruns_onednn(kernel: int, stride: int, channels: int) -> bool:
    """Return whether oneDNN (3.14 too) writes past its workspace in a convolution's backward pass.

    That of a strided 1 x 1 convolution of channels-last images whose channels do not fill the
    widest vector: its issue 6035. Without the stride, on what it leaves, it does not.
    """
    return kernel == 1 and stride > 1 and channels % _BLOCK != 0


class RankEngine(Engine, Protocol):
    """Makes networks that one rank of several can train."""

    def build(
        self,
        graph: Graph,
        weights: Weights,
        hyperparameters: Hyperparameters,
        optimizer_state: OptimizerState | None = None,
    ) -> RankNetwork:
        """Build and compile a graph; raises as ``Engine.build``."""
        ...

    def probe(self) -> Buffer:
        """Return a buffer of a single one, where the gradients of its networks are."""
        ...
