"""Optimizers of the ``tensorflow`` engine. An update is traced into the ``tf.function`` of a step.

What a step does to a parameter is one kernel of TensorFlow's where it has one that computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from aiperf_hpc.morphism.weights.weight_file import Array, Weights
from aiperf_hpc.replica.engines.base import OptimizerState
from aiperf_hpc.replica.engines.optimizers import (
    ITERATE,
    STEP,
    Regularization,
    slots,
    step_count,
    step_state,
)
from aiperf_hpc.replica.tensorflow_import import tf

Variables = Mapping[str, tf.Variable]
Gradients = Mapping[str, tf.Tensor]

_AVERAGE = "average"

_ROW = 1024
"""Elements of a row that is summed at once."""


class Optimizer:
    """Base: updates all parameters at once, and clips the norm of their gradients."""

    slot_names: tuple[str, ...] = ()
    """The slots of each parameter."""
    counts_steps = True
    """Whether the number of steps is part of the state."""

    def __init__(
        self, parameters: Variables, regularization: Regularization, state: Variables | None = None
    ) -> None:
        """Begin without a history, or work on the variables of one.

        Args:
            parameters: what steps change.
            regularization: the trial's hyperparameters, weight decay and penalties.
            state: has the ``variables`` of an optimizer of the same parameters; None for new ones.
        """
        self._parameters = parameters
        self._used, self._decayed, self._penalties = regularization
        self.variables: Variables = (
            {name: tf.Variable(first()) for name, first in self._first_values().items()}
            if state is None
            else state
        )
        """The state besides the parameters, by the names in an ``OptimizerState``."""

    def _first_values(self) -> dict[str, Callable[[], tf.Tensor | tf.Variable]]:
        """Return makers of the first values of a new state."""
        first: dict[str, Callable[[], tf.Tensor]] = {
            f"{slot}:{name}": partial(tf.zeros, parameter.shape)
            for slot in self.slot_names
            for name, parameter in self._parameters.items()
        }
        return first | ({STEP: partial(tf.zeros, (), tf.int64)} if self.counts_steps else {})

    @staticmethod
    def evaluated(name: str) -> str:
        """Return the name of the variable that is evaluated and handed out as a parameter."""
        return name

    @property
    def _steps(self) -> tf.Variable:
        return self.variables[STEP]

    def _power(self, base: float) -> tf.Tensor:
        """Return ``base`` to the power of the steps, in float64: it is subtracted from 1."""
        return tf.pow(tf.constant(base, tf.float64), tf.cast(self._steps, tf.float64))

    def _slot(self, slot: str) -> Variables:
        """Return a slot of each parameter."""
        return {name: self.variables[f"{slot}:{name}"] for name in self._parameters}

    def step(self, gradients: Gradients, rate: tf.Tensor) -> None:
        """Update all parameters."""
        if self.counts_steps:
            self._steps.assign_add(1)
        penalized = {
            name: gradients[name] + 2.0 * factor * self._parameters[name]
            for name, factor in self._penalties.items()
        }
        self._update(self._clipped({**gradients, **penalized}), rate)

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
            factor = 1.0 - rate * self._used.weight_decay
            for name in self._decayed:
                variable = self._parameters[name]
                variable.assign(variable * factor)

    def assign(self, weights: Weights) -> None:
        """Replace some parameters."""
        for name, array in weights.items():
            self._parameters[name].assign(array)

    def arrays(self) -> dict[str, Array]:
        """Return a copy of the state."""
        arrays = {
            f"{slot}:{name}": np.array(variable.numpy(), np.float32)
            for slot in self.slot_names
            for name, variable in self._slot(slot).items()
        }
        return arrays | (step_state(int(self._steps.numpy())) if self.counts_steps else {})

    def load(self, state: OptimizerState | None) -> None:
        """Resume from a state, with the parameters that were handed out with it; None: begin.

        Raises:
            EngineError: it is not a state of this optimizer.
        """
        for slot in self.slot_names:
            arrays = None if state is None else slots(state, slot, self._parameters)
            for name, variable in self._slot(slot).items():
                variable.assign(tf.zeros(variable.shape) if arrays is None else arrays[name])
        if self.counts_steps:
            self._steps.assign(0 if state is None else step_count(state))


class SGD(Optimizer):
    """``m = momentum * m - rate * g``, ``w += m``, in one kernel; weight decay outside it."""

    slot_names = ("momentum",)
    counts_steps = False

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


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, algorithm 1); weight decay is an L2 term of the gradient.

    TensorFlow's kernel is the paper's section 2, which adds epsilon before the second moment's
    bias is corrected; the algorithm, as PyTorch has it, adds it afterwards. The rate and epsilon
    that it is given here make it the algorithm.
    """

    slot_names = ("first_moment", "second_moment")
    decoupled = False
    """Whether weight decay shrinks the parameters instead of adding to their gradients."""

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        used = self._used
        root = tf.sqrt(1.0 - self._power(used.beta2))
        corrected = tf.cast(rate, tf.float64) * root / (1.0 - self._power(used.beta1))
        corrected, epsilon = (tf.cast(x, tf.float32) for x in (corrected, used.epsilon * root))
        first, second = (self._slot(slot) for slot in self.slot_names)
        if self.decoupled:
            self._decay(rate)
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

    def _with_decay(self, name: str, gradient: tf.Tensor) -> tf.Tensor:
        if self.decoupled or name not in self._decayed:
            return gradient
        return gradient + self._used.weight_decay * self._parameters[name]


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2)."""

    decoupled = True


class LAMB(Optimizer):
    """LAMB (You et al. 2020, algorithm 2), with the ratio of norms itself for its function phi.

    Each parameter has a trust ratio, of its norm to its update's; it is 1 where one of them is 0.
    """

    slot_names = ("first_moment", "second_moment")

    def _update(self, gradients: Gradients, rate: tf.Tensor) -> None:
        used = self._used
        first_bias = tf.cast(1.0 - self._power(used.beta1), tf.float32)
        second_bias = tf.cast(tf.sqrt(1.0 - self._power(used.beta2)), tf.float32)
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


class AveragedSGD(Optimizer):
    """SGD without momentum, of which the mean of the parameters over the steps is evaluated.

    Polyak and Juditsky 1992, as PyTorch's ASGD with its lambda 0: the mean begins with the second
    step after ``averaging_start``, and until then is the parameters themselves. It is what is
    handed out; the parameters that are trained, the iterates, are part of the state.
    """

    def _first_values(self) -> dict[str, Callable[[], tf.Tensor | tf.Variable]]:
        averages = {
            self.evaluated(name): partial(tf.identity, parameter)
            for name, parameter in self._parameters.items()
        }
        return super()._first_values() | averages

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
    """Return the sum of squares, by rows, then the sum of the rows' sums by rows, and so on.

    One thread sums each row: the division of a sum among threads decides its last bits, in which
    all ranks must agree, with more threads or fewer.
    """
    sums = tf.reshape(tf.square(tensor), [-1])
    while (length := sums.shape[0]) > 1:
        row = min(length, _ROW)
        padded = tf.pad(sums, [[0, -length % row]])
        sums = tf.reduce_sum(tf.reshape(padded, [-1, row]), axis=1)
    return sums[0]
