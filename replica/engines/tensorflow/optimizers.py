"""Optimizers of the ``tensorflow`` engine. An update is traced into the ``tf.function`` of a step.

What a step does to a parameter is one kernel of TensorFlow's where it has one that computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from aiperf_hpc.morphism.weights.checkpoint import Array, Weights
from aiperf_hpc.replica.engines.base import (
    ITERATE,
    OptimizerState,
    Shrinking,
    slots,
    step_count,
    step_state,
)
from aiperf_hpc.replica.tensorflow_import import tf

Variables = Mapping[str, tf.Variable]
Gradients = Mapping[str, tf.Tensor]

_STEP, _AVERAGE = "step", "average"

_ROW = 1024
"""Numbers that are added up before their sums are."""


class Optimizer:
    """Base: updates all parameters at once, and keeps the norm of their gradients in bounds."""

    slot_names: tuple[str, ...] = ()
    """What there is of each parameter besides itself."""

    def __init__(
        self, parameters: Variables, shrinking: Shrinking, state: Variables | None = None
    ) -> None:
        """Begin without a history, or work on the variables of one.

        Args:
            parameters: what steps change.
            shrinking: the trial's hyperparameters, and what keeps parameters small.
            state: the ``variables`` of an optimizer of the same parameters; None for new ones.
        """
        self._parameters = parameters
        self._used = shrinking.used
        self._decayed = frozenset(shrinking.decayed if self._used.weight_decay else ())
        self._penalties = shrinking.penalties
        self._state: dict[str, tf.Variable] = {}
        """All that is known besides the parameters, by the names in an ``OptimizerState``."""
        for slot in self.slot_names:
            for name, parameter in parameters.items():
                self._add(f"{slot}:{name}", state, partial(tf.zeros, parameter.shape))

    def _add(
        self, name: str, state: Variables | None, first: Callable[[], tf.Tensor | tf.Variable]
    ) -> None:
        """Take a variable from a state, or make it, of a first value."""
        self._state[name] = tf.Variable(first()) if state is None else state[name]

    @property
    def variables(self) -> Variables:
        """What there is besides the parameters."""
        return self._state

    @staticmethod
    def evaluated(name: str) -> str:
        """Return the name of the variable that is evaluated and handed out as a parameter."""
        return name

    def _slot(self, slot: str) -> Variables:
        """Return what there is of each parameter."""
        return {name: self._state[f"{slot}:{name}"] for name in self._parameters}

    def step(self, gradients: Gradients, rate: tf.Tensor) -> None:
        """Update all parameters."""
        penalised = {
            name: gradients[name] + 2.0 * factor * self._parameters[name]
            for name, factor in self._penalties.items()
        }
        self._update(self._clipped({**gradients, **penalised}), rate)

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        raise NotImplementedError

    def _clipped(self, gradients: Gradients) -> Gradients:
        """Return gradients scaled down to the greatest norm of all of them together."""
        limit = self._used.max_gradient_norm
        if limit is None:
            return gradients
        norm = tf.sqrt(tf.add_n([_sum_of_squares(g) for g in gradients.values()]))
        factor = 1.0 / tf.maximum(norm / limit, 1.0)
        return {name: gradient * factor for name, gradient in gradients.items()}

    def _decay(self, rate: tf.Tensor) -> None:
        """Shrink the parameters by decoupled weight decay."""
        if self._decayed:
            kept = 1.0 - rate * self._used.weight_decay
            for name in sorted(self._decayed):
                variable = self._parameters[name]
                variable.assign(variable * kept)

    def assign(self, weights: Weights) -> None:
        """Replace some parameters."""
        for name, array in weights.items():
            self._parameters[name].assign(array)

    def arrays(self) -> dict[str, Array]:
        """Return a copy of the state."""
        return {
            f"{slot}:{name}": np.array(variable.numpy(), np.float32)
            for slot in self.slot_names
            for name, variable in self._slot(slot).items()
        }

    def load(self, state: OptimizerState | None) -> None:
        """Go on from a state, the parameters being what was handed out with it; None: begin.

        Raises:
            EngineError: it is not a state of this optimizer.
        """
        for slot in self.slot_names:
            found = None if state is None else slots(state, slot, self._parameters)
            for name, variable in self._slot(slot).items():
                variable.assign(tf.zeros(variable.shape) if found is None else found[name])


class SGD(Optimizer):
    """``m = momentum * m - rate * g``, ``w += m``, in one kernel; weight decay outside it."""

    slot_names = ("momentum",)

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        self._decay(rate)
        momenta, momentum = self._slot("momentum"), tf.constant(self._used.momentum)
        for name, gradient in gradients.items():
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=self._parameters[name].handle,
                accum=momenta[name].handle,
                lr=rate,
                grad=gradient,
                momentum=momentum,
            )


class _Counting(Optimizer):
    """Base of those that count their steps."""

    def __init__(
        self, parameters: Variables, shrinking: Shrinking, state: Variables | None = None
    ) -> None:
        super().__init__(parameters, shrinking, state)
        self._add(_STEP, state, partial(tf.zeros, (), tf.int64))

    @property
    def _steps(self) -> tf.Variable:
        return self._state[_STEP]

    def step(self, gradients: Gradients, rate: tf.Tensor) -> None:
        self._steps.assign_add(1)
        super().step(gradients, rate)

    def _kept(self, share: float) -> tf.Tensor:
        """Return ``share`` to the power of the steps, in float64: it is to be taken from 1."""
        return tf.pow(tf.constant(share, tf.float64), tf.cast(self._steps, tf.float64))

    def arrays(self) -> dict[str, Array]:
        return super().arrays() | step_state(int(self._steps.numpy()))

    def load(self, state: OptimizerState | None) -> None:
        super().load(state)
        self._steps.assign(0 if state is None else step_count(state))


class Adam(_Counting):
    """Adam (Kingma and Ba 2015, algorithm 1); weight decay is an L2 term of the gradient.

    TensorFlow's kernel is the paper's section 2, which adds epsilon before the second moment's
    bias is corrected; the algorithm, as PyTorch has it, adds it afterwards. The rate and epsilon
    that it is given here make it the algorithm.
    """

    slot_names = ("first_moment", "second_moment")

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        used = self._used
        root = tf.sqrt(1.0 - self._kept(used.beta2))
        corrected = tf.cast(rate, tf.float64) * root / (1.0 - self._kept(used.beta1))
        corrected, epsilon = (tf.cast(x, tf.float32) for x in (corrected, used.epsilon * root))
        first, second = (self._slot(slot) for slot in self.slot_names)
        self._shrink(rate)
        for name, gradient in gradients.items():
            tf.raw_ops.ResourceApplyAdam(
                var=self._parameters[name].handle,
                m=first[name].handle,
                v=second[name].handle,
                beta1_power=0.0,
                beta2_power=0.0,
                lr=corrected,
                beta1=used.beta1,
                beta2=used.beta2,
                epsilon=epsilon,
                grad=self._with_decay(name, gradient),
            )

    def _shrink(self, rate: tf.Tensor) -> None:
        """Apply what is decoupled of weight decay: here nothing."""

    def _with_decay(self, name: str, gradient: tf.Tensor) -> tf.Tensor:
        if name not in self._decayed:
            return gradient
        return gradient + self._used.weight_decay * self._parameters[name]


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""

    def _shrink(self, rate: tf.Tensor) -> None:
        self._decay(rate)

    def _with_decay(self, name: str, gradient: tf.Tensor) -> tf.Tensor:
        return gradient


class LAMB(_Counting):
    """LAMB (You et al. 2020, algorithm 2), with the ratio of norms itself for its function phi.

    Each parameter has a trust ratio, of its norm to its update's; it is 1 where one of them is 0.
    """

    slot_names = ("first_moment", "second_moment")

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        used = self._used
        first_bias = tf.cast(1.0 - self._kept(used.beta1), tf.float32)
        second_bias = tf.cast(tf.sqrt(1.0 - self._kept(used.beta2)), tf.float32)
        firsts, seconds = (self._slot(slot) for slot in self.slot_names)
        for name, gradient in gradients.items():
            parameter, first, second = self._parameters[name], firsts[name], seconds[name]
            first.assign_add((1.0 - used.beta1) * (gradient - first))
            second.assign(used.beta2 * second + (1.0 - used.beta2) * gradient * gradient)
            update = first / first_bias / (tf.sqrt(second) / second_bias + used.epsilon)
            if name in self._decayed:
                update += used.weight_decay * parameter
            of_parameter, of_update = (tf.sqrt(_sum_of_squares(t)) for t in (parameter, update))
            trusted = tf.logical_and(of_parameter > 0.0, of_update > 0.0)
            ratio = tf.where(trusted, of_parameter / of_update, 1.0)
            parameter.assign_sub(rate * ratio * update)


class AveragedSGD(_Counting):
    """SGD without momentum, of which the mean of the parameters over the steps is evaluated.

    Polyak and Juditsky 1992, as PyTorch's ASGD with its lambda 0: the mean begins with the second
    step after ``averaging_start``, and until then is the parameters themselves. It is what is
    handed out; the parameters that are trained, the iterates, are part of the state.
    """

    def __init__(
        self, parameters: Variables, shrinking: Shrinking, state: Variables | None = None
    ) -> None:
        super().__init__(parameters, shrinking, state)
        for name, parameter in parameters.items():
            self._add(self.evaluated(name), state, partial(tf.identity, parameter))

    @staticmethod
    def evaluated(name: str) -> str:
        return f"{_AVERAGE}:{name}"

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        averaged = tf.maximum(self._steps - 1 - self._used.averaging_start, 1)
        share = 1.0 / tf.cast(averaged, tf.float32)
        self._decay(rate)
        averages = self._slot(_AVERAGE)
        for name, gradient in gradients.items():
            parameter, average = self._parameters[name], averages[name]
            parameter.assign_sub(rate * gradient)
            # The mean of one is itself, to the last bit.
            moved = average + share * (parameter - average)
            average.assign(tf.where(averaged > 1, moved, parameter))

    def assign(self, weights: Weights) -> None:
        super().assign(weights)
        averages = self._slot(_AVERAGE)
        for name, array in weights.items():
            averages[name].assign(array)

    def arrays(self) -> dict[str, Array]:
        iterates = {
            f"{ITERATE}:{name}": np.array(variable.numpy(), np.float32)
            for name, variable in self._parameters.items()
        }
        return iterates | super().arrays()

    def load(self, state: OptimizerState | None) -> None:
        super().load(state)
        iterates = None if state is None else slots(state, ITERATE, self._parameters)
        averages = self._slot(_AVERAGE)
        for name, parameter in self._parameters.items():
            averages[name].assign(parameter)
            if iterates is not None:
                parameter.assign(iterates[name])


OPTIMIZERS: dict[str, type[Optimizer]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "lamb": LAMB,
    "asgd": AveragedSGD,
}


def _sum_of_squares(tensor: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Return the sum of squares, by rows, then their sums by rows, and so on.

    Each row is added up by one thread: by how many threads a sum is divided decides its last
    bits, in which all ranks must agree, whose threads may be more or fewer.
    """
    found = tf.reshape(tf.square(tensor), [-1])
    while (length := found.shape[0]) > 1:
        row = min(length, _ROW)
        padded = tf.pad(found, [[0, -length % row]])
        found = tf.reduce_sum(tf.reshape(padded, [-1, row]), axis=1)
    return found[0]
