"""An engine that computes nothing and sleeps for the durations given by a model of a machine.

Everything else is real: batches, weights, checkpoints and records. A simulated run therefore shows
the overhead of the benchmark itself on any number of nodes. Its score does not describe a machine,
and the rules mark it as unofficial.

Accuracy saturates over the epochs towards a ceiling that depends on the graph and the
hyperparameters. Equal seeds give equal simulations. Weights remain unchanged: a child inherits its
parent's weights, but starts at the beginning of its own curve.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from aiperf_hpc.clock import Clock
from aiperf_hpc.config import SimulationConfig
from aiperf_hpc.errors import EngineError
from aiperf_hpc.graph import Graph, Softmax
from aiperf_hpc.morphism.weights.weight_file import Weights, check_weights
from aiperf_hpc.objective import ACCURACY, CLASSIFICATION
from aiperf_hpc.ops_counter.count import count
from aiperf_hpc.replica.data.base import Batch
from aiperf_hpc.replica.engines import base
from aiperf_hpc.trial import Hyperparameters

MODEL_VERSION = "1"
"""Version of the formulas below, recorded with every run."""

_EFFECT = {"graph": 0.02, "batch": 0.01, "kernel": 0.005}
"""Effects on the ceiling: standard deviation over graphs, loss per squared distance from the best
batch size (in powers of 2), and loss per step in kernel size from the best one."""
_LARGE = 8.0
"""Decimal logarithm of the number of parameters above which the ceiling no longer rises."""


class SimulatedEngine:
    """Engine of simulated networks."""

    name = "simulated"
    memory_bytes = None
    warms_alone = False
    objective = CLASSIFICATION

    def __init__(self, model: SimulationConfig, clock: Clock) -> None:
        self.versions = {"simulation": MODEL_VERSION}
        self._model = model
        self._clock = clock
        self.accelerators = ("simulated accelerator",) if model.accelerators else ()

    def compile_ahead(self, state: base.NetworkState) -> str:
        """Do nothing: there is no code to compile."""
        return ""

    def build(self, state: base.NetworkState) -> SimulatedNetwork:
        """Sleep for the build time and return the network.

        Raises:
            EngineError: the weights do not match the graph, or it does not end in a softmax.
        """
        output = state.graph.output
        if not isinstance(output.layer, Softmax):
            raise EngineError(
                f"node '{output.name}': a simulated network ends in a softmax, "
                f"not in a layer of kind '{output.layer.kind}'"
            )
        check_weights(state.graph, state.weights)
        self._clock.sleep(self._model.build_seconds)
        return SimulatedNetwork(self._model, self._clock, state)

    def probe(self) -> NDArray[np.float32]:
        """Return a buffer with the single value 1 in host memory, where all gradients are."""
        return np.ones(1, np.float32)


class SimulatedNetwork:
    """A network with a simulated training curve."""

    def __init__(self, model: SimulationConfig, clock: Clock, state: base.NetworkState) -> None:
        self._model = model
        self._clock = clock
        graph, used = state.graph, state.hyperparameters
        self._graph, self._weights = graph, state.weights
        operations = count(graph)
        self._train_seconds = operations.training / model.operations_per_second
        self._evaluation_seconds = operations.forward / model.operations_per_second
        self._classes = graph.shapes[graph.output.name][-1]
        self._ceiling = ceiling(model, graph, used)
        start = hashlib.sha256(self._weights[min(self._weights)].tobytes()).hexdigest()
        self._noise = _generator(model.seed, graph.hash, used.model_dump_json(), start)
        before = state.optimizer_state
        self._epoch = int(before[min(before)].flat[0]) if before else 0
        """Number of epochs, with those before an interruption of the training run."""
        self._state: base.OptimizerState = {}
        for _ in range(self._epoch):
            self._noise.standard_normal()
        self._accuracy = 1.0 / self._classes
        self._evaluating = True
        self._seen = self._drained = self._correct = 0
        self._trained = False
        self._share = 1.0
        self._checksum: int | None = None

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Sleep for the time of a training step."""
        if self._evaluating:
            self._begin_epoch()
        self._trained = True
        self._clock.sleep(self._model.step_seconds + batch.size * self._train_seconds)

    def warm(self, batch_size: int, *, halves: bool = False) -> None:
        """Do nothing: equal steps always have equal durations."""

    def calibrate(self, batch: Batch) -> tuple[str, ...]:
        """Return no names: nothing is normalized."""
        return ()

    def moments(self, batch: Batch) -> NDArray[np.float32]:
        """Return zeros of the size that ranks sum: nothing is normalized."""
        sizes = map(math.prod, self._graph.statistics.values())
        return np.zeros(sum(sizes), np.float32)

    def assign(self, weights: Weights) -> None:
        """Do nothing: the weights never change."""

    @property
    def buckets(self) -> tuple[int, ...]:
        """Return a single bucket with all parameters."""
        return (self._graph.parameter_count,)

    def await_room(self) -> None:
        """Do nothing: there is no queue."""

    def gradients(self, batch: Batch, share: float, ready: Callable[[base.Buffer], None]) -> None:
        """Sleep for the time of a training step; all gradients are zero."""
        self.train_step(batch, 0.0)
        self._share = share
        ready(self.zeros(0))

    def zeros(self, bucket: int) -> NDArray[np.float32]:
        """Return zeros of the size of a bucket."""
        return np.zeros(self.buckets[bucket], np.float32)

    def apply(self, buckets: Sequence[base.Buffer], learning_rate: float) -> None:
        """Do nothing: the weights never change."""

    def checksum(self) -> base.PendingChecksum:
        """Return the checksum of the initial weights, computed once because they never change."""
        if self._checksum is None:
            self._checksum = base.checksum(self._weights[name] for name in self._graph.parameters)
        found = self._checksum
        return lambda: found

    def statistics(self) -> NDArray[np.float32]:
        """Return an empty array: statistics never change."""
        return np.zeros(0, np.float32)

    def set_statistics(self, flat: NDArray[np.float32]) -> None:
        """Do nothing: statistics never change."""

    def drain_training(self) -> float:
        """Return the mean loss since the last call (0 without steps)."""
        if not self._trained:
            return 0.0
        self._trained = False
        return self._share * self._loss

    def evaluate_step(self, batch: Batch) -> None:
        """Sleep for the time of an evaluation step."""
        self._evaluating = True
        self._seen += batch.size
        self._clock.sleep(self._model.step_seconds + batch.size * self._evaluation_seconds)

    def drain_evaluation(self) -> base.EvaluationSums:
        """Return the sums since the last call, with an integer number of correct samples."""
        correct = round(self._accuracy * self._seen)
        samples = self._seen - self._drained
        right = np.float64(correct - self._correct)
        part = base.evaluated(ACCURACY, self._loss * samples, samples, (right,))
        self._drained = self._seen
        self._correct = correct
        return part

    def weights(self) -> Weights:
        """Return the initial weights, which never change."""
        return self._weights

    def optimizer_state(self) -> base.OptimizerState:
        """Return momenta of zero, except for one array filled with the number of epochs.

        This is sufficient to resume training. The state is requested after every epoch.
        """
        if not self._state:
            shapes = self._graph.parameters.items()
            self._state = {f"momentum:{name}": np.zeros(s, np.float32) for name, s in shapes}
        told = min(self._state)
        return {**self._state, told: np.full_like(self._state[told], self._epoch)}

    def close(self) -> None:
        """Do nothing: there are no resources to free."""

    @property
    def _loss(self) -> float:
        """Plausible cross-entropy for the accuracy."""
        return -math.log(max(self._accuracy, 1e-6))

    def _begin_epoch(self) -> None:
        self._evaluating = False
        self._epoch += 1
        self._seen = self._drained = self._correct = 0
        model, chance = self._model, 1.0 / self._classes
        risen = 1.0 - math.exp(-self._epoch / model.rise_epochs)
        noise = model.noise * float(self._noise.standard_normal())
        accuracy = chance + (self._ceiling - chance) * risen + noise
        self._accuracy = min(1.0, max(0.0, accuracy))


def ceiling(model: SimulationConfig, graph: Graph, used: Hyperparameters) -> float:
    """Return the limit of a graph's accuracy over the epochs, without noise.

    It increases with the size of the graph up to a limit, and has a random term per graph. A seed
    determines one best batch size and one best kernel size for all graphs.
    """
    world = _generator(model.seed, "world")
    best_batch, best_kernel = world.uniform(6.0, 9.0), world.choice([3, 5, 7])
    size = min(1.0, math.log10(max(1, graph.parameter_count)) / _LARGE)
    own = float(_generator(model.seed, "graph", graph.hash).standard_normal())
    away = abs(math.log2(used.batch_size) - best_batch)
    reached = model.peak_accuracy * (0.75 + 0.25 * size) + _EFFECT["graph"] * own
    reached -= _EFFECT["batch"] * min(away, 4.0) ** 2
    if used.kernel_size is not None:
        reached -= _EFFECT["kernel"] * abs(used.kernel_size - best_kernel) / 2
    return min(1.0, max(1.0 / graph.shapes[graph.output.name][-1], reached))


def _generator(*parts: object) -> np.random.Generator:
    """Return a random generator seeded by ``parts`` only."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
